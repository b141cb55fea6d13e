"""The store: every connection is the same, a transaction is whole or nothing, and waits end."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from pymysql.err import IntegrityError

from local.server import Server
from local.server import find as find_server
from partway.app.requests.fanout import submit
from partway.batch.settle import settle
from partway.store import database
from partway.store.close import close
from partway.store.database import Database, Unavailable, error_number, pooled, retried
from partway.store.loop import repeat, until_idle
from partway.store.settings import DatabaseSettings, read_address
from partway.store.start import StartupError, open_database
from tests.actions import (
    TENANT,
    WAIT_SECONDS,
    claimed,
    frozen,
    meter_rows,
    request_row,
    statuses,
    submission,
    submitted,
    wait_until,
    written,
)
from tests.proxy import proxied

number = itertools.count(1)


@pytest.fixture(scope="module", params=["mariadb", "mysql", "mariadb-snapshot"])
def own(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that a test may change, stop and start."""
    program = find_server(request.param.removesuffix("-snapshot"))
    if program is None:
        pytest.skip(f"there is no {request.param} server here")
    options = ("--innodb-snapshot-isolation=ON",) if request.param.endswith("-snapshot") else ()
    server = Server(program, tmp_path_factory.mktemp("own"), options, tcp=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def place(own: Server) -> Iterator[str]:
    """The TCP URL of a fresh database with one small table."""
    name = f"partway_store_{next(number)}"
    own.execute(f"CREATE DATABASE {name}")
    own.execute(f"CREATE TABLE {name}.counts (id INT PRIMARY KEY, n INT NOT NULL) ENGINE = InnoDB")
    own.execute(f"INSERT INTO {name}.counts VALUES (1, 0), (2, 0)")
    yield own.tcp_url(name)
    own.execute(f"DROP DATABASE {name}")


@asynccontextmanager
async def pool_of(size: int, url: str) -> AsyncIterator[Database]:
    """The database through a pool of this size."""
    async with pooled(DatabaseSettings(database_url=url, pool_size=size)) as db:
        yield db


async def counts(db: Database) -> list[int]:
    """The two numbers of the small table."""
    return [row["n"] for row in await db.read("SELECT n FROM counts ORDER BY id")]


SESSIONS = "SELECT id FROM information_schema.processlist WHERE user = 'partway'"

ADD = "UPDATE counts SET n = n + 1 WHERE id = %s"

SESSION_VARIABLES = """
SHOW SESSION VARIABLES
WHERE Variable_name IN
      ('tx_isolation', 'transaction_isolation', 'sql_mode', 'time_zone', 'autocommit',
       'innodb_lock_wait_timeout', 'wait_timeout', 'group_concat_max_len',
       'character_set_client', 'character_set_connection', 'character_set_results',
       'innodb_snapshot_isolation')
"""


async def sessions_of(db: Database, size: int) -> list[tuple[int, dict[str, str]]]:
    """The number and the variables of `size` connections that are held side by side."""

    async def once(trouble: Exception | None) -> list[tuple[int, dict[str, str]]]:
        found = []
        async with AsyncExitStack() as held:
            for _ in range(size):
                cursor = await held.enter_async_context(db.transaction())
                await cursor.execute(SESSION_VARIABLES)
                variables = {row["Variable_name"]: row["Value"] for row in await cursor.fetchall()}
                await cursor.execute("SELECT CONNECTION_ID() AS id")
                found.append(((await cursor.fetchone())["id"], variables))
        return found

    return await db.retry(once)


def check_session(variables: dict[str, str]) -> None:
    """Fail unless a connection is as every connection has to be."""
    isolation = {variables.pop(name, None) for name in ("tx_isolation", "transaction_isolation")}
    assert isolation - {None} == {"READ-COMMITTED"}
    assert set(variables.pop("sql_mode").split(",")) == {
        *("STRICT_ALL_TABLES", "ONLY_FULL_GROUP_BY", "NO_ENGINE_SUBSTITUTION")
    }
    assert variables.pop("innodb_snapshot_isolation", "OFF") == "OFF"
    assert variables == {
        "time_zone": "+00:00",
        "autocommit": "ON",
        "innodb_lock_wait_timeout": "1",
        "wait_timeout": "30",
        "group_concat_max_len": "1048576",
        "character_set_client": "utf8mb4",
        "character_set_connection": "utf8mb4",
        "character_set_results": "utf8mb4",
    }


GLOBAL_CHANGES = (
    "SET GLOBAL time_zone = '+05:00'",
    "SET GLOBAL sql_mode = ''",
    "SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SET GLOBAL innodb_lock_wait_timeout = 50",
    "SET GLOBAL wait_timeout = 28800",
    "SET GLOBAL group_concat_max_len = 1024",
    "SET GLOBAL character_set_client = latin1, GLOBAL character_set_results = latin1",
    "SET GLOBAL autocommit = OFF",
)


async def test_every_connection_is_the_same_reconnects_and_changed_servers_included(
    own: Server, place: str
) -> None:
    async with pool_of(4, place) as db:
        first = await sessions_of(db, 4)
        try:
            for change in GLOBAL_CHANGES:
                own.execute(change)
            if own.program.kind == "mariadb":
                own.execute("SET GLOBAL innodb_snapshot_isolation = ON")
            await kill_all_sessions(own)
            again = await sessions_of(db, 4)
        finally:
            own.stop()
            own.start()
        after_restart = await sessions_of(db, 4)

        numbers = [number for number, _ in first + again]
        assert len(set(numbers)) == 8
        for _, variables in first + again + after_restart:
            check_session(variables)
        # Rows found, not rows changed.
        assert await db.write("UPDATE counts SET n = 0 WHERE id < 9") == 2


async def kill_all_sessions(own: Server) -> None:
    """End every session of the programs' account, and come back when they are gone."""
    for (session,) in own.execute(SESSIONS):
        own.execute(f"KILL {session}")

    async def gone() -> bool:
        return not own.execute(SESSIONS)

    await wait_until(gone, "the end of all sessions")


async def test_after_every_session_was_killed_the_next_statements_succeed(
    own: Server, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    for again in ("read", "write", "transaction"):
        async with pool_of(3, place) as db:
            await sessions_of(db, 3)
            await kill_all_sessions(own)
            if again == "read":
                assert len(await counts(db)) == 2
            elif again == "write":
                assert await db.write(ADD, (1,)) == 1
            else:

                async def add(_: Exception | None, db: Database = db) -> None:
                    async with db.transaction() as cursor:
                        await cursor.execute(ADD, (1,))

                await db.retry(add)
    async with pool_of(1, place) as db:
        assert await counts(db) == [2, 0]
    # Lost connections that were replaced at once are no news.
    assert caplog.text == ""


async def test_a_session_that_is_killed_in_the_middle_of_a_read_is_replaced(
    own: Server, place: str
) -> None:
    async with pool_of(1, place) as db:
        ((session, _),) = await sessions_of(db, 1)
        reading = asyncio.create_task(db.read("SELECT SLEEP(1) AS slept"))

        async def reads() -> Any:
            return own.execute(
                "SELECT 1 FROM information_schema.processlist"
                " WHERE id = %s AND info LIKE '%%SLEEP%%'",
                session,
            )

        await wait_until(reads, "the read to begin")
        own.execute(f"KILL {session}")
        assert await reading == [{"slept": 0}]


async def test_connections_that_the_server_ended_for_idleness_are_not_used_again(
    own: Server, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    short = database.SESSION.replace(" wait_timeout = 30", " wait_timeout = 1")
    assert short != database.SESSION
    monkeypatch.setattr(database, "SESSION", short)
    async with pool_of(3, place) as db:
        await sessions_of(db, 3)

        async def ended() -> bool:
            return not own.execute(SESSIONS)

        await wait_until(ended, "the server to end idle sessions")
        assert await counts(db) == [0, 0]
        assert await db.write(ADD, (1,)) == 1
    assert caplog.text == ""


async def test_a_pool_renews_its_connections_before_the_server_ends_them() -> None:
    assert database.RECYCLE_SECONDS < 30
    assert " wait_timeout = 30" in database.SESSION


@pytest.fixture
def soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cannot be served is told so after a second instead of three."""
    monkeypatch.setattr(database, "RETRY_SECONDS", 1)


@pytest.mark.usefixtures("soon_given_up")
async def test_a_restart_is_one_line_when_it_goes_and_one_when_it_is_back(
    own: Server, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool_of(5, place) as db:
        await sessions_of(db, 5)
        own.kill()
        said = await asyncio.gather(*(counts(db) for _ in range(30)), return_exceptions=True)
        assert {type(one) for one in said} == {Unavailable}
        with pytest.raises(Unavailable):
            await db.write(ADD, (1,))
        own.start()
        assert await asyncio.gather(*(counts(db) for _ in range(30))) == [[0, 0]] * 30
        assert await db.write(ADD, (1,)) == 1

    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, lines
    assert lines[0].startswith("database unavailable, retrying: 2")
    assert lines[1].startswith("database available again after ")


async def test_who_asks_while_the_server_restarts_gets_an_answer_from_the_new_one(
    own: Server,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(database, "RETRY_SECONDS", WAIT_SECONDS)
    async with pool_of(5, place) as db:
        await sessions_of(db, 5)
        own.kill()
        asking = asyncio.create_task(db.write(ADD, (2,)))

        async def met() -> bool:
            return "database unavailable" in caplog.text

        await wait_until(met, "a first try to fail")
        own.start()
        assert await asking == 1
        assert await counts(db) == [0, 1]


async def test_a_deadlock_undoes_one_transaction_and_runs_it_again_whole(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "partway.store")
    runs = []
    meet = asyncio.Barrier(2)

    async with pool_of(2, place) as db:

        async def both(first: int, second: int) -> None:
            async def once(trouble: Exception | None) -> None:
                runs.append(error_number(trouble))
                async with db.transaction() as cursor:
                    await cursor.execute(ADD, (first,))
                    if trouble is None:
                        await meet.wait()
                    await cursor.execute(ADD, (second,))

            await db.retry(once)

        await asyncio.gather(both(1, 2), both(2, 1))

        assert runs == [None, None, 1213]
        assert await counts(db) == [2, 2]
    # For the operator, who sees no caller complain.
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("transaction retried after 1213 ")


async def test_after_a_lock_wait_no_half_of_the_transaction_is_kept(place: str) -> None:
    async with pool_of(1, place) as db:
        ((before, _),) = await sessions_of(db, 1)
        met = []
        async with frozen(place, ("SELECT * FROM counts WHERE id = 2 FOR UPDATE", ())) as cursor:

            async def once(trouble: Exception | None) -> None:
                if trouble is not None:
                    # The half that had succeeded is undone already, and locks nothing.
                    met.append((error_number(trouble), await counts(db)))
                    await cursor.execute("SELECT * FROM counts WHERE id = 1 FOR UPDATE")
                    await cursor.execute("ROLLBACK")
                async with db.transaction() as mine:
                    await mine.execute(ADD, (1,))
                    await mine.execute(ADD, (2,))

            await db.retry(once)

        assert met == [(1205, [0, 0])]
        assert await counts(db) == [1, 1]
        # Rolled back, not thrown away: a conflict costs no connection.
        assert [number for number, _ in await sessions_of(db, 1)] == [before]


@pytest.mark.usefixtures("soon_given_up")
async def test_who_never_gets_a_lock_is_told_so_and_has_changed_nothing(place: str) -> None:
    async with (
        pool_of(1, place) as db,
        frozen(place, ("SELECT * FROM counts WHERE id = 2 FOR UPDATE", ())),
    ):

        @retried
        async def add(db: Database) -> None:
            async with db.transaction() as cursor:
                await cursor.execute(ADD, (1,))
                await cursor.execute(ADD, (2,))

        with pytest.raises(Unavailable, match="1205"):
            await add(db)
        assert await counts(db) == [0, 0]


async def test_what_changed_since_the_snapshot_is_run_again_whole(own: Server, place: str) -> None:
    async with pool_of(1, place) as db:
        if not await db.read("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"):
            pytest.skip("this server has no snapshot isolation")
        await db.write("SET SESSION innodb_snapshot_isolation = ON")
        await db.write("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        runs = []
        other = f"{read_address(place).database}.counts"

        async def once(trouble: Exception | None) -> None:
            runs.append(error_number(trouble))
            async with db.transaction() as cursor:
                await cursor.execute("SELECT * FROM counts")
                if trouble is None:
                    own.execute(f"UPDATE {other} SET n = 10 WHERE id = 2")
                await cursor.execute(ADD, (1,))
                await cursor.execute(ADD, (2,))

        await db.retry(once)

        assert runs == [None, 1020]
        assert await counts(db) == [1, 11]


async def test_an_error_that_trying_again_cannot_mend_comes_as_it_is(place: str) -> None:
    async with pool_of(1, place) as db:
        runs = []

        async def once(trouble: Exception | None) -> None:
            runs.append(trouble)
            async with db.transaction() as cursor:
                await cursor.execute(ADD, (1,))
                await cursor.execute("INSERT INTO counts VALUES (1, 1)")

        with pytest.raises(IntegrityError):
            await db.retry(once)
        assert runs == [None]
        assert await counts(db) == [0, 0]


def read_only(own: Server, on: bool) -> None:
    """Let the server be a replica, or the one that writes again."""
    word = "super_read_only" if own.program.kind == "mysql" else "read_only"
    own.execute(f"SET GLOBAL {word} = {'ON' if on else 'OFF'}")
    if not on:
        own.execute("SET GLOBAL read_only = OFF")


@pytest.mark.usefixtures("soon_given_up")
async def test_a_server_that_may_not_write_is_waited_for(
    own: Server, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool_of(3, place) as db:
        read_only(own, True)
        try:
            for _ in range(2):
                with pytest.raises(Unavailable, match=r"1290|1792|1836"):
                    await db.write(ADD, (1,))
                # Reads go on, and are no sign that it writes again.
                assert await counts(db) == [0, 0]
            waiting = asyncio.create_task(db.write(ADD, (1,)))
            await asyncio.sleep(0.1)
            assert not waiting.done()
        finally:
            read_only(own, False)
        assert await waiting == 1
        assert await counts(db) == [1, 0]

    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(":")[0].split(" after")[0] for line in lines] == [
        "database unavailable, retrying",
        "database available again",
    ]


async def test_a_connection_to_a_server_that_no_longer_writes_is_given_up(
    own: Server, place: str
) -> None:
    """After a failover it would lead to the old one for ever."""
    async with pool_of(1, place) as db:
        ((before, _),) = await sessions_of(db, 1)
        read_only(own, True)
        try:
            waiting = asyncio.create_task(db.write(ADD, (1,)))

            async def replaced() -> bool:
                return (before,) not in own.execute(SESSIONS)

            await wait_until(replaced, "the connection to be given up")
        finally:
            read_only(own, False)
        assert await waiting == 1


async def test_a_server_that_takes_calls_and_never_answers_holds_nobody_for_long(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(place) as proxy, pool_of(2, proxy.url(place)) as db:
        assert await counts(db) == [0, 0]
        # As in earnest, one attempt is longer than all the time for trying again.
        monkeypatch.setattr(database, "ATTEMPT_SECONDS", 0.5)
        monkeypatch.setattr(database, "RETRY_SECONDS", 0.2)
        proxy.stall()
        async with asyncio.timeout(WAIT_SECONDS):
            with pytest.raises(Unavailable, match="no answer within"):
                await counts(db)
            assert caplog.text.count("database unavailable, retrying: no answer within") == 1

            async def once(_: Exception | None) -> None:
                async with db.transaction() as cursor:
                    await cursor.execute(ADD, (1,))

            with pytest.raises(Unavailable):
                await db.retry(once)
            with pytest.raises(StartupError, match="no answer within"):
                async with open_database(DatabaseSettings(database_url=proxy.url(place))):
                    pass
        monkeypatch.undo()
        proxy.flow()
        assert await counts(db) == [0, 0]


async def test_a_read_that_was_cancelled_leaves_nothing_to_the_next(
    own: Server, place: str
) -> None:
    async with pool_of(5, place) as db:

        async def asked(marker: int) -> Any:
            return await db.read("SELECT %s AS marker, SLEEP(0.01)", (marker,))

        tasks = [asyncio.create_task(asked(i)) for i in range(200)]
        for task in random.sample(tasks, 120):
            await asyncio.sleep(0.001)
            task.cancel()
        said = await asyncio.gather(*tasks, return_exceptions=True)

        got = {i: one for i, one in enumerate(said) if not isinstance(one, BaseException)}
        assert len(got) >= 80
        assert [i for i, rows in got.items() if rows[0]["marker"] != i] == []
        # The pool is whole again: five side by side, and no more sessions than that.
        assert len({number for number, _ in await sessions_of(db, 5)}) == 5

        async def few() -> bool:
            return len(own.execute(SESSIONS)) <= 5

        await wait_until(few, "the sessions of cancelled reads to end")


async def test_who_gives_up_waiting_for_a_connection_loses_none(own: Server, place: str) -> None:
    async with pool_of(2, place) as db:
        gave_up = 0
        for _ in range(10):
            async with db.transaction(), db.transaction():
                waits = [asyncio.create_task(counts(db)) for _ in range(50)]
                await asyncio.sleep(0)
                for wait in waits[:40]:
                    wait.cancel()
            said = await asyncio.gather(*waits, return_exceptions=True)
            gave_up += sum(isinstance(one, asyncio.CancelledError) for one in said)
            assert said[40:] == [[0, 0]] * 10
        assert gave_up == 400
        assert len(await sessions_of(db, 2)) == 2

    async def none() -> bool:
        return not own.execute(SESSIONS)

    await wait_until(none, "the end of the pool's sessions")


async def test_a_pool_ends_while_its_connections_are_in_use(own: Server, place: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        async with pool_of(2, place) as db:
            asking = [asyncio.create_task(db.read("SELECT SLEEP(20)")) for _ in range(4)]
            await wait_until(lambda: two_ask(own), "two reads to begin")
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    for (session,) in own.execute(SESSIONS):
        own.execute(f"KILL {session}")


async def two_ask(own: Server) -> bool:
    """Whether two sessions are in the middle of a read."""
    asking = "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP(20)'"
    return len(own.execute(asking)) == 2


async def test_who_waits_for_the_only_connection_gets_its_turn_when_it_comes_back_closed(
    place: str,
) -> None:
    async with pool_of(1, place) as db:
        began = asyncio.Event()

        async def hold() -> None:
            async with db.transaction() as cursor:
                began.set()
                await cursor.execute("SELECT SLEEP(20)")

        holding = asyncio.create_task(hold())
        await began.wait()
        waiting = [asyncio.create_task(counts(db)) for _ in range(3)]
        await asyncio.sleep(0)
        holding.cancel()

        assert await asyncio.wait_for(asyncio.gather(*waiting), 5) == [[0, 0]] * 3


async def test_a_pool_of_one_is_enough_for_everything(own: Server, place: str) -> None:
    async with open_database(DatabaseSettings(database_url=place, pool_size=1)) as db:
        assert await submit(db, TENANT, submission(["a", "b"], "mine"), 0)
        request_id, public_id = await submitted(db, 3)
        await written(db, *await claimed(db, request_id, 2))
        assert await statuses(db, request_id) == ["done", "done", "pending"]
        assert await close(db, request_id, "completed")
        assert await settle(db, request_id, 0) == "settled"
        assert len(await meter_rows(db, public_id)) == 1


async def test_a_transaction_that_is_cancelled_keeps_nothing_and_locks_nothing(
    place: str,
) -> None:
    async with pool_of(2, place) as db:
        changed = asyncio.Event()

        async def change() -> None:
            async with db.transaction() as cursor:
                await cursor.execute(ADD, (1,))
                changed.set()
                await asyncio.sleep(20)

        changing = asyncio.create_task(change())
        await changed.wait()
        changing.cancel()

        assert await db.write(ADD, (1,)) == 1
        assert await counts(db) == [1, 0]


async def test_a_poll_sees_what_was_committed_since_the_last(own: Server, place: str) -> None:
    """A pool that leaves autocommit off reads one old snapshot for ever."""
    async with pool_of(1, place) as db:
        assert await counts(db) == [0, 0]
        own.execute(f"UPDATE {read_address(place).database}.counts SET n = 7")
        assert await counts(db) == [7, 7]


async def test_only_the_first_close_counts(place: str) -> None:
    async with open_database(DatabaseSettings(database_url=place)) as db:
        request_id, _ = await submitted(db, 2)
        (lease,) = await claimed(db, request_id)
        said = await asyncio.gather(
            close(db, request_id, "completed"), close(db, request_id, "cancelled")
        )
        assert sorted(said) == [False, True]
        closed = await request_row(db, request_id)
        assert closed is not None
        assert closed["outcome"] == "rp"
        await written(db, lease)
        assert not await close(db, request_id, "abandoned")
        assert await request_row(db, request_id) == closed
        assert not await close(db, request_id + 1, "completed")


async def test_an_outcome_longer_than_a_thousand_letters_is_whole(place: str) -> None:
    async with open_database(DatabaseSettings(database_url=place)) as db:
        request_id, _ = await submitted(db, 1500)
        assert await close(db, request_id, "completed")
        (row,) = await db.read("SELECT outcome FROM requests WHERE id = %s", (request_id,))
        assert row["outcome"] == "p" * 1500


async def test_a_step_is_repeated_at_once_while_it_finds_work_and_until_told_to_stop() -> None:
    stop = asyncio.Event()
    found = iter([True, True, False, True])
    steps = []

    async def step() -> bool:
        steps.append(time.monotonic())
        again = next(found, None)
        if again is None:
            stop.set()
        elif len(steps) == 2:
            raise Unavailable("a database that is away is a rest")
        return bool(again)

    await asyncio.wait_for(repeat(step, lambda: 0.05, stop), WAIT_SECONDS)
    assert len(steps) == 5


async def test_a_rest_ends_when_told_to_stop_or_woken() -> None:
    stop, wake = asyncio.Event(), asyncio.Event()
    rested = asyncio.Event()
    steps = 0

    async def step() -> bool:
        nonlocal steps
        steps += 1
        rested.set()
        return False

    loop = asyncio.create_task(repeat(step, lambda: 3600, stop, wake, first_seconds=3600))
    for expected in (1, 2, 3):
        await asyncio.wait_for(rested.wait(), WAIT_SECONDS)
        assert steps == expected
        rested.clear()
        await asyncio.sleep(0)
        wake.set()
    await asyncio.wait_for(rested.wait(), WAIT_SECONDS)
    stop.set()
    await asyncio.wait_for(loop, WAIT_SECONDS)


async def test_until_idle_ends_when_nothing_is_left() -> None:
    left = [True, True, False]

    async def step() -> bool:
        return left.pop(0)

    await until_idle(step, asyncio.Event())
    assert left == []
