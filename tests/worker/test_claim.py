"""Exclusive takeout: one holder for a segment, no claim waits for another, none starts too late."""

from contextlib import AsyncExitStack

import pytest

from partway.store.close import close
from partway.store.database import Database
from partway.worker.lease import claim, fail, give_back
from tests.actions import (
    claimed,
    exchanged,
    expire,
    pass_time,
    request_row,
    segment_rows,
    statuses,
    submitted,
    written,
)

pytestmark = pytest.mark.snapshot_isolation


async def open_claim(
    stack: AsyncExitStack, db: Database, request_id: int, count: int = 1
) -> list[int]:
    """The segments of a claim whose transaction stays open until the stack is left."""
    cursor = await stack.enter_async_context(db.transaction())
    leases, _ = await claim(cursor, request_id, count, bytes(16), "held open", 10, 3)
    return [lease.index_no for lease in leases]


async def test_a_hundred_open_claims_take_a_hundred_segments(db: Database) -> None:
    request_id, _ = await submitted(db, 100)

    async with AsyncExitStack() as stack:
        taken = [await open_claim(stack, db, request_id) for _ in range(100)]

    assert sorted(taken) == [[i] for i in range(100)]


@pytest.mark.parametrize("requests", [1, 2, 50])
async def test_open_claims_do_not_hide_work_however_many_requests_there_are(
    db: Database, requests: int
) -> None:
    """A plan that starts from `requests`, or sorts, locks every candidate (pitfalls L1 and L2)."""
    numbers = [(await submitted(db, 20))[0] for _ in range(requests)]
    await db.read("ANALYZE TABLE segments, requests")

    async with AsyncExitStack() as stack:
        taken = [await open_claim(stack, db, numbers[0]) for _ in range(10)]

    assert taken == [[i] for i in range(10)]


async def test_an_open_claim_delays_neither_a_cancel_nor_the_next_claim(db: Database) -> None:
    """The pool gives a lock wait of a second: a wait would raise, or find nothing."""
    request_id, _ = await submitted(db, 3)

    async with AsyncExitStack() as stack:
        await open_claim(stack, db, request_id)
        # One statement, without the retry that would hide a lock wait.
        async with db.transaction() as cursor:
            await cursor.execute(
                "SELECT 1 FROM requests WHERE id = %s FOR UPDATE NOWAIT", (request_id,)
            )
        assert [lease.index_no for lease in await claimed(db, request_id)] == [1]
        assert await close(db, request_id, "cancelled")

    row = await request_row(db, request_id)
    assert row is not None
    assert row["outcome"] == "prp"


async def test_a_claim_takes_the_first_free_segments_in_order_and_no_more_than_asked(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 5)

    assert [lease.index_no for lease in await claimed(db, request_id, 2)] == [0, 1]
    assert [lease.index_no for lease in await claimed(db, request_id, 2)] == [2, 3]
    assert [lease.index_no for lease in await claimed(db, request_id, 2)] == [4]
    assert await claimed(db, request_id, 2) == []


async def test_a_claim_hands_out_source_attempt_and_a_fresh_token(db: Database) -> None:
    request_id, _ = await submitted(db, ["ein Satz", "noch einer"])

    first, second = await claimed(db, request_id, 2)
    await expire(db, request_id)
    again = await claimed(db, request_id)

    assert (first.source, second.source) == ("ein Satz", "noch einer")
    assert (first.attempt, again[0].attempt) == (1, 2)
    assert again[0].token != first.token
    assert len(first.token) == 16


async def test_a_live_lease_is_not_claimed_and_an_expired_one_is(db: Database) -> None:
    request_id, _ = await submitted(db, 1)
    await claimed(db, request_id)

    assert await claimed(db, request_id) == []
    await expire(db, request_id)
    assert [lease.index_no for lease in await claimed(db, request_id)] == [0]


