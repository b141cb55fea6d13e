"""The audit finds each breach that rows can show, and none while the programs work."""

import asyncio
import signal
from collections.abc import Sequence

import pytest
from pymysql.err import MySQLError

from partway.batch import audit as audit_module
from partway.batch.audit import BREACHES, RECORD_BREACHES, audit
from partway.batch.settings import BatchSettings
from partway.store.close import close
from partway.store.database import Database, Row
from partway.worker.lease import fail, give_back
from tests.actions import (
    Client,
    Programs,
    claimed,
    expire,
    meter_rows,
    pass_time,
    submitted,
    wait_until,
    written,
)
from tests.app.test_http_api import REQUESTS
from tests.batch.test_batch import planted

GRACE, KEEP = 5, 60


async def found(db: Database) -> list[Row]:
    """What the audit reports."""
    return await audit(db, GRACE, KEEP)


async def house(db: Database) -> tuple[int, str]:
    """A request of every sort of segment that there can be, and beside it requests of every sort.

    Segments 0 to 6: done, claimed, given back, waiting for another try, failed, blank, expired.
    """
    request_id, public_id = await submitted(
        db, ["one", "two", "three", "four", "five", " ", "seven"], deadline_ms=60_000
    )
    done, _, back, again, lost, _ = await claimed(db, request_id, 6)
    await written(db, done, result="uno")
    await give_back(db, back)
    await fail(db, again, "try again", 0, 3)
    await fail(db, lost, "no", 0, 0)
    await db.write(
        "UPDATE segments SET lease_until = NOW(6) - INTERVAL 9 SECOND"
        " WHERE request_id = %s AND index_no = 6",
        (request_id,),
    )
    for status in ("completed", "cancelled", "abandoned"):
        final, _ = await submitted(db, 3)
        await claimed(db, final, 2)
        assert await close(db, final, status)
        await planted(db, f"settled {status}", status, "2026-03-01")
    await submitted(db, [])
    await planted(db, "nothing", "completed", "2026-03-01", segments=0, input=0, output=0)
    return request_id, public_id


SEGMENT = "UPDATE segments SET {} WHERE request_id = %s AND index_no = {}"
REQUEST = "UPDATE requests SET {} WHERE id = %s"
RECORD = "UPDATE meter SET {} WHERE public_id = 'settled completed'"
CLOSED = "status = 'completed', closed_at = NOW(6)"

