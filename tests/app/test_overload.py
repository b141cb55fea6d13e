"""A node that is full says so at once, and stores nothing; who comes back is still let in."""

import asyncio
import contextlib

import httpx
import pytest

from partway.app.problems import Problem
from partway.app.requests.admission import ACTIVE_TOTALS, AdmissionControl
from partway.app.settings import AppSettings
from partway.store.close import close
from partway.store.database import Database
from tests.actions import (
    TENANT,
    Client,
    Programs,
    arrived,
    pass_time,
    submitted,
    wait_until,
    worked,
)
from tests.app.test_http_api import REQUESTS, assert_problem
from tests.batch.test_batch import planted
from tests.system.test_cost import overhead, rows_read

# HTTP is the same whichever server holds the rows.
pytestmark = pytest.mark.either_server

FAR = 50_000


def put(node: Client, public_id: str, document: str = "One. Two.") -> asyncio.Task[httpx.Response]:
    """A call that waits until its request is worked on."""
    body = {"document": document, "deadline_ms": FAR}
    return asyncio.create_task(node.put(f"{REQUESTS}/{public_id}", json=body))


async def stored(db: Database) -> int:
    """How many requests are there."""
    return int((await db.read("SELECT COUNT(*) AS n FROM requests"))[0]["n"])


async def refused(node: Client, public_id: str | None = None) -> None:
    """Fail unless a new request is refused as it should be."""
    sent = {"document": "Three.", "deadline_ms": FAR}
    response = await (
        node.put(f"{REQUESTS}/{public_id}", json=sent)
        if public_id
        else node.post(REQUESTS, json=sent)
    )
    said = assert_problem(response, 503)
    assert said["type"] == "urn:partway:problem:overloaded"
    assert 2 <= int(response.headers["Retry-After"]) <= 10


async def test_beyond_so_many_active_requests_a_new_one_is_refused_and_nothing_stored(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_MAX_ACTIVE_REQUESTS=2)
    other = await programs.app(APP_MAX_ACTIVE_REQUESTS=2)
    calls = [put(node, "a"), put(other, "b")]
    first, _ = await arrived(db, "a"), await arrived(db, "b")

    for full in (node, other):
        await refused(full)
        await refused(full, "c")

    assert await stored(db) == 2
    assert await db.read("SELECT COUNT(*) AS n FROM segments") == [{"n": 4}]
    assert node.program.said().count("full: 2 requests of 16 characters are active") == 1

    # One ends, one may come in, and it is full again.
    assert (await node.delete(f"{REQUESTS}/a")).json()["status"] == "cancelled"
    calls.append(put(other, "c"))
    await arrived(db, "c")
    await refused(node)
    assert (await calls[0]).json()["id"] == first.public_id
    for call, name in zip(calls[1:], ("b", "c"), strict=True):
        await worked(db, (await arrived(db, name)).id, 2)
        assert (await call).json()["status"] == "completed"


async def test_beyond_so_many_waiting_characters_a_new_request_is_refused(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_MAX_WAITING_CHARACTERS=9)
    calls = [put(node, "a", "𠮷234 678"), put(node, "b", "More than all of it.")]
    await arrived(db, "a")
    second = await arrived(db, "b")

    await refused(node)

    assert await stored(db) == 2
    assert (second.segments, await waiting_characters(db)) == (1, {"a": 8, "b": 20})
    for public_id in ("a", "b"):
        await worked(db, (await arrived(db, public_id)).id, 1)
    assert {(await call).status_code for call in calls} == {200}
    assert (await node.post(REQUESTS, json={"document": " "})).status_code == 200


async def waiting_characters(db: Database) -> dict[str, int]:
    """The characters of each request, as its row says."""
    rows = await db.read("SELECT public_id, characters FROM requests")
    return {row["public_id"]: row["characters"] for row in rows}


