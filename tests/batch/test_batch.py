"""The batch program, as it is run: it settles, stops when told, loses nothing, and reports."""

import asyncio
import json
import re
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from partway.store.close import close
from partway.store.database import Database
from partway.store.times import point_in_time
from tests.actions import (
    ROOT,
    TENANT,
    Programs,
    answer_of,
    claimed,
    meter_rows,
    pass_time,
    request_row,
    run_to_the_end,
    submitted,
    wait_until,
    written,
)


async def run(
    programs: Programs, *command: str, **settings: object
) -> "subprocess.CompletedProcess[str]":
    """What `partway words` wrote and how it ended."""
    environment = programs.environment(None, settings)
    ((status, out, said),) = await asyncio.to_thread(run_to_the_end, [command], environment)
    return subprocess.CompletedProcess(command, status, out, said)


async def completed(db: Database, segments: int = 2) -> tuple[int, str]:
    """A request that was answered a few seconds ago, all but its last segment done."""
    request_id, public_id = await submitted(db, segments)
    await written(db, *await claimed(db, request_id, segments - 1))
    assert await close(db, request_id, "completed")
    await pass_time(db, request_id, 5)
    return request_id, public_id


async def no_request_is_left(db: Database) -> bool:
    """Whether everything is settled."""
    return not await db.read("SELECT 1 FROM requests LIMIT 1")


async def test_once_settles_what_is_ready_and_exits(db: Database, programs: Programs) -> None:
    ids = [(await completed(db))[1] for _ in range(3)]
    running, _ = await submitted(db, 1)

    ended = await run(programs, "batch", "--once", BATCH_RETENTION_SECONDS=1)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""
    assert "3 settled" in ended.stderr
    assert sorted(row["public_id"] for row in await meter_rows(db)) == sorted(ids)
    assert (await request_row(db, running) or {})["status"] == "active"


async def test_once_on_an_empty_database_exits_at_once(programs: Programs) -> None:
    ended = await run(programs, "batch", "--once")

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


async def test_it_settles_until_it_is_told_to_stop(db: Database, programs: Programs) -> None:
    batch = await programs.batch(BATCH_IDLE_SECONDS=0.1)
    for number in (signal.SIGTERM, signal.SIGINT):
        await completed(db)
        await wait_until(lambda: no_request_is_left(db), "the settlement")

        batch.send(number)
        assert await batch.ended() == 0, batch.said()
        assert "Traceback" not in batch.said()
        batch = await programs.batch(BATCH_IDLE_SECONDS=0.1)


async def test_nothing_is_settled_while_it_is_kept(db: Database, programs: Programs) -> None:
    early, _ = await completed(db)
    late, _ = await completed(db)
    await pass_time(db, late, 120)

    assert (await run(programs, "batch", "--once", BATCH_RETENTION_SECONDS=60)).returncode == 0

    assert await request_row(db, early) is not None
    assert await request_row(db, late) is None


async def test_a_batch_that_is_killed_in_mid_run_loses_nothing(
    db: Database, programs: Programs
) -> None:
    owed = {}
    for size in [2, 3, 4] * 60:
        _, public_id = await completed(db, size)
        owed[public_id] = (await answer_of(db, public_id)).usage

    async def begun() -> bool:
        return len(await meter_rows(db)) > 5

    killed = 0
    while not await no_request_is_left(db):
        batch = programs.start("batch", BATCH_RETENTION_SECONDS=1)
        before = len(await meter_rows(db))
        if killed < 2:
            await wait_until(begun, "some settlements")
            batch.send(signal.SIGKILL)
            await batch.ended()
            assert len(await meter_rows(db)) >= before
            killed += 1
        else:
            await wait_until(lambda: no_request_is_left(db), "all settlements")
            batch.send(signal.SIGTERM)
            assert await batch.ended() == 0

    assert {
        row["public_id"]: (row["segments"], row["input_characters"], row["output_characters"])
        for row in await meter_rows(db)
    } == {
        public_id: (usage.segments, usage.input_characters, usage.output_characters)
        for public_id, usage in owed.items()
    }
    assert await db.read("SELECT 1 FROM segments LIMIT 1") == []


async def test_two_batches_at_once_settle_each_request_once(
    db: Database, programs: Programs
) -> None:
    ids = [(await completed(db))[1] for _ in range(60)]

    first, second = await asyncio.gather(
        run(programs, "batch", "--once", BATCH_RETENTION_SECONDS=1),
        run(programs, "batch", "--once", BATCH_RETENTION_SECONDS=1),
    )

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "ERROR" not in first.stderr + second.stderr
    assert sorted(row["public_id"] for row in await meter_rows(db)) == sorted(ids)
    assert await no_request_is_left(db)