# What is done by hand to the first request of the house, or to a record, and the law it breaks.
PLANTED: Sequence[tuple[str, str]] = [
    ("law 1: a segment is claimed without", SEGMENT.format("lease_token = NULL", 1)),
    ("law 1: a segment is claimed without", SEGMENT.format("lease_until = NULL", 1)),
    ("law 1: a segment is claimed without", SEGMENT.format("attempts = 0", 1)),
    ("law 1: a segment that is not claimed", SEGMENT.format("lease_token = 'x'", 2)),
    ("law 1: a segment that is not claimed", SEGMENT.format("lease_token = 'x'", 4)),
    ("law 1: a segment is done and was never", SEGMENT.format("lease_token = NULL", 0)),
    ("law 1: a segment is done and was never", SEGMENT.format("status = 'done', result = 'a'", 2)),
    (
        "law 1: a lease is longer",
        SEGMENT.format("lease_until = NOW(6) + INTERVAL 2 HOUR", 1),
    ),
    ("law 2: the outcome has a letter for", REQUEST.format(f"{CLOSED}, outcome = 'ddppfdr'")),
    ("law 2: the outcome has a letter for", REQUEST.format(f"{CLOSED}, outcome = 'dfppfdr'")),
    ("law 2: the outcome has an unknown", REQUEST.format(f"{CLOSED}, outcome = 'drp?fdr'")),
    (
        "law 2: a request is final without",
        REQUEST.format("status = 'completed', outcome = 'drppfdr'"),
    ),
    ("law 2: a request is final without", REQUEST.format("closed_at = NOW(6)")),
    ("law 3: the characters", REQUEST.format("characters = characters + 1")),
    ("law 3: the characters", SEGMENT.format("source = 'tw'", 1)),
    ("law 3: a record is billed", RECORD.format("billed = FALSE")),
    ("law 3: a record is billed", RECORD.format("status = 'abandoned'")),
    ("law 3: a record has more", RECORD.format("segments = 0, output_characters = 0")),
    ("law 3: a record has more", RECORD.format("output_characters = 8000001")),
    ("law 3: a record has more", RECORD.format("input_characters = 2000001")),
    (
        "law 4: a request does not have all",
        "DELETE FROM segments WHERE request_id = %s AND index_no = 6",
    ),
    (
        "law 4: a request does not have all",
        "INSERT INTO segments (request_id, index_no, source) VALUES (%s, 7, '')",
    ),
    ("law 4: a request does not have all", SEGMENT.format("index_no = 9", 6)),
    (
        "law 4: a request was final long ago",
        REQUEST.format(
            "status = 'completed', outcome = 'drppfdr', created_at = '2026-03-01',"
            " deadline = '2026-03-01 00:01', closed_at = '2026-03-01 00:01'"
        ),
    ),
    (
        "law 6: a request is active long",
        REQUEST.format("created_at = '2026-03-01', deadline = '2026-03-01 00:01'"),
    ),
    ("law 6: a segment was claimed more", SEGMENT.format("attempts = 101", 1)),
    ("law 6: a segment has failed", SEGMENT.format("error = NULL", 4)),
    (
        "law 7: the id is metered",
        "INSERT INTO meter SELECT tenant, public_id, 'completed', 1, 1, 1, TRUE, NOW(6)"
        " FROM requests WHERE id = %s",
    ),
    ("law 9: a request ends", REQUEST.format("deadline = created_at - INTERVAL 1 SECOND")),
    (
        "law 9: a request ends",
        REQUEST.format(f"{CLOSED}, outcome = 'drppfdr', created_at = NOW(6) + INTERVAL 1 SECOND"),
    ),
    (
        "law 9: a request ends",
        REQUEST.format("created_at = created_at + INTERVAL 20 SECOND"),
    ),
    ("law 9: a record was settled", RECORD.format("settled_at = '2999-01-01'")),
]


async def test_every_sort_of_row_that_the_programs_make_is_no_breach(db: Database) -> None:
    await house(db)

    assert await found(db) == []


@pytest.mark.parametrize("law, by_hand", PLANTED)
async def test_a_breach_that_is_planted_is_found_with_its_id(
    db: Database, law: str, by_hand: str
) -> None:
    request_id, public_id = await house(db)

    if "%s" in by_hand:
        assert await db.write(by_hand, (request_id,)) == 1
    else:
        assert await db.write(by_hand) == 1
        public_id = "settled completed"

    (breach,) = await found(db)
    assert breach["breach"].startswith(law)
    assert (breach["tenant"], breach["id"]) == ("default", public_id)


async def test_segments_of_a_request_that_is_gone_are_found(db: Database) -> None:
    request_id, _ = await house(db)
    await db.write("DELETE FROM requests WHERE id = %s", (request_id,))

    assert await found(db) == [
        {
            "breach": "law 4: segments exist without their request",
            "tenant": "?",
            "id": f"request {request_id}",
        }
    ]


def test_each_breach_that_is_looked_for_is_planted_above() -> None:
    for law in (*BREACHES, *RECORD_BREACHES.values()):
        assert any(law.startswith(planted_law) for planted_law, _ in PLANTED), law


@pytest.mark.parametrize(
    "by_hand",
    [
        SEGMENT.format("result = NULL", 0),
        REQUEST.format(f"{CLOSED}, outcome = 'dr'"),
        REQUEST.format("status = 'cancelled', closed_at = NOW(6)"),
        REQUEST.format("outcome = 'drppfdr'"),
        "INSERT INTO segments SELECT * FROM segments WHERE request_id = %s",
    ],
    ids=["done without a result", "half", "no outcome", "an outcome and active", "a second row"],
)
async def test_what_the_audit_does_not_look_for_the_tables_refuse(
    db: Database, by_hand: str
) -> None:
    request_id, _ = await house(db)

    with pytest.raises(MySQLError):
        await db.write(by_hand, (request_id,))


