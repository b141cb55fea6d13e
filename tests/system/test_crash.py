"""Nodes, workers and the database die in mid-request: nothing is lost, nothing is billed twice."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from local.server import Server, find
from partway.store.database import Database
from partway.store.settings import DatabaseSettings
from partway.store.start import open_database
from tests.actions import (
    Programs,
    find_request,
    meter_rows,
    segment_rows,
    statuses,
    wait_until,
)

LATER = "tests.told_handlers:told_later"


def document(count: int, seconds: float) -> dict[str, object]:
    """The body of a request whose segments take so long each."""
    return {"segments": [f"after {seconds} {i}" for i in range(count)]}


async def until_some_are(db: Database, public_id: str, status: str) -> int:
    """The number of a request, once one of its segments has this status."""

    async def some() -> int:
        request = await find_request(db, public_id)
        found = request is not None and status in await statuses(db, request.id)
        return request.id if request is not None and found else 0

    return int(await wait_until(some, f"a segment that is {status}"))


async def until_settled(db: Database, public_id: str) -> dict[str, object]:
    """The one record of a request, once it is metered."""

    async def settled() -> bool:
        return bool(await meter_rows(db, public_id))

    await wait_until(settled, "the record")
    (record,) = await meter_rows(db, public_id)
    return record


async def test_another_node_answers_what_a_killed_node_began(
    db: Database, programs: Programs
) -> None:
    first, second = await programs.app(), await programs.app()
    await programs.worker(LATER, concurrency=2)
    body = document(6, 0.3)
    call = asyncio.create_task(first.put("/v1/requests/mine", json=body))
    request_id = await until_some_are(db, "mine", "done")

    first.program.send(signal.SIGKILL)
    answer = (await second.put("/v1/requests/mine", json=body)).json()

    assert (answer["status"], answer["counts"]["done"]) == ("completed", 6)
    assert {row["attempts"] for row in await segment_rows(db, request_id)} == {1}
    with pytest.raises(httpx.TransportError):
        await call
    await programs.batch()
    record = await until_settled(db, "mine")
    assert (record["segments"], record["billed"]) == (6, 1)
    assert record["input_characters"] == answer["usage"]["input_characters"]


async def test_a_request_whose_node_died_is_abandoned_and_billed_nothing(
    db: Database, programs: Programs
) -> None:
    node = await programs.app()
    await programs.worker(LATER, concurrency=2)
    sources = ["after 0.3", "after 0.3", "for ever", "for ever"]
    body = {"segments": sources, "deadline_ms": 2000}
    call = asyncio.create_task(node.put("/v1/requests/lost", json=body))
    await until_some_are(db, "lost", "done")
    node.program.send(signal.SIGKILL)
    await asyncio.gather(call, return_exceptions=True)

    await programs.batch(BATCH_GRACE_SECONDS=0.5)

    record = await until_settled(db, "lost")
    assert (record["status"], record["billed"]) == ("abandoned", 0)
    assert record["segments"] == 2
    assert await db.read("SELECT * FROM segments") == []


@pytest.fixture(params=[kind for kind in ("mariadb", "mysql") if find(kind)])
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server that this test may kill."""
    program = find(request.param)
    assert program is not None
    own = Server(program, tmp_path / "own")
    own.start()
    own.execute("CREATE DATABASE partway")
    yield own
    own.stop()


@pytest.fixture
async def own_programs(own_server: Server, tmp_path: Path) -> AsyncIterator[Programs]:
    """Programs on the server that this test may kill."""
    started = Programs(own_server.url("partway"), tmp_path)
    yield started
    await started.end()


async def test_a_database_that_is_killed_and_started_again_costs_time_and_nothing_else(
    own_server: Server, own_programs: Programs
) -> None:
    node = await own_programs.app()
    workers = [await own_programs.worker(LATER, concurrency=3) for _ in range(2)]
    batch = await own_programs.batch(BATCH_RETENTION_SECONDS=2)
    bodies = {f"id-{i}": document(12, 0.3 + i / 10) for i in range(3)}
    calls = [asyncio.create_task(node.put(f"/v1/requests/{i}", json=b)) for i, b in bodies.items()]
    async with open_database(DatabaseSettings(database_url=own_server.url("partway"))) as db:
        await until_some_are(db, "id-0", "done")

    own_server.kill()
    for program in (node.program, *workers, batch):
        await program.says("database unavailable")
    own_server.start()

    answers = [(await call).json() for call in calls]
    assert [(a["status"], a["counts"]["done"]) for a in answers] == [("completed", 12)] * 3
    async with open_database(DatabaseSettings(database_url=own_server.url("partway"))) as db:
        for answer in answers:
            record = await until_settled(db, answer["id"])
            for figure in ("segments", "input_characters", "output_characters"):
                assert record[figure] == answer["usage"][figure]
        assert len(await meter_rows(db)) == 3
        assert await db.read("SELECT * FROM segments") == []
    for program in (node.program, *workers, batch):
        assert program.said().count("database unavailable") == 1
        assert program.said().count("database available again") == 1
        assert program.said().count("Traceback") == 0


