"""Each version of the tables becomes the next one, and programs of the previous version run on."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiomysql
import pytest

from partway.batch.reaper import abandon, overdue
from partway.batch.settle import settle, settleable
from partway.store import schema
from partway.store.close import close
from partway.store.database import Database, connect, expand_lists, pooled
from partway.store.schema import FOLDER, LOCK, MIGRATION_SESSION, MIGRATIONS, apply_file, statements
from partway.store.settings import DatabaseSettings, read_address
from partway.store.start import StartupError, migrate, open_database, pending
from partway.worker.lease import Lease
from tests.actions import (
    ROOT,
    WAIT_SECONDS,
    Programs,
    expire,
    frozen,
    pass_time,
    wait_until,
    worked,
    written,
)
from tests.conftest import AnyServer

VERSIONS = list(range(1, len(MIGRATIONS) + 1))


def at(url: str) -> DatabaseSettings:
    """The settings of a program on this database."""
    return DatabaseSettings(database_url=url)


@pytest.fixture
def second_url(server: AnyServer, empty_url: str) -> Iterator[str]:
    """The URL of another fresh database on the same server."""
    name = f"{read_address(empty_url).database}_second"
    server.execute(f"CREATE DATABASE {name} CHARACTER SET latin1")
    yield server.url(name)
    server.execute(f"DROP DATABASE {name}")


@asynccontextmanager
async def session(url: str) -> AsyncIterator[aiomysql.Cursor]:
    """A connection like that of a program which migrates."""
    async with (
        await connect(read_address(url), init_command=MIGRATION_SESSION) as connection,
        connection.cursor() as cursor,
    ):
        yield cursor


async def make_version(url: str, version: int) -> None:
    """Bring an empty database to this version."""
    async with session(url) as cursor:
        for name in MIGRATIONS[:version]:
            await apply_file(cursor, name)


async def shown(url: str) -> dict[str, str]:
    """Each table of a database as the server describes it, by its name.

    MySQL shows a text in a CHECK with a character set, which is another one after any ALTER TABLE:
    it is left out.
    """
    async with session(url) as cursor:
        await cursor.execute("SHOW TABLES")
        tables = [name for (name,) in await cursor.fetchall()]
        described = {}
        for table in tables:
            await cursor.execute(f"SHOW CREATE TABLE {table}")
            said = (await cursor.fetchone())[1]
            described[table] = re.sub(r"\b_(?:ascii|utf8mb4)(?=')", "", said)
    return described


async def shown_by_the_readable_whole(url: str) -> dict[str, str]:
    """Each table that schema.sql makes in this empty database; it is empty again afterwards."""
    async with session(url) as cursor:
        for statement in statements((ROOT / "schema.sql").read_text(encoding="utf-8")):
            await cursor.execute(statement)
    described = await shown(url)
    await drop_all(url)
    return described


async def drop_all(url: str) -> None:
    """Make a database empty."""
    tables = ", ".join(await shown(url))
    async with session(url) as cursor:
        await cursor.execute(f"DROP TABLE {tables}")


async def recorded(url: str) -> list[int]:
    """The versions that schema_version names."""
    async with session(url) as cursor:
        await cursor.execute("SELECT version FROM schema_version ORDER BY version")
        return [version for (version,) in await cursor.fetchall()]


async def test_the_migrations_make_the_tables_that_schema_sql_shows(
    empty_url: str, second_url: str
) -> None:
    assert await migrate(at(empty_url)) == list(MIGRATIONS)

    assert await shown(empty_url) == await shown_by_the_readable_whole(second_url)
    assert await recorded(empty_url) == VERSIONS


async def test_a_migration_that_was_stopped_after_any_statement_is_finished_by_the_next_program(
    empty_url: str,
) -> None:
    wanted = await shown_by_the_readable_whole(empty_url)
    for version, name in enumerate(MIGRATIONS):
        parts = statements((FOLDER / name).read_text(encoding="utf-8"))
        for stopped_after in range(len(parts) + 1):
            # What was done before is committed, statement by statement: so it is left by a program
            # that dies there.
            await make_version(empty_url, version)
            async with session(empty_url) as cursor:
                for part in parts[:stopped_after]:
                    await cursor.execute(part)

            assert await migrate(at(empty_url)) == list(MIGRATIONS[version:])

            assert await shown(empty_url) == wanted, f"{name}, stopped after {stopped_after}"
            assert await recorded(empty_url) == VERSIONS
            await drop_all(empty_url)


async def test_programs_of_which_one_was_killed_amid_a_migration_leave_it_to_the_next(
    server: AnyServer, empty_url: str, second_url: str, programs: Programs
) -> None:
    async def waits_for_the_meter() -> bool:
        sessions = [str(session) for session in server.execute("SHOW FULL PROCESSLIST")]
        return any("metadata lock" in said and "by_day" in said for said in sessions)

    await make_version(empty_url, 1)
    async with pooled(at(empty_url)) as db:
        # A backup, say, has read the meter and not ended: the key on it cannot be added yet.
        async with frozen(empty_url, ("SELECT COUNT(*) FROM meter", ())):
            program = programs.start("batch", "--once", url=empty_url)
            await wait_until(waits_for_the_meter, "a migration that waits for the meter")
            assert await db.read("SHOW COLUMNS FROM requests LIKE 'traceparent'")
            # Those who write to the same table wait behind it for a moment only.
            for number in range(3):
                await asyncio.wait_for(
                    db.write(
                        "INSERT INTO meter (tenant, public_id, status, segments,"
                        " input_characters, output_characters, billed, settled_at)"
                        " VALUES ('t', %s, 'completed', 1, 1, 1, TRUE, NOW(6))",
                        (str(number),),
                    ),
                    WAIT_SECONDS,
                )
            assert program.process.poll() is None, program.said()
            program.process.kill()
            program.process.wait()
            assert await recorded(empty_url) == [1]
            next_one = asyncio.create_task(migrate(at(empty_url)))
        assert await asyncio.wait_for(next_one, WAIT_SECONDS) == list(MIGRATIONS[1:])

    assert await shown(empty_url) == await shown_by_the_readable_whole(second_url)


@pytest.mark.parametrize("version", [0, 1])
async def test_of_eight_programs_that_start_at_once_one_applies_each_migration(
    empty_url: str, version: int
) -> None:
    await make_version(empty_url, version)

    applied = await asyncio.gather(*(migrate(at(empty_url)) for _ in range(8)))

    assert sorted(applied) == [[]] * 7 + [list(MIGRATIONS[version:])]
    assert await recorded(empty_url) == VERSIONS


async def test_eight_programs_that_start_at_once_on_an_empty_database_all_start(
    empty_url: str,
) -> None:
    async def start() -> int:
        async with open_database(at(empty_url)) as db:
            return len(await db.read("SELECT * FROM schema_version"))

    assert await asyncio.gather(*(start() for _ in range(8))) == [len(VERSIONS)] * 8


async def test_what_is_pending_is_listed_and_nothing_is_changed(empty_url: str) -> None:
    assert await pending(at(empty_url)) == list(MIGRATIONS)
    assert await shown(empty_url) == {}

    await make_version(empty_url, 1)
    before = await shown(empty_url)
    assert await pending(at(empty_url)) == list(MIGRATIONS[1:])
    assert await shown(empty_url) == before

    await migrate(at(empty_url))
    assert await pending(at(empty_url)) == []
    assert await migrate(at(empty_url)) == []


async def test_only_programs_on_the_same_database_wait_for_a_migration_and_not_for_ever(
    empty_url: str, second_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "WAIT_SECONDS", 1)
    async with session(empty_url) as cursor:
        await cursor.execute(LOCK, (0,))
        assert await cursor.fetchone() == (1,)

        assert await migrate(at(second_url)) == list(MIGRATIONS)
        with pytest.raises(StartupError, match="another program has been migrating the database"):
            await migrate(at(empty_url))
    assert await migrate(at(empty_url)) == list(MIGRATIONS)


async def test_programs_start_on_newer_tables_that_still_serve_them(empty_url: str) -> None:
    async with open_database(at(empty_url)) as db:
        await db.write("INSERT INTO schema_version (version) VALUES (999)")

    async with open_database(at(empty_url)) as db:
        assert len(await db.read("SELECT * FROM schema_version")) == len(VERSIONS) + 1
    assert await pending(at(empty_url)) == []
    assert await migrate(at(empty_url)) == []


async def test_a_file_that_was_not_installed_is_named_and_the_database_not_blamed(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "FOLDER", tmp_path)

    with pytest.raises(StartupError) as refusal:
        await migrate(at(empty_url))

    assert str(refusal.value) == f"{tmp_path / MIGRATIONS[0]} is missing from the installation"


# What programs of version 1 ran, as they ran it. It never changes.
INSERT_REQUEST_1 = """
INSERT INTO requests
       (tenant, public_id, body_hash, segments, characters, params, gaps, on_missing,
        created_at, deadline)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s,
        NOW(6) - INTERVAL %s MICROSECOND,
        NOW(6) + INTERVAL %s MICROSECOND)
