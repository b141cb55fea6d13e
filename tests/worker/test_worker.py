"""Real workers: they claim, compute and write back, and whatever ends them, the segments go on."""

import asyncio
import signal
from collections import Counter
from typing import Any

import pytest

from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database
from partway.worker.compute import Compute
from partway.worker.settings import WorkerSettings
from partway.worker.slots import Slots
from tests.actions import (
    Programs,
    answer_of,
    claimed,
    frozen,
    segment_rows,
    statuses,
    submitted,
    wait_until,
)

TOLD = "tests.told_handlers:told"
LATER = "tests.told_handlers:told_later"


async def until_done(db: Database, request_id: int, count: int, seconds: float = 30) -> None:
    """Come back when so many segments are done or failed."""

    async def finished() -> bool:
        said = Counter(await statuses(db, request_id))
        return said["done"] + said["failed"] >= count

    await wait_until(finished, f"{count} finished segments", seconds)


async def until_running(db: Database, request_id: int, count: int) -> None:
    """Come back when so many segments are leased."""

    async def running() -> bool:
        return Counter(await statuses(db, request_id))["processing"] == count

    await wait_until(running, f"{count} running segments")


async def test_a_worker_computes_every_segment_once(db: Database, programs: Programs) -> None:
    request_id, public_id = await submitted(db, ["one", "two", "three"], params='{"a": "\\u00f1"}')
    await programs.worker(TOLD, concurrency=2)

    await until_done(db, request_id, 3)

    rows = await segment_rows(db, request_id)
    assert [row["result"] for row in rows] == ["ONE", "TWO", "THREE"]
    assert [row["attempts"] for row in rows] == [1, 1, 1]
    assert (await answer_of(db, public_id)).status == "running"


async def test_a_segment_whose_worker_is_killed_comes_back_after_its_lease(
    db: Database, programs: Programs
) -> None:
    request_id, _ = await submitted(db, ["for ever"])
    first = await programs.worker(LATER, WORKER_LEASE_SECONDS=2, WORKER_BACKOFF_SECONDS=0.5)
    await until_running(db, request_id, 1)
    first.send(signal.SIGKILL)
    await db.write("UPDATE segments SET source = 'short'")
    second = await programs.worker(LATER, WORKER_LEASE_SECONDS=2, WORKER_BACKOFF_SECONDS=0.5)

    await until_done(db, request_id, 1)

    (row,) = await segment_rows(db, request_id)
    assert (row["status"], row["attempts"]) == ("done", 2)
    assert row["owner_id"].endswith(str(second.process.pid))


async def test_a_handler_that_kills_its_process_fails_alone_after_three_attempts(
    db: Database, programs: Programs
) -> None:
    sources = [f"text {i}" for i in range(100)]
    sources[7] = "kill"
    request_id, _ = await submitted(db, sources)
    await programs.worker(TOLD, concurrency=4, WORKER_RETRY_SECONDS=0.1)

    await until_done(db, request_id, 100)

    rows = await segment_rows(db, request_id)
    assert Counter(row["status"] for row in rows) == {"done": 99, "failed": 1}
    assert (rows[7]["status"], rows[7]["attempts"]) == ("failed", 3)
    assert "signal 9" in rows[7]["error"]
    assert {row["attempts"] for row in rows if row["index_no"] != 7} == {1}


async def test_failures_retries_and_rejections_are_recorded_with_their_reasons(
    db: Database, programs: Programs
) -> None:
    request_id, _ = await submitted(db, ["fail now", "reject it", "retry once", "well"])
    await programs.worker(TOLD, concurrency=4, WORKER_RETRY_SECONDS=0.1)

    await until_done(db, request_id, 4)

    rows = await segment_rows(db, request_id)
    assert [row["status"] for row in rows] == ["failed", "failed", "done", "done"]
    assert [row["attempts"] for row in rows] == [3, 1, 2, 1]
    assert "told to fail" in rows[0]["error"]
    assert "told to reject" in rows[1]["error"]


async def test_a_worker_told_to_stop_finishes_what_runs_and_claims_nothing_more(
    db: Database, programs: Programs
) -> None:
    request_id, _ = await submitted(db, ["after 2", "after 2", "after 2 too"])
    worker = await programs.worker(LATER, concurrency=2)
    await until_running(db, request_id, 2)

    worker.send(signal.SIGTERM)

    assert await worker.ended() == 0
    rows = await segment_rows(db, request_id)
    assert [row["status"] for row in rows] == ["done", "done", "pending"]
    assert rows[2]["attempts"] == 0


async def test_what_runs_beyond_the_grace_is_given_back_and_its_attempt_not_counted(
    db: Database, programs: Programs
) -> None:
    request_id, _ = await submitted(db, ["for ever", "for ever and ever"])
    worker = await programs.worker(LATER, concurrency=2, WORKER_GRACE_SECONDS=0)
    await until_running(db, request_id, 2)

    worker.send(signal.SIGTERM)

    assert await worker.ended() == 0
    rows = await segment_rows(db, request_id)
    assert [(row["status"], row["attempts"]) for row in rows] == [("pending", 0)] * 2
    assert len(await claimed(db, request_id, 2)) == 2


