"""A program that is stopped and goes on later, as a machine does that sleeps, changes no answer."""

import asyncio
import signal
from typing import Any

from partway.store.database import Database
from tests.actions import (
    Client,
    Program,
    Programs,
    arrived,
    meter_rows,
    request_row,
    segment_rows,
    statuses,
    wait_until,
    worked,
)
from tests.app.test_http_api import REQUESTS

LATER = "tests.told_handlers:told_later"
MINE = f"{REQUESTS}/mine"


async def until_settled(db: Database) -> dict[str, Any]:
    """The one record, once it is there."""

    async def metered() -> bool:
        return bool(await meter_rows(db))

    await wait_until(metered, "the settlement")
    (record,) = await meter_rows(db)
    return record


async def until_all_run(db: Database, request_id: int) -> None:
    """Come back once every segment of a request is claimed."""

    async def all_run() -> bool:
        return set(await statuses(db, request_id)) == {"processing"}

    await wait_until(all_run, "every segment to run")


async def frozen_past_its_lease(programs: Programs) -> Program:
    """A worker with short leases, soon to be stopped."""
    return await programs.worker(
        LATER, concurrency=2, WORKER_LEASE_SECONDS=2, WORKER_BACKOFF_SECONDS=0.5
    )


async def test_a_worker_that_slept_past_its_lease_writes_nothing(
    db: Database, programs: Programs
) -> None:
    node = await programs.app()
    asleep = await frozen_past_its_lease(programs)
    body = {"segments": ["after 1 a", "after 1 b"], "deadline_ms": 50_000}
    call = asyncio.create_task(node.put(MINE, json=body))
    request = await arrived(db, "mine")
    await until_all_run(db, request.id)

    asleep.send(signal.SIGSTOP)
    await frozen_past_its_lease(programs)
    answer = (await call).json()
    before = await segment_rows(db, request.id)
    asleep.send(signal.SIGCONT)
    # Lost, or not renewed in time: whichever it notices first.
    await asleep.says("lease ")

    assert [row["attempts"] for row in before] == [2, 2]
    assert await segment_rows(db, request.id) == before
    await programs.batch()
    record = await until_settled(db)
    assert (answer["status"], record["segments"]) == ("completed", 2)
    assert record["output_characters"] == answer["usage"]["output_characters"]


async def stopped_with_a_call(db: Database, node: Client, deadline_ms: int) -> "asyncio.Task[Any]":
    """The open call of a node that was stopped when half of its request was done."""
    body = {"document": "One. Two.", "deadline_ms": deadline_ms}
    call = asyncio.create_task(node.put(MINE, json=body))
    await worked(db, (await arrived(db, "mine")).id, 1)
    node.program.send(signal.SIGSTOP)
    return call


async def test_a_node_that_slept_gives_its_caller_the_answer_that_another_gave(
    db: Database, programs: Programs
) -> None:
    asleep, awake = await programs.app(), await programs.app()
    call = await stopped_with_a_call(db, asleep, 50_000)

    again = asyncio.create_task(
        awake.put(MINE, json={"document": "One. Two.", "deadline_ms": 50_000})
    )
    await worked(db, (await arrived(db, "mine")).id, 1)
    answer = await again
    asleep.program.send(signal.SIGCONT)

    assert answer.json()["status"] == "completed"
    assert (await call).content == answer.content


async def test_a_node_that_slept_past_the_grace_says_that_nothing_is_billed(
    db: Database, programs: Programs
) -> None:
    node = await programs.app()
    call = await stopped_with_a_call(db, node, 1000)
    request = await arrived(db, "mine")
    await programs.batch(BATCH_GRACE_SECONDS=0.1, BATCH_RETENTION_SECONDS=3600)

    async def is_abandoned() -> bool:
        row = await request_row(db, request.id)
        return row is not None and row["status"] == "abandoned"

    await wait_until(is_abandoned, "the batch to close it")
    node.program.send(signal.SIGCONT)

    answer = (await call).json()
    assert (answer["status"], answer["usage"]["billed"]) == ("abandoned", False)
    assert answer["counts"]["done"] == 1


async def test_a_batch_that_sleeps_holds_up_no_other_batch(
    db: Database, programs: Programs
) -> None:
    asleep = await programs.batch()
    asleep.send(signal.SIGSTOP)
    node = await programs.app()
    answer = (await node.put(MINE, json={"document": " ", "deadline_ms": 1000})).json()

    await programs.batch()

    assert (await until_settled(db))["public_id"] == answer["id"]
    asleep.send(signal.SIGCONT)
    asleep.send(signal.SIGTERM)
    assert await asleep.ended() == 0