"""

INSERT_SEGMENTS_1 = """
INSERT INTO segments (request_id, index_no, status, source, result)
VALUES (%s, %s, %s, %s, %s)
"""

LEASE_1 = """
UPDATE segments
SET    status = 'processing',
       lease_token = %s,
       owner_id = %s,
       lease_until = NOW(6) + INTERVAL %s MICROSECOND,
       attempts = attempts + 1
WHERE  request_id = %s
  AND  index_no IN (...)
"""

WRITE_BACK_1 = """
UPDATE segments
SET    status = 'done',
       result = CASE index_no WHEN ... THEN ... END,
       error = NULL,
       lease_until = NULL
WHERE  request_id = %s
  AND  lease_token = %s
  AND  status = 'processing'
  AND  index_no IN (...)
"""

EXHAUST_1 = """
UPDATE segments
SET    status = 'failed',
       error = COALESCE(error, %s),
       lease_token = NULL,
       lease_until = NULL
WHERE  request_id = %s
  AND  index_no IN (...)
"""

CLOSE_1 = """
UPDATE requests r
SET    r.status = %s,
       r.closed_at = NOW(6),
       r.outcome = (SELECT COALESCE(GROUP_CONCAT(CASE s.status
                                                   WHEN 'done' THEN 'd'
                                                   WHEN 'failed' THEN 'f'
                                                   WHEN 'processing' THEN 'r'
                                                   ELSE 'p'
                                                 END ORDER BY s.index_no SEPARATOR ''), '')
                    FROM   segments s
                    WHERE  s.request_id = r.id)