async def test_done_and_failed_segments_are_never_claimed_again(db: Database) -> None:
    request_id, _ = await submitted(db, 2)
    done, failed = await claimed(db, request_id, 2)
    await written(db, done)
    assert await fail(db, failed, "no", 0, 0)
    await expire(db, request_id)

    assert await claimed(db, request_id, 2) == []
    assert await statuses(db, request_id) == ["done", "failed"]


@pytest.mark.parametrize("status", ["completed", "cancelled", "abandoned"])
async def test_nothing_is_claimed_in_a_closed_request(db: Database, status: str) -> None:
    request_id, _ = await submitted(db, 2)
    await claimed(db, request_id)
    assert await close(db, request_id, status)  # type: ignore[arg-type] # parametrize gives str
    await expire(db, request_id)

    assert await claimed(db, request_id, 2) == []


async def test_nothing_is_claimed_past_the_deadline(db: Database) -> None:
    request_id, _ = await submitted(db, 2, deadline_ms=10_000)
    await claimed(db, request_id)
    await expire(db, request_id)
    await pass_time(db, request_id, 11)

    assert await claimed(db, request_id, 2) == []


async def test_a_segment_given_back_is_claimable_at_once_and_its_attempt_not_counted(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 1)
    (lease,) = await claimed(db, request_id)

    assert await give_back(db, lease)

    (row,) = await segment_rows(db, request_id)
    assert (row["status"], row["attempts"], row["lease_token"]) == ("pending", 0, None)
    (again,) = await claimed(db, request_id)
    assert again.attempt == 1


async def test_a_failed_attempt_waits_for_its_turn(db: Database) -> None:
    request_id, _ = await submitted(db, 1)
    (lease,) = await claimed(db, request_id)

    assert await fail(db, lease, "try later", 60, 3)
    assert await claimed(db, request_id) == []
    await db.write("UPDATE segments SET lease_until = NOW(6) - INTERVAL 1 SECOND")
    (again,) = await claimed(db, request_id)

    assert again.attempt == 2


async def test_a_segment_fails_with_the_last_reason_at_max_attempts(db: Database) -> None:
    request_id, _ = await submitted(db, 1)
    for attempt in (1, 2, 3):
        (lease,) = await claimed(db, request_id)
        assert await fail(db, lease, f"reason {attempt}", 0, 3)

    (row,) = await segment_rows(db, request_id)
    assert (row["status"], row["error"], row["attempts"]) == ("failed", "reason 3", 3)


async def test_a_segment_that_kills_its_worker_is_counted_at_the_claim_and_given_up(
    db: Database,
) -> None:
    """Nobody reports a failure: the attempts rise in the claim, or it would be claimed for ever."""
    request_id, _ = await submitted(db, 2)
    for _ in range(3):
        assert len(await claimed(db, request_id)) == 1
        await expire(db, request_id)

    brought = await exchanged(db, [], request_id, 2)

    assert [lease.index_no for lease in brought.claimed] == [1]
    assert brought.exhausted == 1
    first, second = await segment_rows(db, request_id)
    assert (first["status"], second["status"]) == ("failed", "processing")
    assert "3 attempts" in first["error"]


async def test_attempts_at_the_end_of_their_column_fail_that_segment_only(db: Database) -> None:
    """Pitfall L16: a counter that overflows must not block the rest."""
    request_id, _ = await submitted(db, 2)
    await db.write("UPDATE segments SET attempts = 65535 WHERE index_no = 0")

    brought = await exchanged(db, [], request_id, 2)

    assert [lease.index_no for lease in brought.claimed] == [1]
    assert await statuses(db, request_id) == ["failed", "processing"]


async def test_the_rows_of_other_requests_are_never_locked(db: Database) -> None:
    first, _ = await submitted(db, 3)
    second, _ = await submitted(db, 3)

    async with AsyncExitStack() as stack:
        await open_claim(stack, db, first, 3)
        assert len(await claimed(db, second, 3)) == 3
        third, _ = await submitted(db, 3)
        assert len(await claimed(db, third, 3)) == 3