async def test_a_request_whose_node_died_is_closed_after_the_grace_and_billed_nothing(
    db: Database, programs: Programs
) -> None:
    overdue, public_id = await submitted(db, 2, deadline_ms=1000)
    within_grace, _ = await submitted(db, 2, deadline_ms=1000)
    await written(db, *await claimed(db, overdue, 1))
    await pass_time(db, overdue, 40)
    await pass_time(db, within_grace, 10)

    ended = await run(programs, "batch", "--once", BATCH_GRACE_SECONDS=30)
    await pass_time(db, overdue, 100)

    assert ended.returncode == 0
    assert (await run(programs, "batch", "--once", BATCH_GRACE_SECONDS=300)).returncode == 0
    assert "1 closed as abandoned" in ended.stderr
    (record,) = await meter_rows(db)
    assert (record["public_id"], record["status"]) == (public_id, "abandoned")
    assert (record["segments"], record["billed"]) == (1, 0)
    assert (await request_row(db, within_grace) or {})["status"] == "active"


async def planted(db: Database, public_id: str, status: str, settled_at: str, **more: Any) -> None:
    """A record in the ledger."""
    row = {"tenant": TENANT, "segments": 2, "input": 20, "output": 30} | more
    await db.write(
        "INSERT INTO meter VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
        (
            *(row["tenant"], public_id, status, row["segments"], row["input"], row["output"]),
            *(status != "abandoned", settled_at),
        ),
    )


COUNTED_BY = ("tenant", "status", "billed")


async def test_usage_says_what_was_metered_by_tenant_and_ending(
    db: Database, programs: Programs
) -> None:
    await planted(db, "a", "completed", "2026-03-01 12:00:00")
    await planted(db, "b", "completed", "2026-03-01 12:00:00.5", segments=3)
    await planted(db, "c", "abandoned", "2026-03-02 12:00:00")
    await planted(db, "d", "cancelled", "2026-03-02 12:00:00", tenant="other")

    table = await run(programs, "usage")
    lines = await run(programs, "usage", "--json")

    assert (table.returncode, lines.returncode) == (0, 0)
    assert table.stderr == lines.stderr == ""
    assert [line.split() for line in table.stdout.splitlines()] == [
        [*COUNTED_BY, "requests", "segments", "input_characters", "output_characters"],
        [TENANT, "completed", "True", "2", "5", "40", "60"],
        [TENANT, "abandoned", "False", "1", "2", "20", "30"],
        ["other", "cancelled", "True", "1", "2", "20", "30"],
    ]
    rows = [json.loads(line) for line in lines.stdout.splitlines()]
    assert rows[0] == {
        "tenant": TENANT,
        "status": "completed",
        "billed": True,
        "requests": 2,
        "segments": 5,
        "input_characters": 40,
        "output_characters": 60,
    }
    assert [row["status"] for row in rows] == ["completed", "abandoned", "cancelled"]


@pytest.mark.parametrize(
    "flags, found",
    [
        (("--from", "2026-03-01T12:00:00"), {"a", "b", "c"}),
        (("--from", "2026-03-01T12:00:00.000001"), {"b", "c"}),
        (("--to", "2026-03-02"), {"a", "b"}),
        (("--to", "2026-03-01T12:00:00Z"), set()),
        # Two hours ahead of UTC: 14:00 there is 12:00.
        (("--from", "2026-03-01T14:00:00+02:00", "--to", "2026-03-01T14:00:00.4+02:00"), {"a"}),
        (("--from", "2026-03-01T14:00:00"), {"c"}),
    ],
)
async def test_usage_covers_a_period_from_and_to_in_any_zone(
    db: Database, programs: Programs, flags: tuple[str, ...], found: set[str]
) -> None:
    for public_id, at in (
        ("a", "2026-03-01 12:00:00"),
        ("b", "2026-03-01 12:00:00.5"),
        ("c", "2026-03-02 12:00:00"),
    ):
        await planted(db, public_id, "completed", at, tenant=public_id)

    ended = await run(programs, "usage", "--json", *flags)

    assert ended.returncode == 0, ended.stderr
    assert {json.loads(line)["tenant"] for line in ended.stdout.splitlines()} == found


async def test_usage_of_an_empty_ledger_is_empty(programs: Programs) -> None:
    for flags in ((), ("--json",)):
        ended = await run(programs, "usage", *flags)
        assert (ended.returncode, ended.stdout) == (0, "")
        assert ended.stderr == "usage: nothing was metered\n"


WRONG = {
    "batch: .*unexpected extra argument.*settle": ("batch", "settle"),
    "batch: No such option.*--twice": ("batch", "--twice"),
    "batch: --retention-seconds: Input should be": ("batch", "--retention-seconds", "soon"),
    "batch: .*--retention-seconds.* requires an argument": ("batch", "--retention-seconds"),
    "usage: .*--from.*: 'yesterday' is not a time": ("usage", "--from", "yesterday"),
    r"usage: .*--to.*: '0001-01-01T00:00\+14:00' is not a time": (
        *("usage", "--to", "0001-01-01T00:00+14:00"),
    ),
    "usage: --from is later than --to: 2026-12-01 00:00:00, 2026-11-01 00:00:00": (
        *("usage", "--from", "2026-12-01", "--to", "2026-11-01"),
    ),
    "audit: No such option.*--from": ("audit", "--from", "2026-01-01"),
    "status: .*unexpected extra argument.*now": ("status", "now"),
}


