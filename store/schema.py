"""The tables are made and changed by numbered files, each applied once and in order."""

import asyncio
import logging
import re
import time
from pathlib import Path

import aiomysql
from pymysql.err import MySQLError

from partway.store.database import (
    ATTEMPT_SECONDS,
    CONFLICTS,
    SESSION,
    Database,
    connect,
    error_number,
    error_text,
)
from partway.store.settings import Address

log = logging.getLogger("partway.store")

FOLDER = Path(__file__).parent / "migrations"

# The file at position N brings the tables from version N-1 to version N. The names stand here so
# that a file that was not installed is missed; its README.md says what a file may hold.
MIGRATIONS = ("0001_requests_and_meter.sql", "0002_keys_and_limits.sql")

# The tables that the statements of this program are written for.
SCHEMA_VERSION = len(MIGRATIONS)

# How long a program waits for another one that migrates, and a statement for open transactions. The
# server ends a frozen client after half of it (wait_timeout).
WAIT_SECONDS = 60

# While an ALTER TABLE waits for an open transaction, every later statement on that table waits
# behind it. So it gives way after a second, lets the others pass, and asks again.
MIGRATION_SESSION = SESSION + ", lock_wait_timeout = 1"
PAUSE_SECONDS = 0.5

# Table, column, key and constraint: what the statement adds is there, because a program was stopped
# after it. The servers commit each CREATE and ALTER by itself, so a file has no rollback.
ALREADY_THERE = frozenset({1050, 1060, 1061, 1826, 3822})


class SchemaError(Exception):
    """Why the tables cannot serve this program, in one line for the operator."""


TABLES = """
SELECT COUNT(*) AS found
FROM   information_schema.tables
WHERE  table_schema = DATABASE()
  AND  table_name = 'schema_version'
"""

# A row for each version whose programs may run on these tables. The highest is that of the tables.
SERVED_VERSIONS = "SELECT version FROM schema_version"


async def find_pending(db: Database) -> list[str]:
    """The files that are not applied yet, in order; [] when there are none.

    [] also when the tables are newer and still serve this version: migrations only add. Raises
    SchemaError when they no longer do.
    """
    served: set[int] = set()
    if (await db.read(TABLES))[0]["found"]:
        served = {row["version"] for row in await db.read(SERVED_VERSIONS)}
    newest = max(served, default=0)
    if newest > SCHEMA_VERSION and SCHEMA_VERSION not in served:
        raise SchemaError(
            f"the database holds schema version {newest}, which no longer serves programs of "
            f"version {SCHEMA_VERSION}: run a newer Partway"
        )
    return list(MIGRATIONS[newest:])


# Named after the database: programs on other databases of the server must not wait. Hashed, since
# MySQL takes no name longer than 64 characters: these are 8 and 56.
LOCK = "SELECT GET_LOCK(CONCAT('partway.', SHA2(LOWER(DATABASE()), 224)), %s)"

UNLOCK = "SELECT RELEASE_LOCK(CONCAT('partway.', SHA2(LOWER(DATABASE()), 224)))"


async def apply_pending(db: Database, address: Address) -> list[str]:
    """The files that were applied by this call, in order; [] when none was pending.

    An account without the right to create tables will do when none is pending. Raises SchemaError
    when a file is missing, when it stops at an error, or when another program holds the lock for
    too long.
    """
    if not await find_pending(db):
        return []
    applied = []
    # Not from the pool, whose statements end after seconds: a key on a large table takes longer.
    # When this connection ends, the server releases the lock.
    async with (
        await connect(address, init_command=MIGRATION_SESSION) as connection,
        connection.cursor() as cursor,
    ):
        async with asyncio.timeout(WAIT_SECONDS + ATTEMPT_SECONDS):
            await cursor.execute(LOCK, (WAIT_SECONDS,))
            (locked,) = await cursor.fetchone()
        if not locked:
            raise SchemaError(
                f"another program has been migrating the database for more than {WAIT_SECONDS} s; "
                "start again when it has finished"
            )
        # Read again: another program may have applied them while this one waited.
        for name in await find_pending(db):
            await apply_file(cursor, name)
            log.info("migration applied: %s", name)
            applied.append(name)
        await cursor.execute(UNLOCK)
    return applied


RECORD_VERSION = """
INSERT INTO schema_version (version)
VALUES (%s)
ON DUPLICATE KEY UPDATE version = version
"""


async def apply_file(cursor: aiomysql.Cursor, name: str) -> None:
    """Nothing; afterwards what the file adds is there, and its version is recorded."""
    for statement in statements(read_file(name)):
        await execute(cursor, name, statement)
    await execute(cursor, name, RECORD_VERSION % (MIGRATIONS.index(name) + 1))


def read_file(name: str) -> str:
    """The text of a migration; SchemaError when the file is not there."""
    try:
        return (FOLDER / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SchemaError(f"{FOLDER / name} is missing from the installation") from None


def statements(script: str) -> list[str]:
    """The statements of a file, in order; each ends with a semicolon at the end of a line."""
    return [part for part in re.split(r";[ \t]*$", script, flags=re.MULTILINE) if part.strip()]


async def execute(cursor: aiomysql.Cursor, name: str, statement: str) -> None:
    """Nothing; afterwards what the statement adds is there. SchemaError when it is refused."""
    ends_at = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            await cursor.execute(statement)
        except MySQLError as error:
            if error_number(error) in ALREADY_THERE:
                return
            if error_number(error) not in CONFLICTS or time.monotonic() > ends_at:
                raise SchemaError(f"the migration {name} stopped: {error_text(error)}") from error
        else:
            return
        await asyncio.sleep(PAUSE_SECONDS)
