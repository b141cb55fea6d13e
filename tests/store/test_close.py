"""The answer is fixed by the close: one statement that waits for nobody and is final."""

import asyncio

import pytest
from pymysql.err import MySQLError

from partway.store.close import close
from partway.store.database import Database
from partway.worker.lease import CLAIM, LEASE, fail
from tests.actions import (
    answer_of,
    claimed,
    frozen,
    request_row,
    segment_rows,
    statuses,
    submitted,
    written,
)

pytestmark = pytest.mark.snapshot_isolation


async def test_the_close_writes_a_letter_for_each_segment(db: Database) -> None:
    request_id, _ = await submitted(db, 4)
    done, failed, _ = await claimed(db, request_id, 3)
    await written(db, done)
    await fail(db, failed, "no", 0, 0)
    rows = await segment_rows(db, request_id)

    assert await close(db, request_id, "completed")

    row = await request_row(db, request_id)
    assert row is not None
    assert (row["status"], row["outcome"]) == ("completed", "dfrp")
    assert row["closed_at"] is not None
    assert await segment_rows(db, request_id) == rows


async def test_only_the_first_close_counts(db: Database) -> None:
    request_id, _ = await submitted(db, 1)
    (lease,) = await claimed(db, request_id)
    assert await close(db, request_id, "cancelled")
    before = await request_row(db, request_id)
    await written(db, lease)

    assert not await close(db, request_id, "completed")
    assert not await close(db, request_id, "abandoned")

    assert await request_row(db, request_id) == before


async def test_of_many_closes_at_once_one_wins_and_all_read_the_same(db: Database) -> None:
    request_id, public_id = await submitted(db, 10)

    won = await asyncio.gather(
        *(close(db, request_id, "completed") for _ in range(5)),
        *(close(db, request_id, "cancelled") for _ in range(5)),
    )

    assert won.count(True) == 1
    answers = await asyncio.gather(*(answer_of(db, public_id) for _ in range(5)))
    assert all(answer == answers[0] for answer in answers)


async def test_a_claim_that_is_frozen_in_mid_transaction_delays_no_close(
    db: Database, url: str
) -> None:
    """Law 10: no segment is locked by the close, so the answer is in time beside any client."""
    request_id, public_id = await submitted(db, 3)
    await claimed(db, request_id)

    async with frozen(
        url,
        (CLAIM, (request_id, 0, 1)),
        (LEASE.replace("(...)", "(%s)"), (bytes(16).hex(), "frozen", 10_000_000, request_id, 1)),
    ) as client:
        assert await close(db, request_id, "completed")
        before = await answer_of(db, public_id)
        await client.connection.commit()

    assert await answer_of(db, public_id) == before
    assert [segment.status for segment in before.segments] == ["timed_out"] * 3
    assert await statuses(db, request_id) == ["processing", "processing", "pending"]


async def test_a_frozen_client_on_another_request_delays_no_close(db: Database, url: str) -> None:
    """On tables of one to three rows the planner scans; what it scans must not stay locked."""
    first, _ = await submitted(db, 1)
    second, _ = await submitted(db, 1)

    async with frozen(url, (CLAIM, (first, 0, 1))):
        assert await close(db, second, "completed")


async def test_the_outcome_of_many_segments_is_whole(db: Database) -> None:
    """MySQL would cut it at 1,024 letters."""
    request_id, _ = await submitted(db, 1500)

    assert await close(db, request_id, "completed")

    row = await request_row(db, request_id)
    assert row is not None
    assert row["outcome"] == "p" * 1500


async def test_a_request_without_segments_can_be_closed(db: Database) -> None:
    request_id, public_id = await submitted(db, [])

    assert await close(db, request_id, "completed")

    answer = await answer_of(db, public_id)
    assert (answer.status, answer.counts.total) == ("completed", 0)


async def test_the_table_refuses_a_close_without_an_outcome_and_a_success_without_a_result(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 1)

    for statement in (
        "UPDATE requests SET status = 'completed' WHERE id = %s",
        "UPDATE requests SET status = 'completed', outcome = 'dd' WHERE id = %s",
        "UPDATE requests SET outcome = 'd' WHERE id = %s",
        "UPDATE segments SET status = 'done' WHERE request_id = %s",
    ):
        with pytest.raises(MySQLError):
            await db.write(statement, (request_id,))
