"""What a claim, a poll and a settlement cost is counted from the server's own counters."""

import aiomysql
import pytest

from partway.app.requests.answer import NEWLY_FINISHED, NO_INDEX
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database, expand_lists
from partway.worker.lease import claim
from tests.actions import claimed, meter_rows, submitted

pytestmark = pytest.mark.fresh_tables

# 100 rows of the request, and what the counters of both servers add for the two tables.
ROWS_PER_REQUEST = 130


async def rows_read(cursor: aiomysql.DictCursor) -> int:
    """How many rows this session has read, by whatever access."""
    await cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(row["Value"]) for row in await cursor.fetchall())


async def overhead(cursor: aiomysql.DictCursor) -> int:
    """What asking for the counters adds to them."""
    before = await rows_read(cursor)
    return await rows_read(cursor) - before


async def cost_of_a_claim(db: Database, request_id: int, first_index: int = 0) -> int:
    """The rows that one claim reads."""
    async with db.transaction() as cursor:
        asking = await overhead(cursor)
        before = await rows_read(cursor)
        leases, _ = await claim(cursor, request_id, 1, bytes(16), "counter", 10, 3, first_index)
        cost = await rows_read(cursor) - before - asking
    assert len(leases) == 1
    return cost


async def cost_of_a_poll(db: Database, request_id: int) -> int:
    """The rows that one look of a waiting call reads."""
    async with db.transaction() as cursor:
        asking = await overhead(cursor)
        before = await rows_read(cursor)
        await cursor.execute(expand_lists(NEWLY_FINISHED, 1), (NO_INDEX, request_id))
        await cursor.fetchall()
        return await rows_read(cursor) - before - asking


@pytest.mark.snapshot_isolation
async def test_without_a_batch_everything_flows_at_the_same_cost_and_a_batch_empties_it_all(
    db: Database,
) -> None:
    first, _ = await submitted(db, 100)
    alone = await cost_of_a_claim(db, first), await cost_of_a_poll(db, first)

    for turn in range(200):
        number, _ = await submitted(db, 100)
        await claimed(db, number, 3)
        await close(db, number, "cancelled" if turn % 2 else "completed")
    live, _ = await submitted(db, 100)
    beside = await cost_of_a_claim(db, live), await cost_of_a_poll(db, live)

    assert beside[0] <= alone[0] <= 10
    assert beside[1] <= alone[1] + 1
    assert alone[1] <= ROWS_PER_REQUEST

    await close(db, first, "cancelled")
    await close(db, live, "cancelled")
    await db.write("UPDATE segments SET lease_until = NOW(6) - INTERVAL 1 SECOND")
    for row in await db.read("SELECT id FROM requests"):
        assert await settle(db, row["id"], 0) == "settled"
    assert len(await meter_rows(db)) == 202
    assert await db.read("SELECT * FROM requests") == []
    assert await db.read("SELECT * FROM segments LIMIT 1") == []


async def test_a_claim_reads_no_further_than_the_rows_before_it_in_its_request(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 1000)
    for _ in range(10):
        await submitted(db, 100)
    leases = await claimed(db, request_id, 50)

    assert len(leases) == 50
    assert await cost_of_a_claim(db, request_id) <= 50 + 10


async def test_a_claim_far_inside_a_large_request_reads_no_further_back_than_it_is_told(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 1000)
    await claimed(db, request_id, 950)

    assert await cost_of_a_claim(db, request_id, 900) <= 50 + 10
