"""Settlement: the bill is the answer, counted once, and neither lost nor held up by anybody."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiomysql
import pytest
from pymysql.err import MySQLError

from partway.batch import settle as settling
from partway.batch.run import Batch
from partway.batch.settings import BatchSettings
from partway.batch.settle import (
    LOCK_REQUEST,
    LOCK_SEGMENTS,
    METER,
    PAGE,
    SETTLEABLE,
    settle,
    settleable,
)
from partway.store.close import close
from partway.store.database import Database, connect, expand_lists
from partway.store.settings import read_address
from partway.worker.lease import CLAIM, LEASE, WRITE_BACK, Lease, Ready
from tests.actions import (
    TENANT,
    WAIT_SECONDS,
    answer_of,
    claimed,
    exchanged,
    expire,
    frozen,
    meter_rows,
    pass_time,
    request_row,
    segment_rows,
    somebody_waits_for_a_lock,
    submitted,
    wait_until,
    written,
)
from tests.conftest import AnyServer

pytestmark = pytest.mark.snapshot_isolation

KEEP = 60.0


def a_batch(db: Database, retention_seconds: float = 0) -> Batch:
    """A batch that keeps closed requests for no time unless told to."""
    # Not checked, since no program may keep an answer for no time at all.
    settings = BatchSettings.model_construct(retention_seconds=retention_seconds, grace_seconds=0)
    return Batch(db, settings, asyncio.Event())


@contextmanager
def paused_before_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """The first event says that a settlement has locked everything and counted nothing yet.

    It goes on when the second is set.
    """
    locked, go_on = asyncio.Event(), asyncio.Event()
    real = settling.record_and_delete

    async def later(cursor: aiomysql.DictCursor, request_id: int) -> None:
        locked.set()
        await go_on.wait()
        await real(cursor, request_id)

    with monkeypatch.context() as patched:
        patched.setattr(settling, "record_and_delete", later)
        yield locked, go_on


async def a_dead_lease(db: Database) -> tuple[int, str, Lease]:
    """A completed request of one segment, whose lease has run out and was taken by nobody."""
    request_id, public_id = await submitted(db, 1)
    (lease,) = await claimed(db, request_id)
    await expire(db, request_id)
    assert await close(db, request_id, "cancelled")
    return request_id, public_id, lease


async def test_the_metered_characters_are_those_of_the_answer(db: Database) -> None:
    sources = [
        "e\u0301 \u00e9",
        "👨\u200d👩\u200d👧\u200d👦",
        "a\r\nb",
        "\u3000",
        "𠮷 🫠",
        "100 %25 &amp;",
    ]
    results = ["E\u0301", "famille 👨\u200d👩\u200d👧", "A\r\n\r\nB", "", "", "\u0000 𠮷"]
    request_id, public_id = await submitted(db, sources)
    leases = await claimed(db, request_id, 10)
    assert [lease.index_no for lease in leases] == [0, 1, 2, 4, 5]  # the blank one is done already
    ready = [Ready(lease, results[lease.index_no]) for lease in leases]
    assert (await exchanged(db, ready)).lost == []
    assert await close(db, request_id, "completed")
    usage = (await answer_of(db, public_id)).usage

    assert await settle(db, request_id, KEEP) == "settled"

    (record,) = await meter_rows(db)
    given_back = [*results[:3], "\u3000", *results[4:]]
    assert record["segments"] == usage.segments == 6
    assert record["input_characters"] == usage.input_characters == sum(map(len, sources))
    assert record["output_characters"] == usage.output_characters == sum(map(len, given_back))
    assert (record["tenant"], record["public_id"]) == (TENANT, public_id)
    assert (record["status"], record["billed"]) == ("completed", 1)
    assert await segment_rows(db, request_id) == []
    assert await request_row(db, request_id) is None


async def test_a_segment_done_after_the_close_of_a_completed_request_is_not_billed(
    db: Database,
) -> None:
    request_id, public_id = await submitted(db, 4)
    first, second = await claimed(db, request_id, 2)
    await written(db, first)
    assert await close(db, request_id, "completed")
    assert await written(db, second, result="late") == []
    usage = (await answer_of(db, public_id)).usage

    assert await settle(db, request_id, KEEP) == "settled"

    (record,) = await meter_rows(db)
    assert (record["segments"], usage.segments) == (1, 1)
    assert record["output_characters"] == usage.output_characters == len("done 0")


async def test_a_cancelled_request_pays_for_stragglers_and_not_for_what_was_pending(
    db: Database, url: str
) -> None:
    request_id, public_id = await submitted(db, 4)
    first, straggler = await claimed(db, request_id, 2)
    await written(db, first)
    token = b"begun-before----"
    begun = (
        (CLAIM, (request_id, 0, 1)),
        (expand_lists(LEASE, 1), (token.hex(), "slow", 10**7, request_id, 2)),
    )
    async with frozen(url, *begun) as cursor:
        assert await close(db, request_id, "cancelled")
        # A claim that began before the cancel and commits after it is void.
        await cursor.execute("COMMIT")
    assert await written(db, straggler, Lease(request_id, 2, token, 1, "s2")) == []
    usage = (await answer_of(db, public_id)).usage

    assert await settle(db, request_id, KEEP) == "settled"

    (record,) = await meter_rows(db)
    assert (record["status"], record["billed"]) == ("cancelled", 1)
    assert record["segments"] == usage.segments == 2
    assert record["output_characters"] == usage.output_characters == len("done 0") + len("done 1")


async def test_a_failed_segment_is_not_billed(db: Database) -> None:
    request_id, _ = await submitted(db, 2)
    (first,) = await claimed(db, request_id)
    await written(db, first)
    for _ in range(3):
        await claimed(db, request_id)
        await expire(db, request_id)
    assert (await exchanged(db, [], request_id, 1)).exhausted == 1
    assert await close(db, request_id, "completed")

    assert await settle(db, request_id, KEEP) == "settled"

    (record,) = await meter_rows(db)
    assert (record["segments"], record["input_characters"]) == (1, 2)


async def test_an_abandoned_request_is_metered_with_its_cost_and_billed_nothing(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 3)
    first, second = await claimed(db, request_id, 2)
    await written(db, first)
    assert await close(db, request_id, "abandoned")
    await written(db, second)

    assert await settle(db, request_id, KEEP) == "settled"

    (record,) = await meter_rows(db)
    assert (record["status"], record["segments"], record["billed"]) == ("abandoned", 2, 0)
    assert record["output_characters"] == len("done 0") + len("done 1")


async def test_a_cancelled_request_waits_for_live_leases_and_not_for_dead_ones(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 2)
    await claimed(db, request_id)
    assert await close(db, request_id, "cancelled")

    assert await settle(db, request_id, KEEP) == "deferred"
    assert await meter_rows(db) == []
    await expire(db, request_id)
    assert await settle(db, request_id, KEEP) == "settled"
    # The straggler never finished.
    (record,) = await meter_rows(db)
    assert (record["segments"], record["input_characters"]) == (0, 0)


async def test_a_cancelled_request_waits_for_leases_no_longer_than_deadline_and_keep(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 1, deadline_ms=30_000)
    await claimed(db, request_id, lease_seconds=3600)
    assert await close(db, request_id, "cancelled")

    await pass_time(db, request_id, 30 + KEEP - 10)
    assert await settle(db, request_id, KEEP) == "deferred"
    await pass_time(db, request_id, 11)
    assert await settle(db, request_id, KEEP) == "settled"


@pytest.mark.parametrize("status", ["completed", "abandoned"])
async def test_only_a_cancelled_request_waits_for_leases(db: Database, status: Any) -> None:
    request_id, _ = await submitted(db, 1)
    await claimed(db, request_id, lease_seconds=3600)
    assert await close(db, request_id, status)

    assert await settle(db, request_id, KEEP) == "settled"


async def test_nothing_is_settled_before_it_was_kept(db: Database) -> None:
    running, _ = await submitted(db, 1)
    await pass_time(db, running, 10 * KEEP)
    finals = []
    for status in ("completed", "cancelled", "abandoned"):
        request_id, _ = await submitted(db, 1)
        assert await close(db, request_id, status)
        finals.append(request_id)

    assert await settleable(db, KEEP, 0) == []
    for request_id in finals:
        await pass_time(db, request_id, KEEP - 10)
    assert await settleable(db, KEEP, 0) == []
    for request_id in finals:
        await pass_time(db, request_id, 11)
    assert await settleable(db, KEEP, 0) == finals


async def test_a_write_back_between_the_count_and_the_delete_waits_and_finds_nothing(
    db: Database, server: AnyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_id, _, lease = await a_dead_lease(db)
    with paused_before_the_record(monkeypatch) as (locked, go_on):
        settled = asyncio.ensure_future(settle(db, request_id, KEEP))
        await asyncio.wait_for(locked.wait(), WAIT_SECONDS)
        late = asyncio.create_task(written(db, lease))
        await somebody_waits_for_a_lock(server)
        go_on.set()

        assert await settled == "settled"
    assert await late == [lease]
    (record,) = await meter_rows(db)
    assert record["segments"] == 0


async def test_a_write_back_that_came_before_the_count_is_counted(db: Database, url: str) -> None:
    request_id, _, lease = await a_dead_lease(db)
    write = expand_lists(WRITE_BACK, 1), (0, "in time", request_id, lease.token.hex(), 0)
    async with frozen(url, write) as cursor:
        assert await settle(db, request_id, KEEP) == "deferred"
        await cursor.execute("COMMIT")

    assert await settle(db, request_id, KEEP) == "settled"
    (record,) = await meter_rows(db)
    assert (record["segments"], record["output_characters"]) == (1, len("in time"))


async def test_a_frozen_client_on_one_segment_puts_off_that_request_and_nothing_else(
    db: Database, url: str
) -> None:
    ids = [(await submitted(db, 3))[0] for _ in range(3)]
    for request_id in ids:
        assert await close(db, request_id, "completed")
    touch = "SELECT 1 FROM segments WHERE request_id = %s AND index_no = 1 FOR UPDATE", (ids[0],)
    async with frozen(url, touch):
        assert await settle(db, ids[0], KEEP) == "deferred"
        assert await a_batch(db).step()
        assert await settleable(db, 0, 0) == [ids[0]]
        # The rows it did not wait for are free again.
        assert not await held(db, ids[0], 0)

    assert await settle(db, ids[0], KEEP) == "settled"
    assert len(await meter_rows(db)) == 3


async def held(db: Database, request_id: int, index_no: int) -> bool:
    """Whether somebody holds this segment."""
    async with db.transaction() as cursor:
        found = await cursor.execute(
            "SELECT 1 FROM segments WHERE request_id = %s AND index_no = %s FOR UPDATE SKIP LOCKED",
            (request_id, index_no),
        )
    return not found


async def test_two_batches_side_by_side_settle_each_request_once(db: Database) -> None:
    ids = [(await submitted(db, 2))[0] for _ in range(20)]
    for request_id in ids:
        assert await close(db, request_id, "completed")

    said = await asyncio.gather(*(settle(db, i, KEEP) for i in ids for _ in range(3)))

    assert sorted(said) == ["gone"] * 40 + ["settled"] * 20
    assert len(await meter_rows(db)) == 20
    assert await settleable(db, 0, 0) == []


async def test_a_crash_between_record_and_delete_leaves_neither(
    db: Database, url: str, server: AnyServer
) -> None:
    request_id, public_id = await submitted(db, 2)
    await written(db, *await claimed(db, request_id, 2))
    assert await close(db, request_id, "completed")
    crashing = await connect(read_address(url))
    try:
        await crashing.begin()
        async with crashing.cursor() as cursor:
            await cursor.execute(LOCK_REQUEST, (0, request_id))
            await cursor.execute(LOCK_SEGMENTS, (request_id,))
            await cursor.execute(METER, (request_id,))
        assert await settle(db, request_id, KEEP) == "gone"
        server.execute(f"KILL {crashing.thread_id()}")
    finally:
        crashing.close()

    async def free() -> bool:
        return not await held(db, request_id, 0)

    await wait_until(free, "the server to undo what the crash left")
    assert await meter_rows(db) == []
    assert (await answer_of(db, public_id)).counts.done == 2
    assert await a_batch(db).step()
    assert not await a_batch(db).step()
    (record,) = await meter_rows(db)
    assert record["segments"] == 2


async def test_an_id_that_is_metered_already_is_named_once_and_holds_up_nothing(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    doubled, public_id = await submitted(db, 2)
    other, _ = await submitted(db, 2)
    await db.write(
        "INSERT INTO meter VALUES (%s, %s, 'completed', 7, 7, 7, TRUE, NOW(6))", (TENANT, public_id)
    )
    for request_id in (doubled, other):
        assert await close(db, request_id, "completed")
    batch = a_batch(db)

    with caplog.at_level(logging.ERROR):
        assert await batch.step()
        assert not await batch.step()

    assert len(caplog.records) == 1
    assert f"request {doubled} is left as it is: 1062" in caplog.text
    assert len(await segment_rows(db, doubled)) == 2
    assert [record["segments"] for record in await meter_rows(db, public_id)] == [7]
    assert await request_row(db, other) is None


async def test_a_request_that_cannot_be_closed_holds_up_nothing(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    torn, _ = await submitted(db, 2)
    await db.write("DELETE FROM segments WHERE request_id = %s AND index_no = 1", (torn,))
    overdue, _ = await submitted(db, 2)
    for request_id in (torn, overdue):
        await pass_time(db, request_id, 3600)
    batch = a_batch(db)

    assert await batch.step()
    assert not await batch.step()

    assert caplog.text.count(f"request {torn} is left as it is") == 1
    assert (await request_row(db, torn) or {})["status"] == "active"
    assert await request_row(db, overdue) is None


async def test_a_number_that_comes_again_after_a_reset_is_metered_again(db: Database) -> None:
    first, _ = await submitted(db, 1)
    assert await close(db, first, "completed")
    assert await settle(db, first, KEEP) == "settled"
    await db.write("ALTER TABLE requests AUTO_INCREMENT = 1")
    await db.write("TRUNCATE TABLE requests")

    again, public_id = await submitted(db, 2)
    assert again == 1
    await written(db, *await claimed(db, again, 2))
    assert await close(db, again, "completed")

    assert await settle(db, again, KEEP) == "settled"
    (record,) = await meter_rows(db, public_id)
    assert record["segments"] == 2


async def test_an_active_request_is_never_settled(db: Database) -> None:
    request_id, _ = await submitted(db, 2)
    await written(db, *await claimed(db, request_id, 2))

    assert not await a_batch(db).step()
    # Even for one who would ask by its number, the record has no word for it.
    with pytest.raises(MySQLError):
        await settle(db, request_id, KEEP)
    assert len(await segment_rows(db, request_id)) == 2
    assert await meter_rows(db) == []


async def test_looking_for_what_to_settle_locks_nothing(db: Database, url: str) -> None:
    active, _ = await submitted(db, 2)
    final, _ = await submitted(db, 2)
    assert await close(db, final, "completed")

    async with frozen(url, (SETTLEABLE, (0, 0, PAGE))):
        assert await close(db, active, "completed")
        assert await settle(db, final, KEEP) == "settled"


COPY_REQUESTS = """
INSERT INTO requests
       (tenant, public_id, body_hash, status, segments, characters, params, on_missing,
        created_at, deadline, closed_at, outcome)