WHERE  r.id = %s
  AND  r.status = 'active'
"""

METER_1 = """
INSERT INTO meter
       (tenant, public_id, status, segments, input_characters, output_characters, billed,
        settled_at)
SELECT r.tenant, r.public_id, r.status,
       COUNT(s.index_no),
       COALESCE(SUM(CHAR_LENGTH(s.source)), 0),
       COALESCE(SUM(CHAR_LENGTH(s.result)), 0),
       r.status <> 'abandoned',
       NOW(6)
FROM   requests r
LEFT   JOIN segments s
       ON  s.request_id = r.id
       AND s.status = 'done'
       AND (SUBSTRING(r.outcome, s.index_no + 1, 1) = 'd'
            OR r.status <> 'completed' AND SUBSTRING(r.outcome, s.index_no + 1, 1) = 'r')
WHERE  r.id = %s
GROUP  BY r.id, r.tenant, r.public_id, r.status
"""

TOKEN = b"sixteen bytes of"


async def store_1(db: Database, public_id: str, sources: Sequence[str], states: str) -> int:
    """A request that programs of version 1 stored and worked on; its number.

    `states` has a letter for each segment, as an outcome has.
    """
    minute = 60_000_000
    async with db.transaction() as cursor:
        await cursor.execute(
            INSERT_REQUEST_1,
            (
                *("default", public_id, bytes(32), len(sources), len("".join(sources))),
                *("{}", None, "null", 0, minute),
            ),
        )
        number = int(cursor.lastrowid)
        await cursor.executemany(
            INSERT_SEGMENTS_1,
            [(number, index_no, "pending", text, None) for index_no, text in enumerate(sources)],
        )
        for index_no, state in enumerate(states):
            if state != "p":
                lease = (TOKEN, "worker", minute, number, index_no)
                assert await cursor.execute(expand_lists(LEASE_1, 1), lease) == 1
            if state == "d":
                result = (index_no, sources[index_no] * 2, number, TOKEN, index_no)
                assert await cursor.execute(expand_lists(WRITE_BACK_1, 1), result) == 1
            if state == "f":
                assert (
                    await cursor.execute(expand_lists(EXHAUST_1, 1), ("why", number, index_no)) == 1
                )
    return number


async def store_all_1(db: Database) -> dict[str, int]:
    """A request of each kind, as programs of version 1 leave them: its number by its id."""
    texts = ["ä", "🫠🫠", "three", "four"]
    requests = {
        "active": await store_1(db, "active", texts, "drpf"),
        "overdue": await store_1(db, "overdue", texts, "ddpp"),
        "completed": await store_1(db, "completed", texts, "dfdr"),
        "cancelled": await store_1(db, "cancelled", texts, "drrp"),
        "abandoned": await store_1(db, "abandoned", texts, "dppp"),
    }
    for status in ("completed", "cancelled", "abandoned"):
        assert await db.write(CLOSE_1, (status, requests[status])) == 1
    return requests


async def finish(db: Database, requests: dict[str, int]) -> None:
    """What the programs of today do with those requests, up to where they can be settled."""
    # One segment that ran at the cancel is written back, the other never.
    assert not await written(db, Lease(requests["cancelled"], 1, TOKEN, 1, ""), result="twelve")
    await expire(db, requests["cancelled"])
    await expire(db, requests["active"])
    await worked(db, requests["active"], 2)
    assert await close(db, requests["active"], "completed")
    await pass_time(db, requests["overdue"], 300)
    assert await overdue(db, 60) == [requests["overdue"]]
    assert await abandon(db, requests["overdue"])
    for name in ("active", "completed", "cancelled", "abandoned"):
        await pass_time(db, requests[name], 100)


async def settle_all(db: Database) -> None:
    """What the batch of today does."""
    await db.write("UPDATE requests SET closed_at = closed_at - INTERVAL 100 SECOND")
    ready = await settleable(db, 60, 0)
    assert len(ready) == 5
    assert {await settle(db, request_id, 60) for request_id in ready} == {"settled"}


async def settle_all_1(db: Database) -> None:
    """What a batch of version 1 did."""
    for row in await db.read("SELECT id FROM requests"):
        async with db.transaction() as cursor:
            assert await cursor.execute(METER_1, (row["id"],)) == 1
            await cursor.execute("DELETE FROM segments WHERE request_id = %s", (row["id"],))
            await cursor.execute("DELETE FROM requests WHERE id = %s", (row["id"],))


async def bill(db: Database) -> list[tuple[object, ...]]:
    """The whole ledger, without its times."""
    assert await db.read("SELECT * FROM requests") == []
    assert await db.read("SELECT * FROM segments") == []
    rows = await db.read(
        "SELECT public_id, status, segments, input_characters, output_characters, billed"
        " FROM meter ORDER BY public_id"
    )
    return [tuple(row.values()) for row in rows]


BILL = [
    ("abandoned", "abandoned", 1, 1, 2, 0),
    ("active", "completed", 3, 8, 9, 1),
    ("cancelled", "cancelled", 2, 3, 10, 1),
    ("completed", "completed", 2, 6, 12, 1),
    ("overdue", "abandoned", 2, 3, 6, 0),
]


async def test_requests_that_were_open_at_the_migration_are_settled_to_the_same_bill(
    empty_url: str, second_url: str
) -> None:
    await make_version(empty_url, 1)
    async with pooled(at(empty_url)) as old:
        requests = await store_all_1(old)
    async with open_database(at(empty_url)) as migrated:
        assert await recorded(empty_url) == VERSIONS
        await finish(migrated, requests)
        await settle_all(migrated)
        assert await bill(migrated) == BILL

    async with open_database(at(second_url)) as fresh:
        await finish(fresh, await store_all_1(fresh))
        await settle_all(fresh)
        assert await bill(fresh) == BILL


async def test_programs_of_version_1_run_on_beside_the_newest_tables(db: Database) -> None:
    await finish(db, await store_all_1(db))
    await settle_all_1(db)

    assert await bill(db) == BILL


def breaches(statement: str) -> list[str]:
    """How a migration after the first breaks the rule of store/migrations/README.md; [] as a rule.

    A whole word in a comment or in a text says nothing.
    """
    words = re.sub(r"--.*|'(?:[^']|'')*'|`[^`]*`", "", statement).upper().strip()
    found = [word for word in ("RENAME", "CHANGE", "DROP") if re.search(rf"\b{word}\b", words)]
    if words.startswith("ALTER TABLE"):
        if re.search(r"\bNOT\s+NULL\b", words) and not re.search(r"\bDEFAULT\b", words):
            found.append("NOT NULL without DEFAULT")
        if "," in re.sub(r"\([^()]*\)", "", words):
            found.append("more than one change")
    elif not words.startswith("CREATE TABLE IF NOT EXISTS"):
        found.append("cannot run again")
    return found


@pytest.mark.parametrize(
    "statement, breach",
    [
        ("ALTER TABLE meter RENAME TO ledger", "RENAME"),
        ("RENAME TABLE meter TO ledger", "RENAME"),
        ("ALTER TABLE meter RENAME COLUMN tenant TO account", "RENAME"),
        ("ALTER TABLE meter CHANGE tenant account VARCHAR(64)", "CHANGE"),
        ("ALTER TABLE meter DROP COLUMN billed", "DROP"),
        ("ALTER TABLE meter DROP billed", "DROP"),
        ("DROP TABLE meter", "DROP"),
        ("ALTER TABLE meter ADD COLUMN price INT NOT NULL", "NOT NULL without DEFAULT"),
        ("alter table meter add price int not  null", "NOT NULL without DEFAULT"),
        ("ALTER TABLE meter ADD a INT NOT NULL COMMENT 'DEFAULT'", "NOT NULL without DEFAULT"),
        ("ALTER TABLE meter ADD a INT NULL, ADD b INT NULL", "more than one change"),
        ("CREATE TABLE prices (a INT)", "cannot run again"),
    ],
)
def test_a_statement_that_breaks_the_rule_is_found(statement: str, breach: str) -> None:
    assert breach in breaches(statement)


@pytest.mark.parametrize("name", MIGRATIONS[1:])
def test_a_migration_only_adds_so_that_the_previous_version_runs_on(name: str) -> None:
    parts = statements((FOLDER / name).read_text(encoding="utf-8"))

    assert parts
    assert {part: breaches(part) for part in parts if breaches(part)} == {}


def test_the_files_are_numbered_without_a_hole_and_all_of_them_are_listed() -> None:
    assert tuple(sorted(file.name for file in FOLDER.glob("*.sql"))) == MIGRATIONS
    for version, name in enumerate(MIGRATIONS, 1):
        assert re.fullmatch(rf"{version:04}_[a-z_]+\.sql", name)
