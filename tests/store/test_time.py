"""One clock: leases and deadlines are the database's own time, UTC, to the microsecond."""

import ast
import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from local.server import Server
from local.server import find as find_server
from partway.app.requests.answer import read_request
from partway.app.requests.fanout import submit
from partway.batch.reaper import abandon, overdue
from partway.batch.settle import settle, settleable
from partway.store.close import close
from partway.store.database import Database
from partway.store.settings import DatabaseSettings
from partway.store.start import open_database
from partway.worker.lease import renew
from partway.worker.settings import WorkerSettings
from tests.actions import (
    ROOT,
    TENANT,
    answer_of,
    claimed,
    frozen,
    meter_rows,
    request_row,
    segment_rows,
    somebody_waits_for_a_lock,
    submission,
    submitted,
    written,
)
from tests.conftest import AnyServer


@contextlib.contextmanager
def global_setting(server: AnyServer, name: str, value: str) -> Iterator[None]:
    """The server gives new sessions this value for a while."""
    ((before,),) = server.execute(f"SELECT @@GLOBAL.{name}")
    server.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        server.execute(f"SET GLOBAL {name} = %s", before)


@contextlib.asynccontextmanager
async def a_program(url: str) -> AsyncIterator[Database]:
    """The database as a program sees it that starts now."""
    async with open_database(DatabaseSettings(database_url=url, pool_size=3)) as db:
        yield db


async def test_a_server_that_changes_its_zone_makes_no_lease_run_out(
    server: AnyServer, url: str
) -> None:
    async with a_program(url) as first:
        with global_setting(server, "time_zone", "'+05:00'"):
            request_id, _ = await submitted(first, 2)
            (lease,) = await claimed(first, request_id)
            async with a_program(url) as second:
                (other,) = await claimed(second, request_id, 2)
                assert (lease.index_no, other.index_no) == (0, 1)
                assert await renew(second, [other], 10) == []
                assert await claimed(first, request_id, 2) == []
                assert await overdue(second, 0) == []
                assert await close(second, request_id, "completed")
                assert await settleable(first, 60, 0) == await settleable(second, 60, 0) == []
                row = await request_row(second, request_id)
                assert row == await request_row(first, request_id)


# The hours at which clocks are put forward and back in Copenhagen, in UTC.
SWITCHES = {
    "spring": datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
    "autumn": datetime(2026, 10, 25, 1, 0, tzinfo=UTC),
}


class SetClock:
    """Sets the clock of a pool's only connection, as a faked clock of the server would."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def __call__(self, at: datetime) -> None:
        await self._db.write("SET SESSION timestamp = %s", (at.timestamp(),))


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def in_copenhagen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server on a machine whose clock is put forward and back."""
    program = find_server(request.param)
    if program is None:
        pytest.skip(f"there is no {request.param} server here")
    with pytest.MonkeyPatch.context() as patched:
        # Spelled out, for machines that do not know the town.
        patched.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        server = Server(program, tmp_path_factory.mktemp("zone"))
        server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("switch", list(SWITCHES))
async def test_putting_the_clock_forward_or_back_moves_no_lease_and_no_deadline(
    in_copenhagen: Server, switch: str
) -> None:
    at = SWITCHES[switch]
    in_copenhagen.execute(f"CREATE DATABASE {switch}")
    url = in_copenhagen.url(switch)
    async with open_database(DatabaseSettings(database_url=url, pool_size=1)) as db:
        clock = SetClock(db)
        await clock(at - timedelta(seconds=5))
        request_id, _ = await submitted(db, 2, deadline_ms=20_000)
        (lease,) = await claimed(db, request_id, 1, lease_seconds=10)
        await clock(at + timedelta(seconds=1))
        assert await renew(db, [lease], 10) == []
        (other,) = await claimed(db, request_id, 2)
        assert other.index_no == 1
        await clock(at + timedelta(seconds=12))
        assert [found.index_no for found in await claimed(db, request_id, 2)] == [0, 1]
        await clock(at + timedelta(seconds=16))
        assert await claimed(db, request_id, 2) == []
        assert await overdue(db, 0) == [request_id]
        assert await overdue(db, 5) == []
        assert await abandon(db, request_id)
        row = await request_row(db, request_id)
        assert row is not None
        assert row["deadline"] == (at + timedelta(seconds=15)).replace(tzinfo=None)
        assert row["closed_at"] == (at + timedelta(seconds=16)).replace(tzinfo=None)
        assert await settleable(db, 5, 0) == []
        await clock(at + timedelta(seconds=22))
        assert await settleable(db, 5, 0) == [request_id]
        assert await settle(db, request_id, 5) == "settled"
        (record,) = await meter_rows(db)
        assert record["settled_at"] == (at + timedelta(seconds=22)).replace(tzinfo=None)