async def test_a_handler_that_burns_the_processor_keeps_its_lease(
    db: Database, programs: Programs
) -> None:
    """Three leases long, on every core: renewal must come from where compute cannot starve it."""
    request_id, _ = await submitted(db, ["burn 6", "burn 6"])
    await programs.worker(TOLD, 2, WORKER_LEASE_SECONDS=2, WORKER_BACKOFF_SECONDS=0.2)
    await programs.worker(TOLD, 2, WORKER_LEASE_SECONDS=2, WORKER_BACKOFF_SECONDS=0.2)

    await until_done(db, request_id, 2)

    rows = await segment_rows(db, request_id)
    assert [(row["status"], row["attempts"]) for row in rows] == [("done", 1)] * 2


async def test_a_handler_is_ended_at_the_deadline_and_its_slot_claims_again(
    db: Database, programs: Programs
) -> None:
    # The worker first: it may take longer to start than the request has.
    await programs.worker(LATER, concurrency=1)
    late, late_id = await submitted(db, ["for ever"], deadline_ms=1500)
    await until_running(db, late, 1)
    next_one, _ = await submitted(db, ["short", "short", "short"])

    await until_done(db, next_one, 3)

    await close(db, late, "completed")
    answer = await answer_of(db, late_id)
    assert answer.segments[0].status == "timed_out"
    assert answer.usage.segments == 0


async def test_a_handler_over_its_time_limit_is_a_failed_attempt(
    db: Database, programs: Programs
) -> None:
    request_id, _ = await submitted(db, ["for ever", "short"])
    await programs.worker(
        LATER, 2, WORKER_TIME_LIMIT_SECONDS=0.3, WORKER_MAX_ATTEMPTS=2, WORKER_RETRY_SECONDS=0
    )

    await until_done(db, request_id, 2)

    first, second = await segment_rows(db, request_id)
    assert (first["status"], first["attempts"], second["status"]) == ("failed", 2, "done")
    assert "time limit" in first["error"]


async def test_a_lost_lease_stops_the_handler_and_frees_its_slot(
    db: Database, programs: Programs
) -> None:
    request_id, _ = await submitted(db, ["for ever", "short"])
    worker = await programs.worker(LATER, 1, WORKER_LEASE_SECONDS=2, WORKER_BACKOFF_SECONDS=0.2)
    await until_running(db, request_id, 1)
    # Somebody else has claimed it: another token, a live lease.
    await db.write(
        "UPDATE segments SET lease_token = %s, owner_id = 'thief' WHERE index_no = 0", (bytes(16),)
    )

    await until_done(db, request_id, 1)

    assert "lease lost, handler stopped" in worker.said()
    assert (await segment_rows(db, request_id))[0]["owner_id"] == "thief"


async def test_no_process_ever_holds_more_segments_than_it_has_slots(
    db: Database, programs: Programs
) -> None:
    request_id, _ = await submitted(db, [f"after 0.02 {i}" for i in range(200)])
    most = 0

    async def finished() -> bool:
        nonlocal most
        said = Counter(await statuses(db, request_id))
        most = max(most, said["processing"])
        return said["done"] == 200

    await programs.worker(LATER, concurrency=5)
    await wait_until(finished, "200 done segments")

    assert 0 < most <= 5


async def test_a_small_request_passes_a_large_one(db: Database, programs: Programs) -> None:
    """Counted, not timed: the large one gets little until the small one is whole."""
    large, _ = await submitted(db, [f"after 0.1 {i}" for i in range(1000)])
    await programs.worker(LATER, concurrency=16)
    await until_done(db, large, 16)
    before = Counter(await statuses(db, large))
    small, _ = await submitted(db, [f"after 0.1 {i}" for i in range(20)])

    await until_done(db, small, 20)

    after = Counter(await statuses(db, large))
    begun = (after["done"] + after["processing"]) - (before["done"] + before["processing"])
    # What ran when it came, a list that was 250 ms old, and the last round's free slots.
    assert begun <= 16 * 5
    assert after["pending"] > 500


async def test_stragglers_of_a_cancelled_request_finish_and_nothing_else_begins(
    db: Database, programs: Programs
) -> None:
    request_id, public_id = await submitted(db, ["after 1", "after 1", "after 1", "after 1"])
    await programs.worker(LATER, concurrency=2)
    await until_running(db, request_id, 2)

    await close(db, request_id, "cancelled")
    await until_done(db, request_id, 2)
    await until_running(db, request_id, 0)

    assert await statuses(db, request_id) == ["done", "done", "pending", "pending"]
    answer = await answer_of(db, public_id)
    assert [s.status for s in answer.segments] == ["done", "done", "cancelled", "cancelled"]
    assert answer.usage.final