async def test_the_tables_refuse_a_second_record(db: Database) -> None:
    await planted(db, "twice", "completed", "2026-03-01")

    with pytest.raises(MySQLError):
        await planted(db, "twice", "cancelled", "2026-03-02")


async def test_every_page_is_read_to_its_last_row(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of two; what is gone lies before, between and behind the requests that are there."""
    monkeypatch.setattr(audit_module, "REQUESTS_READ", 2)
    monkeypatch.setattr(audit_module, "RECORDS_READ", 2)
    requests = [await submitted(db, 1) for _ in range(8)]
    gone = [requests[0][0], requests[4][0], requests[7][0]]
    for number in gone:
        await db.write("DELETE FROM requests WHERE id = %s", (number,))
    await db.write("UPDATE requests SET characters = 99")
    for tenant in ("a", "b"):
        for public_id in ("x", "y", "z"):
            await planted(db, public_id, "completed", "2026-03-01", tenant=tenant)
    await db.write("UPDATE meter SET billed = FALSE")

    breaches = [(breach["tenant"], breach["id"]) for breach in await found(db)]

    living = [public_id for number, public_id in requests if number not in gone]
    assert sorted(breaches) == sorted(
        [("?", f"request {number}") for number in gone]
        + [("default", public_id) for public_id in living]
        + [(tenant, public_id) for tenant in ("a", "b") for public_id in ("x", "y", "z")]
    )


async def call(node: Client, number: int) -> None:
    """One caller: it waits, or cancels, or asks again."""
    path = f"{REQUESTS}/r{number}"
    sent = {
        "document": f"One {number}. Two. Three.\n \nFour.",
        "deadline_ms": 400 + number % 5 * 300,
    }
    put = asyncio.create_task(node.put(path, json=sent))
    if number % 3 == 0:
        await asyncio.sleep(0.05 * (number % 7))
        await node.delete(path)
    if number % 4 == 0:
        await node.put(path, json=sent)
    await put


async def test_no_breach_is_seen_while_real_programs_work(db: Database, programs: Programs) -> None:
    node = await programs.app()
    workers = [
        await programs.worker(
            concurrency=4, SLEEP_SECONDS=0.1, WORKER_LEASE_SECONDS=2, WORKER_BACKOFF_SECONDS=1
        )
        for _ in range(2)
    ]
    for _ in range(2):
        await programs.batch(BATCH_IDLE_SECONDS=0.05)
    audits = 0

    async def look() -> None:
        nonlocal audits
        while True:
            assert await found(db) == []
            audits += 1

    looking = asyncio.create_task(look())
    for start in range(0, 120, 20):
        await asyncio.gather(*(call(node, start + k) for k in range(20)))
        if start == 40:
            workers[0].send(signal.SIGKILL)

    async def all_is_settled() -> bool:
        assert not looking.done(), looking.result()
        return len(await meter_rows(db)) == 120

    await wait_until(all_is_settled, "the settlement of every request")
    looking.cancel()
    assert audits > 5
    assert await found(db) == []


async def test_an_audit_locks_nothing_and_waits_for_nobody(db: Database) -> None:
    request_id, _ = await house(db)
    async with db.transaction() as cursor:
        await cursor.execute("SELECT * FROM requests FOR UPDATE")
        await cursor.execute("SELECT * FROM segments FOR UPDATE")
        await cursor.execute(
            "UPDATE segments SET attempts = 200 WHERE request_id = %s", (request_id,)
        )

        assert await found(db) == []


async def test_what_waits_for_its_settlement_or_its_close_a_while_is_no_breach(
    db: Database,
) -> None:
    overdue, _ = await submitted(db, 1, deadline_ms=1000)
    await pass_time(db, overdue, 1 + GRACE + 55)
    final, _ = await submitted(db, 2, deadline_ms=1000)
    await claimed(db, final)
    assert await close(db, final, "cancelled")
    await expire(db, final)
    await pass_time(db, final, 3000)

    assert await found(db) == []
    assert BatchSettings().grace_seconds == GRACE
