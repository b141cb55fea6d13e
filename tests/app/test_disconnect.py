"""Nobody works for a caller who has gone, and nothing stops for one who will come back."""

import asyncio
import json
import random
import uuid
from typing import Any

import httpx
import pytest

from partway.store.database import Database
from tests.actions import (
    Client,
    Programs,
    answer_of,
    arrived,
    claimed,
    raw_call,
    raw_request,
    request_row,
    statuses,
    wait_until,
    worked,
)

# HTTP is the same whichever server holds the rows.
pytestmark = pytest.mark.either_server

# Far beyond what a test waits: an end before it is due to the caller's leaving.
FAR_MS = 50_000


@pytest.fixture
async def node(programs: Programs) -> Client:
    """One node of the door, as it is shipped but for a shorter poll."""
    return await programs.app(APP_POLL_SECONDS=0.1)


def request(method: str, path: str, **fields: Any) -> bytes:
    """A request of three segments, as it goes over the wire."""
    body = {"document": "One. Two. Three.", "deadline_ms": FAR_MS, **fields}
    return raw_request(method, path, json.dumps(body).encode())


POST = request("POST", "/v1/requests")
PUT = request("PUT", "/v1/requests/mine")


async def final(db: Database, request_id: int) -> str:
    """The status of a request, once it is final."""

    async def status() -> str | None:
        row = await request_row(db, request_id)
        assert row is not None
        return row["status"] if row["status"] != "active" else None

    found = await wait_until(status, "the request to become final")
    assert isinstance(found, str)
    return found


async def other_callers_come_and_go(db: Database, node: Client) -> None:
    """Come back once the node has looked, and noticed, several times since this was called."""
    for _ in range(3):
        marker = uuid.uuid4().hex
        async with raw_call(node, request("PUT", f"/v1/requests/{marker}", on_disconnect="cancel")):
            there = await arrived(db, marker)
        assert await final(db, there.id) == "abandoned"


async def test_a_post_whose_caller_leaves_is_abandoned_and_its_rest_never_runs(
    db: Database, node: Client
) -> None:
    async with raw_call(node, POST):
        there = await arrived(db)
        await worked(db, there.id, 1)

    assert await final(db, there.id) == "abandoned"
    assert await claimed(db, there.id, 10) == []
    assert await statuses(db, there.id) == ["done", "pending", "pending"]
    usage = (await answer_of(db, there.public_id)).usage
    assert (usage.segments, usage.billed) == (1, False)


async def test_a_caller_who_closes_only_its_sending_side_has_left(
    db: Database, node: Client
) -> None:
    async with raw_call(node, POST) as (_, writer):
        there = await arrived(db)
        writer.write_eof()

        assert await final(db, there.id) == "abandoned"


async def test_a_put_whose_caller_leaves_goes_on_and_completes(db: Database, node: Client) -> None:
    async with raw_call(node, PUT):
        there = await arrived(db, "mine")
    await other_callers_come_and_go(db, node)

    await worked(db, there.id, 3)

    assert await final(db, there.id) == "completed"


async def test_a_post_that_asks_for_it_goes_on_without_its_caller(
    db: Database, node: Client
) -> None:
    async with raw_call(node, request("POST", "/v1/requests", on_disconnect="continue")):
        there = await arrived(db)
    await other_callers_come_and_go(db, node)

    await worked(db, there.id, 3)

    assert await final(db, there.id) == "completed"


async def test_a_joiner_who_leaves_ends_nothing(db: Database, node: Client) -> None:
    """Its request would end with the caller who began it, and that one still waits."""
    put = request("PUT", "/v1/requests/mine", on_disconnect="cancel")
    async with raw_call(node, put) as (reader, _):
        there = await arrived(db, "mine")
        async with raw_call(node, put):
            await other_callers_come_and_go(db, node)
        await other_callers_come_and_go(db, node)
        await worked(db, there.id, 3)

        assert b"200 OK" in await reader.readline()
    assert await final(db, there.id) == "completed"


async def test_a_joiner_hears_that_the_one_who_began_has_left(db: Database, node: Client) -> None:
    put = request("PUT", "/v1/requests/mine", on_disconnect="cancel")
    async with raw_call(node, put) as (_, beginner):
        await arrived(db, "mine")
        async with raw_call(node, put) as (reader, _):
            await other_callers_come_and_go(db, node)
            beginner.close()

            head = await reader.readuntil(b"\r\n\r\n")

    assert b"200 OK" in head
    assert b"partway-outcome: abandoned" in head.lower()


async def test_a_caller_who_leaves_in_the_middle_of_its_body_stores_nothing(
    db: Database, node: Client
) -> None:
    async with raw_call(node, POST[:-20]):
        await other_callers_come_and_go(db, node)
    await other_callers_come_and_go(db, node)

    assert await db.read("SELECT id FROM requests WHERE segments = 3 AND status = 'active'") == []
    assert "Traceback" not in node.program.said()


async def test_the_node_says_nothing_when_callers_leave(db: Database, node: Client) -> None:
    """A caller who goes away is everyday life, not a failure of the node."""
    await other_callers_come_and_go(db, node)

    assert "ERROR" not in node.program.said()
    assert "Traceback" not in node.program.said()


async def test_no_answer_holds_the_text_of_another_caller(programs: Programs) -> None:
    """A read that was broken off once left its rows to the next who used the connection."""
    node = await programs.app(POOL_SIZE=5, APP_POLL_SECONDS=0.05)
    await programs.worker(concurrency=16, SLEEP_SECONDS=0.05)
    chance = random.Random(7)
    answered = 0

    async def call(marker: str, patience: float | None) -> None:
        nonlocal answered
        document = f"{marker} one. {marker} two.\n{marker} three."
        posted = node.post("/v1/requests", json={"document": document, "deadline_ms": 20_000})
        try:
            response = await asyncio.wait_for(posted, patience)
        except TimeoutError:
            return
        assert response.status_code == 200, response.text
        for segment in response.json()["segments"]:
            assert segment["status"] != "done" or segment["result"].startswith(marker + " ")
        assert response.json()["document"] in (document, None)
        answered += 1

    calls = []
    for number in range(200):
        patience = chance.uniform(0.01, 0.3) if number % 2 else None
        calls.append(call(f"m{number}m", patience))
    for first in range(0, 200, 20):
        await asyncio.gather(*calls[first : first + 20])

    assert answered >= 100
    assert (await node.get("/readyz")).status_code == 200
    assert "Traceback" not in node.program.said()


async def test_leaving_callers_leave_no_connections_to_the_database(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(POOL_SIZE=3, APP_POLL_SECONDS=0.02)
    (before,) = await db.read(CONNECTIONS)

    async def come_and_go(patience: float) -> None:
        try:
            await asyncio.wait_for(node.post("/v1/requests", json={"document": "a"}), patience)
        except (TimeoutError, httpx.TransportError):
            return

    for _ in range(5):
        await asyncio.gather(*(come_and_go(0.02 * n) for n in range(1, 16)))

    async def all_are_closed() -> bool:
        return not await db.read("SELECT id FROM requests WHERE status = 'active'")

    await wait_until(all_are_closed, "all requests to be abandoned")
    (after,) = await db.read(CONNECTIONS)
    assert after["n"] <= before["n"] + 3


CONNECTIONS = """
SELECT COUNT(*) AS n
FROM   information_schema.processlist
WHERE  db = DATABASE()
"""