def test_what_is_not_known_is_refused_in_one_line_with_status_2() -> None:
    programs = Programs("mysql://nobody:secret@nowhere.invalid/none", ROOT)
    ended = run_to_the_end(list(WRONG.values()), programs.environment(None, {}))
    for wanted, (status, out, said) in zip(WRONG, ended, strict=True):
        assert (status, out, said.count("\n")) == (2, "", 1), said
        assert re.match(wanted, said), said


async def test_audit_is_silent_when_rows_and_ledger_agree(db: Database, programs: Programs) -> None:
    await completed(db)
    await submitted(db, 3)
    cancelled, _ = await submitted(db, 3)
    await claimed(db, cancelled)
    assert await close(db, cancelled, "cancelled")
    await submitted(db, [])
    await planted(db, "old", "completed", "2026-03-01")
    await planted(db, "left", "abandoned", "2026-03-01")

    for flags in ((), ("--json",)):
        ended = await run(programs, "audit", *flags)
        assert (ended.returncode, ended.stdout) == (0, "")
        assert ended.stderr == "audit: no breaches of the laws\n"


async def test_audit_finds_each_breach(db: Database, programs: Programs) -> None:
    """Each is planted by hand: no program can be brought to make one."""
    answered, answered_id = await completed(db)
    await db.write("UPDATE requests SET outcome = 'dd' WHERE id = %s", (answered,))
    refused, refused_id = await completed(db)
    await db.write("UPDATE requests SET outcome = 'df' WHERE id = %s", (refused,))
    await planted(db, "billed", "abandoned", "2026-03-01")
    await planted(db, "unbilled", "completed", "2026-03-01")
    await db.write("UPDATE meter SET billed = NOT billed")
    torn, torn_id = await submitted(db, 2)
    await db.write("DELETE FROM segments WHERE request_id = %s AND index_no = 1", (torn,))
    gone, _ = await submitted(db, 2)
    await db.write("DELETE FROM requests WHERE id = %s", (gone,))
    forgotten, forgotten_id = await submitted(db, 2)
    await pass_time(db, forgotten, 30 + 5 + 61)
    _, alive_id = await submitted(db, 2)
    await planted(db, alive_id, "completed", "2026-03-01")

    lines = await run(programs, "audit", "--json")
    table = await run(programs, "audit")

    assert (lines.returncode, table.returncode) == (1, 1)
    found = {(b["breach"][:5], b["id"]) for b in map(json.loads, lines.stdout.splitlines())}
    assert found == {
        ("law 2", answered_id),
        ("law 2", refused_id),
        ("law 3", "billed"),
        ("law 3", "unbilled"),
        ("law 4", torn_id),
        ("law 4", f"request {gone}"),
        ("law 6", forgotten_id),
        ("law 7", alive_id),
    }
    assert lines.stderr == table.stderr == "audit: 8 breaches of the laws\n"
    assert len(table.stdout.splitlines()) == 1 + 8
    assert forgotten_id in table.stdout


async def test_audit_judges_overdue_by_the_grace_that_is_set(
    db: Database, programs: Programs
) -> None:
    request_id, _ = await submitted(db, 1)
    await pass_time(db, request_id, 30 + 5 + 61)

    assert (await run(programs, "audit")).returncode == 1
    assert (await run(programs, "audit", BATCH_GRACE_SECONDS=600)).returncode == 0


async def test_status_says_what_waits(db: Database, programs: Programs) -> None:
    await completed(db)
    running, _ = await submitted(db, 4)
    await written(db, *await claimed(db, running, 1))
    await claimed(db, running, 1)
    await db.write(
        "UPDATE segments SET lease_until = NOW(6) - INTERVAL 1 SECOND WHERE status = 'processing'"
    )
    overdue, _ = await submitted(db, 1)
    await pass_time(db, overdue, 31)

    lines = await run(programs, "status", "--json")
    table = await run(programs, "status")

    assert (lines.returncode, lines.stderr, table.stderr) == (0, "", "")
    rows = {row["what"]: row for row in map(json.loads, lines.stdout.splitlines())}
    assert {what: row["count"] for what, row in rows.items()} == {
        "active requests": 2,
        "completed requests": 1,
        "pending segments of active requests": 3,
        "processing segments of active requests": 1,
        "done segments of active requests": 1,
    }
    assert rows["active requests"]["note"] == "1 overdue"
    assert rows["active requests"]["oldest_seconds"] >= 31
    assert rows["processing segments of active requests"]["note"] == "1 with an expired lease"
    assert len(table.stdout.splitlines()) == 1 + 5


async def test_status_of_an_empty_database_is_empty(programs: Programs) -> None:
    ended = await run(programs, "status")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == "status: nothing waits\n"


def test_a_time_without_a_zone_is_utc() -> None:
    assert point_in_time("2026-03-01") == datetime(2026, 3, 1)
    assert point_in_time("2026-03-01T01:00+02:00") == datetime(2026, 2, 28, 23)
    now = datetime.now(UTC)
    assert point_in_time(now.isoformat()) - now.replace(tzinfo=None) == timedelta(0)