async def test_a_request_is_claimable_at_once_and_due_to_the_microsecond(
    server: AnyServer, url: str
) -> None:
    """Whole seconds round up on one server and down on the other."""
    async with open_database(DatabaseSettings(database_url=url, pool_size=1)) as db:
        clock = SetClock(db)
        at = datetime(2026, 11, 5, 12, 0, 0, 700_001, tzinfo=UTC)
        await clock(at)
        request_id, public_id = await submitted(db, 1, deadline_ms=1_234)

        (lease,) = await claimed(db, request_id, lease_seconds=2.25)

        row = await request_row(db, request_id)
        assert row is not None
        assert row["created_at"] == at.replace(tzinfo=None)
        assert row["deadline"] - row["created_at"] == timedelta(milliseconds=1_234)
        (segment,) = await segment_rows(db, request_id)
        assert segment["lease_until"] - row["created_at"] == timedelta(seconds=2.25)
        await written(db, lease)
        await clock(at + timedelta(milliseconds=250))
        assert await close(db, request_id, "completed")
        answer = await answer_of(db, public_id)
        assert answer.created_at == at
        assert answer.finished_at == at + timedelta(milliseconds=250)


async def test_the_time_a_call_has_waited_counts_for_its_deadline(url: str) -> None:
    async with open_database(DatabaseSettings(database_url=url, pool_size=1)) as db:
        at = datetime(2026, 11, 5, 12, 0, 0, 1, tzinfo=UTC)
        await SetClock(db)(at)
        assert await submit(db, TENANT, submission(["a"], "mine", deadline_ms=10_000), 1.5)
        request = await read_request(db, TENANT, "mine")
        assert request is not None
        assert request.created_at.replace(tzinfo=UTC) == at - timedelta(seconds=1.5)
        assert request.deadline - request.created_at == timedelta(seconds=10)


async def test_no_time_moves_that_no_statement_moves(server: AnyServer, empty_url: str) -> None:
    """A server may give the first TIMESTAMP of a table an ON UPDATE that nobody asked for."""
    with global_setting(server, "explicit_defaults_for_timestamp", "OFF"):
        async with a_program(empty_url) as db:
            request_id, _ = await submitted(db, 1)
            (lease,) = await claimed(db, request_id)
            before = await request_row(db, request_id)
            (segment,) = await segment_rows(db, request_id)
            assert before is not None
            await db.write("UPDATE segments SET attempts = 2 WHERE request_id = %s", (request_id,))
            (touched,) = await segment_rows(db, request_id)
            assert touched["lease_until"] == segment["lease_until"]
            await written(db, lease)
            assert await close(db, request_id, "completed")
            after = await request_row(db, request_id)
            assert after is not None
            assert (after["created_at"], after["deadline"]) == (
                before["created_at"],
                before["deadline"],
            )
            with_a_clock = await db.read(
                "SELECT table_name AS name, column_name AS col, extra AS extra"
                " FROM information_schema.columns WHERE table_schema = DATABASE()"
                " AND (data_type = 'timestamp' OR extra LIKE '%%on update%%')"
            )
            assert with_a_clock == []


async def test_the_shortest_lease_outlives_the_longest_wait_for_its_row(
    server: AnyServer, db: Database, url: str
) -> None:
    """NOW(6) is when the statement began, so a lease that waited for its row is shorter."""
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        WorkerSettings(handler="sleep", lease_seconds=1.9, backoff_seconds=0.5)
    (waits,) = await db.read("SELECT @@SESSION.innodb_lock_wait_timeout AS seconds")
    assert waits["seconds"] == 1

    request_id, _ = await submitted(db, 1)
    (lease,) = await claimed(db, request_id)
    hold = "SELECT 1 FROM segments WHERE request_id = %s FOR UPDATE", (request_id,)
    async with frozen(url, hold) as cursor:
        renewing = asyncio.create_task(renew(db, [lease], 2))
        await somebody_waits_for_a_lock(server)
        await cursor.execute("ROLLBACK")
        assert await renewing == []
    assert await claimed(db, request_id) == []


# What SQL of the tree calls a time without microseconds, or without the zone that sessions share.
COARSE = re.compile(
    r"\b(NOW|CURRENT_TIMESTAMP|SYSDATE|UTC_TIMESTAMP|LOCALTIME|LOCALTIMESTAMP|CURTIME)\b(?!\(6\))"
    r"|\bUNIX_TIMESTAMP\b|\bCURRENT_DATE\b|\bCURDATE\b"
)


def texts() -> Iterator[tuple[str, str]]:
    """Every string of the programs, and the schema without its comments."""
    for folder in ("app", "batch", "store", "worker"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield str(file.relative_to(ROOT)), node.value
    schema = (ROOT / "schema.sql").read_text(encoding="utf-8")
    yield "schema.sql", re.sub(r"--.*|'[^']*'", "", schema)


def test_every_time_in_sql_has_its_microseconds() -> None:
    found: list[tuple[str, Any]] = []
    seen = 0
    for place, text in texts():
        seen += text.count("NOW(6)")
        found += [(place, hit.group()) for hit in COARSE.finditer(text)]
    assert found == []
    assert seen >= 15
    schema = dict(texts())["schema.sql"]
    assert re.findall(r"\b(?:DATETIME|TIMESTAMP|TIME)\b(?!\(6\))", schema) == []
