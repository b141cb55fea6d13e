"""Creates and changes the tables with numbered files; each file is applied once and in order."""

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

# The file at position N brings the tables from version N-1 to version N. The names are listed here
# so that a file that was not installed is noticed. migrations/README.md says what a file may do.
MIGRATIONS = ("0001_requests_and_meter.sql", "0002_keys_and_limits.sql")

# The tables that the statements of this program are written for.
SCHEMA_VERSION = len(MIGRATIONS)

# How long a program waits for another program that migrates, and a statement for open transactions.
# The server ends a frozen client after half of this time (wait_timeout).
WAIT_SECONDS = 60

# While an ALTER TABLE waits for an open transaction, every later statement on that table waits
# behind it. So it gives up after a second, lets the others run, and tries again.
MIGRATION_SESSION = SESSION + ", lock_wait_timeout = 1"
PAUSE_SECONDS = 0.5

# A table, column, key or constraint exists already, because a program was stopped after the
# statement. The servers commit each CREATE and ALTER by itself, so a file cannot be rolled back.
ALREADY_THERE = frozenset({1050, 1060, 1061, 1826, 3822})


class SchemaError(Exception):
    """Why the tables cannot serve this program, in one line for the operator."""


TABLES = """
SELECT COUNT(*) AS found
FROM   information_schema.tables
WHERE  table_schema = DATABASE()
  AND  table_name = 'schema_version'
"""

# One row for each version whose programs can run on these tables. The highest is the tables' own.
SERVED_VERSIONS = "SELECT version FROM schema_version"


async def find_pending(db: Database) -> list[str]:
    """The files that are not applied yet, in order; [] when there are none.

    Also [] when the tables are newer and still support this version, since migrations only add.
    Raises SchemaError when they no longer do.
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


# The lock is named after the database, so that programs on other databases do not wait. The name is
# hashed, since MySQL accepts at most 64 characters: here 8 and 56.
LOCK = "SELECT GET_LOCK(CONCAT('partway.', SHA2(LOWER(DATABASE()), 224)), %s)"

UNLOCK = "SELECT RELEASE_LOCK(CONCAT('partway.', SHA2(LOWER(DATABASE()), 224)))"


async def apply_pending(db: Database, address: Address) -> list[str]:
    """Apply the pending files; returns those that this call applied, in order.

    When none is pending, the account needs no right to create tables. Raises SchemaError when a
    file is missing or fails, or when another program holds the lock for too long.
    """
    if not await find_pending(db):
        return []
    applied = []
    # Not a connection of the pool, where a time limit applies: a key on a large table takes longer.
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
    """Run the statements of one file, and record its version."""
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
    """Run one statement, unless what it adds exists already; SchemaError when it fails."""
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