SELECT tenant, UUID(), body_hash, status, segments, characters, params, on_missing,
       created_at, deadline, closed_at, outcome
FROM   requests
"""


async def test_a_thousand_that_are_deferred_do_not_hide_those_behind_them(db: Database) -> None:
    first, _ = await submitted(db, 1)
    await claimed(db, first, lease_seconds=3600)
    assert await close(db, first, "cancelled")
    for _ in range(10):
        # Doubled ten times: 1,024.
        await db.write(COPY_REQUESTS)
    await db.write(
        "INSERT INTO segments (request_id, index_no, status, lease_until, source)"
        " SELECT r.id, s.index_no, s.status, s.lease_until, s.source"
        " FROM requests r JOIN segments s WHERE s.request_id = %s AND r.id <> %s",
        (first, first),
    )
    last, _ = await submitted(db, 1)
    assert await close(db, last, "completed")
    batch = a_batch(db)

    assert await batch.step()
    assert await batch.step()

    assert await request_row(db, last) is None
    assert len(await settleable(db, 0, 0)) == PAGE
    # And with nothing to be done, it comes to rest.
    assert await batch.step()
    assert not await batch.step()


async def test_a_request_of_1500_segments_is_settled_to_the_character(db: Database) -> None:
    request_id, _ = await submitted(db, [f"é{i}" for i in range(1500)])
    leases = await claimed(db, request_id, 1200)
    await written(db, *leases[:1100])
    assert await close(db, request_id, "completed")

    assert await settle(db, request_id, KEEP) == "settled"

    (record,) = await meter_rows(db)
    assert record["segments"] == 1100
    assert record["input_characters"] == sum(len(lease.source) for lease in leases[:1100])
    assert record["output_characters"] == sum(len(f"done {i}") for i in range(1100))
    assert await db.read("SELECT 1 FROM segments LIMIT 1") == []


async def test_a_request_without_segments_is_settled(db: Database) -> None:
    request_id, _ = await submitted(db, [])
    assert await close(db, request_id, "completed")

    assert await settle(db, request_id, KEEP) == "settled"
    (record,) = await meter_rows(db)
    assert (record["segments"], record["input_characters"], record["billed"]) == (0, 0, 1)


async def test_one_transaction_settles_one_request(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long ones would keep the server from clearing away what was deleted."""
    for _ in range(9):
        request_id, _ = await submitted(db, 1)
        assert await close(db, request_id, "completed")
    seen = []
    real = settling.record_and_delete

    async def counted(cursor: aiomysql.DictCursor, request_id: int) -> None:
        # Each transaction has a cursor of its own.
        seen.append(cursor)
        await real(cursor, request_id)

    monkeypatch.setattr(settling, "record_and_delete", counted)
    assert await a_batch(db).step()

    assert len(await meter_rows(db)) == 9
    assert len({id(cursor) for cursor in seen}) == len(seen) == 9
