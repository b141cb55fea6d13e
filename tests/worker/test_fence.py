"""A write with a stale token changes nothing, and one row in strange hands holds up no other."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database
from partway.worker.lease import Lease, Ready, fail, give_back, renew
from tests.actions import (
    answer_of,
    claimed,
    exchanged,
    expire,
    frozen,
    meter_rows,
    pass_time,
    segment_rows,
    somebody_waits_for_a_lock,
    statuses,
    submitted,
    written,
)
from tests.conftest import AnyServer

pytestmark = pytest.mark.snapshot_isolation


async def write_stale(db: Database, lease: Lease) -> bool:
    return not await written(db, lease)


async def renew_stale(db: Database, lease: Lease) -> bool:
    return not await renew(db, [lease], 10)


async def fail_stale(db: Database, lease: Lease) -> bool:
    return await fail(db, lease, "stale", 0, 3)


Write = Callable[[Database, Lease], Awaitable[bool]]
EVERY_WRITE = [write_stale, renew_stale, fail_stale, give_back]


@pytest.mark.parametrize("write", EVERY_WRITE)
async def test_a_stale_token_changes_nothing(db: Database, write: Write) -> None:
    """Even by the same worker under the same name: the token is fresh at every claim (F1)."""
    request_id, _ = await submitted(db, 1)
    (stale,) = await claimed(db, request_id)
    await expire(db, request_id)
    (fresh,) = await claimed(db, request_id)
    before = await segment_rows(db, request_id)

    assert not await write(db, stale)

    assert await segment_rows(db, request_id) == before
    assert await written(db, fresh) == []


@pytest.mark.parametrize("write", EVERY_WRITE)
@pytest.mark.parametrize("end", ["done", "failed", "given back"])
async def test_a_token_changes_nothing_once_its_attempt_is_over(
    db: Database, write: Write, end: str
) -> None:
    """The token stays on a done row, so the fence needs the status as well."""
    request_id, _ = await submitted(db, 1)
    (lease,) = await claimed(db, request_id)
    if end == "done":
        await written(db, lease, result="the first")
    elif end == "failed":
        await fail(db, lease, "the first", 0, 0)
    else:
        await give_back(db, lease)
    before = await segment_rows(db, request_id)

    accepted = await write(db, lease)

    assert await segment_rows(db, request_id) == before
    # Only a repeated write-back finds its own row, and is told that it is not lost.
    assert accepted == (end == "done" and write is write_stale)


@pytest.mark.parametrize("write", EVERY_WRITE)
async def test_a_write_after_settlement_changes_nothing(db: Database, write: Write) -> None:
    request_id, public_id = await submitted(db, 1)
    (lease,) = await claimed(db, request_id)
    await close(db, request_id, "completed")
    assert await settle(db, request_id, 0) == "settled"

    assert not await write(db, lease)

    assert await segment_rows(db, request_id) == []
    (record,) = await meter_rows(db, public_id)
    assert record["segments"] == 0


async def test_a_result_after_the_deadline_is_neither_answered_nor_billed(db: Database) -> None:
    request_id, public_id = await submitted(db, 2, deadline_ms=5000)
    early, late = await claimed(db, request_id, 2)
    await written(db, early)
    await pass_time(db, request_id, 6)
    await close(db, request_id, "completed")
    before = await answer_of(db, public_id)

    assert await written(db, late) == []

    assert await statuses(db, request_id) == ["done", "done"]
    assert await answer_of(db, public_id) == before
    assert [segment.status for segment in before.segments] == ["done", "timed_out"]
    await settle(db, request_id, 0)
    (record,) = await meter_rows(db, public_id)
    assert (record["segments"], record["output_characters"]) == (1, len("done 0"))


async def test_an_expired_lease_that_nobody_took_may_still_write(db: Database) -> None:
    """The work is done and nobody else has begun it: the fence asks for the token, not the time."""
    request_id, _ = await submitted(db, 1)
    (lease,) = await claimed(db, request_id)
    await expire(db, request_id)

    assert await written(db, lease) == []
    assert await statuses(db, request_id) == ["done"]


async def test_an_identical_renewal_is_no_lost_lease(db: Database) -> None:
    """The server counts rows changed unless told otherwise (F3); here nothing changes."""
    request_id, _ = await submitted(db, 3)
    leases = await claimed(db, request_id, 3)
    await db.write("UPDATE segments SET lease_until = '2100-01-01'")

    changed = await db.write("UPDATE segments SET lease_until = '2100-01-01'")

    assert changed == 3
    assert await renew(db, leases, 10) == []
    assert await renew(db, leases, 10) == []


async def test_a_renewal_says_which_leases_are_lost_and_renews_the_rest(db: Database) -> None:
    first, _ = await submitted(db, 3)
    second, _ = await submitted(db, 1)
    leases = await claimed(db, first, 2) + await claimed(db, first, 1) + await claimed(db, second)
    await db.write(
        "UPDATE segments SET lease_until = NOW(6) - INTERVAL 1 SECOND"
        " WHERE request_id = %s AND index_no = 1",
        (first,),
    )
    await claimed(db, first)

    assert await renew(db, leases, 100) == [leases[1]]

    rows = await db.read(
        "SELECT request_id, index_no FROM segments WHERE lease_until > NOW(6) + INTERVAL 50 SECOND"
    )
    assert {(row["request_id"], row["index_no"]) for row in rows} == {
        (first, 0),
        (first, 2),
        (second, 0),
    }


async def test_a_lost_result_is_dropped_and_the_others_are_written(db: Database) -> None:
    request_id, _ = await submitted(db, 3)
    leases = await claimed(db, request_id, 3)
    await db.write(
        "UPDATE segments SET lease_until = NOW(6) - INTERVAL 1 SECOND WHERE index_no = 1"
    )
    await claimed(db, request_id)

    assert await written(db, *leases) == [leases[1]]
    assert await statuses(db, request_id) == ["done", "processing", "done"]


LOCK = "SELECT * FROM segments WHERE request_id = %s AND index_no = %s FOR UPDATE"


async def test_a_row_that_a_frozen_client_holds_stops_no_other_write_back(
    db: Database, url: str
) -> None:
    request_id, _ = await submitted(db, 4)
    leases = await claimed(db, request_id, 3)

    async with frozen(url, (LOCK, (request_id, 1))):
        ready = [Ready(lease, "done") for lease in leases]
        brought = await exchanged(db, ready, request_id, 1)
        assert [item.lease for item in brought.deferred] == [leases[1]]
        assert brought.lost == []
        assert [lease.index_no for lease in brought.claimed] == [3]
        assert await statuses(db, request_id) == ["done", "processing", "done", "processing"]

    assert await written(db, leases[1]) == []
    assert (await statuses(db, request_id))[1] == "done"


async def test_a_row_that_a_frozen_client_holds_stops_no_other_renewal(
    db: Database, url: str
) -> None:
    request_id, _ = await submitted(db, 3)
    leases = await claimed(db, request_id, 3)

    async with frozen(url, (LOCK, (request_id, 1))):
        assert await renew(db, leases, 100) == []

    rows = await db.read(
        "SELECT index_no FROM segments WHERE lease_until > NOW(6) + INTERVAL 50 SECOND"
    )
    assert [row["index_no"] for row in rows] == [0, 2]


async def test_results_of_several_claims_and_requests_go_back_in_one_exchange(
    db: Database,
) -> None:
    first, _ = await submitted(db, 3)
    second, _ = await submitted(db, 2)
    leases = [
        *await claimed(db, second, 1),
        *await claimed(db, first, 2),
        *await claimed(db, second, 1),
        *await claimed(db, first, 1),
    ]

    assert await written(db, *leases) == []

    assert await statuses(db, first) == ["done"] * 3
    rows = await segment_rows(db, second)
    assert [row["result"] for row in rows] == ["done 0", "done 1"]


async def test_large_results_are_stored_whole(db: Database) -> None:
    """Five of 400,000 characters go into several statements; none is cut at 64 KiB."""
    request_id, _ = await submitted(db, 5)
    leases = await claimed(db, request_id, 5)
    text = "añ𠮷 " * 100_000

    assert (await exchanged(db, [Ready(lease, text) for lease in leases])).lost == []

    assert [row["result"] for row in await segment_rows(db, request_id)] == [text] * 5


async def test_an_empty_result_is_a_result(db: Database) -> None:
    request_id, public_id = await submitted(db, 1)
    (lease,) = await claimed(db, request_id)

    assert (await exchanged(db, [Ready(lease, "")])).lost == []

    answer = await answer_of(db, public_id)
    assert (answer.segments[0].status, answer.segments[0].result) == ("done", "")


async def test_two_workers_that_write_each_others_stale_rows_do_not_deadlock(
    db: Database,
) -> None:
    """Sorted by request and index (laws.md 15); unsorted, two such exchanges end in 1213."""
    numbers = [(await submitted(db, 20))[0] for _ in range(4)]
    stale = [lease for number in numbers for lease in await claimed(db, number, 20)]
    for number in numbers:
        await expire(db, number)
    fresh = [lease for number in reversed(numbers) for lease in await claimed(db, number, 20)]

    lost = await asyncio.gather(
        written(db, *reversed(fresh)), written(db, *stale), written(db, *fresh)
    )

    assert {lease.token for lease in lost[1]} == {lease.token for lease in stale}
    for number in numbers:
        assert await statuses(db, number) == ["done"] * 20


async def test_an_operator_can_list_the_transactions_while_a_write_waits(
    db: Database, server: AnyServer, url: str
) -> None:
    """MySQL refuses the whole list (3854) when one statement in it holds bytes that are no text."""
    request_id, _ = await submitted(db, 1)
    (lease,) = await claimed(db, request_id)
    # No text in any character set, and a token may be any bytes.
    lease = replace(lease, token=b"\xff\xfe" * 8)
    await db.write("UPDATE segments SET lease_token = %s", (lease.token,))
    hold = "SELECT 1 FROM segments WHERE request_id = %s FOR UPDATE", (request_id,)
    async with frozen(url, hold) as cursor:
        writing = asyncio.create_task(written(db, lease))
        await somebody_waits_for_a_lock(server)
        waiting = server.execute(
            "SELECT trx_query FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        )
        await cursor.execute("ROLLBACK")
        assert await writing == []
    assert len(waiting) <= 1