async def test_workers_side_by_side_compute_each_segment_once(
    db: Database, programs: Programs
) -> None:
    numbers = [(await submitted(db, [f"after 0.01 {i}" for i in range(50)]))[0] for _ in range(4)]
    for _ in range(4):
        await programs.worker(LATER, concurrency=4)

    for number in numbers:
        await until_done(db, number, 50)

    for number in numbers:
        rows = await segment_rows(db, number)
        assert {(row["status"], row["attempts"]) for row in rows} == {("done", 1)}


async def test_a_frozen_client_on_one_row_stops_no_worker(
    db: Database, programs: Programs, url: str
) -> None:
    request_id, _ = await submitted(db, [f"after 0.5 {i}" for i in range(12)])
    lock = "SELECT * FROM segments WHERE request_id = %s AND index_no = 1 FOR UPDATE"
    await programs.worker(LATER, concurrency=4)
    await until_running(db, request_id, 4)

    async with frozen(url, (lock, (request_id,))):
        await until_done(db, request_id, 11)
        assert (await statuses(db, request_id))[1] == "processing"

    await until_done(db, request_id, 12)
    assert {row["attempts"] for row in await segment_rows(db, request_id)} == {1}


async def test_a_settled_request_costs_a_worker_its_result_and_nothing_more(
    db: Database, programs: Programs
) -> None:
    request_id, _ = await submitted(db, ["after 1"])
    worker = await programs.worker(LATER, concurrency=1)
    await until_running(db, request_id, 1)
    await close(db, request_id, "completed")
    assert await settle(db, request_id, 0) == "settled"
    next_one, _ = await submitted(db, ["short"])

    await until_done(db, next_one, 1)

    assert worker.process.poll() is None
    await worker.says("lease lost")


async def test_at_twice_the_load_nearly_all_that_is_begun_is_delivered(
    db: Database, programs: Programs
) -> None:
    """Counted, not timed. Deadline order would begin what expires."""
    node = await programs.app()
    await programs.worker(LATER, concurrency=8)
    # Eight slots do 26 such segments a second; about twice as many come in, small and large.
    calls = []
    for size in [4, 4, 10, 4, 30, 4, 10, 4, 4, 10] * 4:
        body = {"segments": [f"after 0.3 {i}" for i in range(size)], "deadline_ms": 4000}
        calls.append(asyncio.create_task(node.post("/v1/requests", json=body)))
        await asyncio.wait(calls[:1], timeout=0.16)

    answers = [(await call).json() for call in calls]

    delivered = sum(answer["counts"]["done"] for answer in answers)
    (row,) = await db.read("SELECT CAST(SUM(attempts) AS UNSIGNED) AS begun FROM segments")
    assert sum(answer["counts"]["timed_out"] for answer in answers) > 100, "no overload"
    assert delivered >= 0.9 * row["begun"]


@pytest.mark.parametrize("handler", ["nowhere:at_all", "tests.told_handlers:nobody", "told"])
async def test_a_worker_whose_handler_cannot_be_used_says_so_in_one_line_and_ends(
    programs: Programs, handler: str
) -> None:
    worker = programs.start("worker", "--handler", handler)

    assert await worker.ended() == 1
    assert worker.said().startswith("worker: handler ")
    assert repr(handler) in worker.said()
    assert worker.said().count("\n") == 1


class LateReply(Database):
    """A database whose reply to an exchange comes only when the gate is opened."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.committed = asyncio.Event()
        self.gate = asyncio.Event()
        self.transaction = db.transaction  # type: ignore[method-assign] # the same, whoever asks
        self.read = db.read  # type: ignore[method-assign]
        self.write = db.write  # type: ignore[method-assign]

    async def retry(self, run: Any, only_reads: bool = False) -> Any:
        """What the exchange brought, late."""
        brought = await self.db.retry(run, only_reads)
        self.committed.set()
        await self.gate.wait()
        return brought


async def test_a_claim_whose_reply_is_on_its_way_at_the_stop_is_given_back(db: Database) -> None:
    """Committed, and not yet known here: it must not wait for its lease to run out."""
    request_id, _ = await submitted(db, ["for ever"])
    compute = Compute(LATER, 1, 60, 1000)
    await compute.start()
    try:
        late = LateReply(db)
        slots = Slots(late, compute, WorkerSettings(handler=LATER))
        stepping = asyncio.create_task(slots.step())
        await asyncio.wait_for(late.committed.wait(), 30)

        draining = asyncio.create_task(slots.drain(0))
        await asyncio.wait([draining], timeout=0.1)
        late.gate.set()
        await asyncio.wait_for(draining, 30)
        await stepping

        assert await statuses(db, request_id) == ["pending"]
    finally:
        await compute.close()