async def test_who_comes_back_to_a_full_node_joins_and_who_is_settled_hears_it(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_MAX_ACTIVE_REQUESTS=1)
    await planted(db, "old", "completed", "2026-03-01")
    first = put(node, "a")
    request = await arrived(db, "a")

    joined = put(node, "a")
    other_body = await put(node, "a", "Another.")
    settled = await put(node, "old")
    standing = await node.get(f"{REQUESTS}/a")

    assert_problem(other_body, 422)
    assert assert_problem(settled, 410)["metered"]["segments"] == 2
    assert standing.json()["status"] == "running"
    await refused(node, "new")
    assert not joined.done()
    await worked(db, request.id, 2)
    assert (await joined).content == (await first).content
    assert await stored(db) == 1


async def test_of_many_calls_at_once_no_more_come_in_than_are_being_stored_at_a_moment(
    db: Database, programs: Programs
) -> None:
    """Exact on one node but for a look that is as old as another's commit; nodes add up."""
    limit, pool, calls_each = 10, 3, 40
    nodes = [
        await programs.app(APP_MAX_ACTIVE_REQUESTS=limit, POOL_SIZE=pool),
        await programs.app(APP_MAX_ACTIVE_REQUESTS=limit, POOL_SIZE=pool),
    ]
    calls = [put(node, f"r{n}-{k}") for n, node in enumerate(nodes) for k in range(calls_each)]

    async def all_are_in_or_refused() -> bool:
        return await stored(db) + sum(call.done() for call in calls) == len(calls)

    await wait_until(all_are_in_or_refused, "each call to be stored or refused")
    inside = await stored(db)

    # Each counts what it is about to store itself, save where a look is older than a commit.
    assert limit <= inside <= len(nodes) * (limit + pool)
    assert {call.result().status_code for call in calls if call.done()} == {503}
    await db.write("UPDATE requests SET deadline = NOW(6)")
    for node in nodes:
        node.program.process.kill()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_what_a_node_is_about_to_store_counts_before_it_is_there(db: Database) -> None:
    few = AdmissionControl(AppSettings(max_active_requests=3))
    short = AdmissionControl(AppSettings(max_waiting_characters=20))
    await submitted(db, ["ten letters"[:10]])

    async def are_full() -> bool:
        kinds = []
        for room in (few, short):
            with contextlib.suppress(Problem):
                await room.check(db, "another")
                continue
            kinds.append(room)
        assert len(kinds) in (0, 2)
        return bool(kinds)

    with few.storing(TENANT, 10), short.storing(TENANT, 9):
        assert not await are_full()
        with few.storing(TENANT, 10), short.storing(TENANT, 1):
            assert await are_full()
        assert not await are_full()


async def test_what_nobody_closes_does_not_shut_the_door(db: Database, programs: Programs) -> None:
    """Its node died, and no batch runs."""
    node = await programs.app(APP_MAX_ACTIVE_REQUESTS=1)
    forgotten, _ = await submitted(db, 2)
    await refused(node)

    await pass_time(db, forgotten, 31)

    response = await node.post(REQUESTS, json={"document": "One.", "deadline_ms": 1})
    assert (response.status_code, response.json()["status"]) == (200, "partial")


@pytest.mark.fresh_tables
async def test_looking_for_room_reads_no_more_rows_than_the_limit(db: Database) -> None:
    for _ in range(200):
        number, _ = await submitted(db, 1)
        await close(db, number, "completed")
    for _ in range(60):
        await submitted(db, 1)

    async def cost(limit: int) -> int:
        async with db.transaction() as cursor:
            asking = await overhead(cursor)
            before = await rows_read(cursor)
            await cursor.execute(ACTIVE_TOTALS, (TENANT, TENANT, limit))
            await cursor.fetchall()
            return await rows_read(cursor) - before - asking

    # The rows, and once more from the table that the server makes of them.
    assert await cost(20) <= 2 * 20 + 10
    assert await cost(1000) <= 2 * 60 + 10