async def test_a_caller_at_whose_deadline_the_database_is_away_is_told_so_and_comes_back(
    own_server: Server, own_programs: Programs
) -> None:
    node = await own_programs.app()
    body = {**document(2, 0), "deadline_ms": 1500}
    call = asyncio.create_task(node.put("/v1/requests/again", json=body))
    async with open_database(DatabaseSettings(database_url=own_server.url("partway"))) as db:
        await until_some_are(db, "again", "pending")

    own_server.kill()
    refused = await call
    own_server.start()

    assert refused.status_code == 503
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["retry-after"]) > 0

    async def answered() -> bool:
        return (await node.put("/v1/requests/again", json=body)).status_code == 200

    await wait_until(answered, "the answer of the request that went on")


async def test_a_caller_can_come_back_after_a_database_that_was_away_beyond_the_grace(
    own_server: Server, own_programs: Programs
) -> None:
    grace_seconds = 3
    node = await own_programs.app()
    batch = await own_programs.batch(BATCH_GRACE_SECONDS=grace_seconds, BATCH_RETENTION_SECONDS=60)
    body = {**document(2, 0), "deadline_ms": 1500}
    call = asyncio.create_task(node.put("/v1/requests/again", json=body))
    async with open_database(DatabaseSettings(database_url=own_server.url("partway"))) as db:
        await until_some_are(db, "again", "pending")

    own_server.kill()
    assert (await call).status_code == 503
    # The deadline has passed; when the server is back, so has the grace.
    await asyncio.sleep(grace_seconds)
    own_server.start()
    await batch.says("database available again")

    async def answered() -> dict[str, Any] | None:
        answer = await node.put("/v1/requests/again", json=body)
        return answer.json() if answer.status_code == 200 else None

    answer = await wait_until(answered, "the answer of the request that went on")
    assert answer["status"] == "partial"
    assert answer["usage"]["billed"]


async def test_a_worker_cut_off_for_longer_than_its_lease_stops_its_handlers_and_resumes(
    own_server: Server, own_programs: Programs
) -> None:
    url = DatabaseSettings(database_url=own_server.url("partway"))
    node = await own_programs.app()
    worker = await own_programs.worker(
        LATER, concurrency=2, WORKER_LEASE_SECONDS=3, WORKER_BACKOFF_SECONDS=0.5
    )
    body = {"segments": ["for ever", "short"], "deadline_ms": 50_000}
    call = asyncio.create_task(node.put("/v1/requests/mine", json=body))
    async with open_database(url) as db:
        request_id = await until_some_are(db, "mine", "done")
        # For the next attempt, which may begin as soon as the server is there again.
        await db.write("UPDATE segments SET source = 'short too' WHERE index_no = 0")

    own_server.kill()
    await worker.says("lease not renewed in time, handler stopped")
    own_server.start()

    async with open_database(url) as db:
        answer = (await call).json()
        assert answer["status"] == "completed"
        assert [row["attempts"] for row in await segment_rows(db, request_id)] == [2, 1]


async def test_a_worker_that_is_told_to_stop_while_its_database_is_away_ends_in_order(
    own_server: Server, own_programs: Programs
) -> None:
    node = await own_programs.app()
    worker = await own_programs.worker(LATER, concurrency=1, WORKER_GRACE_SECONDS=0)
    body = {"segments": ["for ever"], "deadline_ms": 50_000}
    call = asyncio.create_task(node.put("/v1/requests/mine", json=body))
    async with open_database(DatabaseSettings(database_url=own_server.url("partway"))) as db:
        await until_some_are(db, "mine", "processing")

    own_server.kill()
    worker.send(signal.SIGTERM)

    assert await worker.ended() == 0
    assert "Traceback" not in worker.said()
    call.cancel()
