"""A program looks at the server before it works on it, and refuses what it cannot run on."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from pymysql.err import MySQLError

from partway.store.database import Database, Unavailable, connect, error_text, pooled
from partway.store.settings import Address, DatabaseSettings, read_address

SCHEMA = Path(__file__).resolve().parent.parent / "schema.sql"
SCHEMA_VERSION = 2

# MySQL enforces CHECK since 8.0.16; MariaDB knows SKIP LOCKED since 10.6.
OLDEST_MYSQL = (8, 0, 16)
OLDEST_MARIADB = (10, 6, 0)


class StartupError(Exception):
    """What a program cannot run on, in one line for the operator."""


@asynccontextmanager
async def open_database(settings: DatabaseSettings) -> AsyncIterator[Database]:
    """The database, checked and with its tables in place, for as long as the block lasts.

    Raises Refusal, with the server's own words where it has any.
    """
    address = read_address(settings.database_url)
    place = address.unix_socket or f"{address.host}:{address.port}"
    async with AsyncExitStack() as stack:
        try:
            db = await stack.enter_async_context(pooled(settings))
            await check_tls(db, address)
            check_version(await version_of(db))
            await check_binlog(db)
            await apply_schema(db)
            await check_skip_locked(db, address)
        except (MySQLError, OSError, Unavailable) as error:
            raise StartupError(
                f"cannot use the database at {place}: {error_text(error)}"
            ) from error
        yield db


TLS_CIPHER = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"


async def check_tls(db: Database, address: Address) -> None:
    """Nothing when the connection is encrypted or need not be; Refusal otherwise.

    The driver goes on in the clear when the server offers no TLS.
    """
    if address.tls is not None and not (await db.read(TLS_CIPHER))[0]["Value"]:
        raise StartupError("tls=on is set, but the server offers no TLS")


VERSION = "SELECT VERSION() AS version"


async def version_of(db: Database) -> str:
    """What the server says it is."""
    return str((await db.read(VERSION))[0]["version"])


def check_version(version: str) -> None:
    """Nothing when such a server is new enough; Refusal otherwise."""
    numbers = re.search(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None:
        raise StartupError(
            f"the server calls itself {version!r}, which is no MySQL or MariaDB version"
        )
    found = tuple(int(number) for number in numbers.groups())
    name, oldest = ("MariaDB", OLDEST_MARIADB) if "MariaDB" in version else ("MySQL", OLDEST_MYSQL)
    if found < oldest:
        wanted = ".".join(str(number) for number in oldest)
        raise StartupError(f"the server is {version}; Partway needs {name} {wanted} or newer")


BINLOG = "SHOW VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format')"


async def check_binlog(db: Database) -> None:
    """Nothing when the binary log is off or written by rows; Refusal when it holds statements.

    READ COMMITTED fails on a statement log (1665), and a replica would skip other rows than we did.
    """
    found = {row["Variable_name"]: row["Value"] for row in await db.read(BINLOG)}
    if found.get("log_bin") == "ON" and found.get("binlog_format") == "STATEMENT":
        raise StartupError("the server writes its binary log by statement; set binlog_format = ROW")


TABLES = """
SELECT COUNT(*) AS found
FROM   information_schema.tables
WHERE  table_schema = DATABASE()
  AND  table_name = 'schema_version'
"""

NEWEST_VERSION = "SELECT COALESCE(MAX(version), 0) AS version FROM schema_version"

RECORD_VERSION = """
INSERT INTO schema_version (version)
VALUES (%s)
ON DUPLICATE KEY UPDATE version = version
"""


async def apply_schema(db: Database) -> None:
    """Nothing; afterwards the tables are there. Refusal when they are another version's.

    An account without the right to create tables will do where they exist already.
    """
    version = 0
    if (await db.read(TABLES))[0]["found"]:
        version = (await db.read(NEWEST_VERSION))[0]["version"]
    if version > SCHEMA_VERSION:
        raise StartupError(
            f"the database holds schema version {version} and this program knows {SCHEMA_VERSION}: "
            "run a newer Partway"
        )
    if 0 < version < SCHEMA_VERSION:
        raise StartupError(
            f"the database holds schema version {version}, made by an earlier Partway; "
            "start on an empty database"
        )
    if version < SCHEMA_VERSION:
        for statement in statements(SCHEMA.read_text(encoding="utf-8")):
            await db.write(statement)
        await db.write(RECORD_VERSION, (SCHEMA_VERSION,))


def statements(script: str) -> list[str]:
    """The statements of schema.sql, in order; each ends with a semicolon at the end of a line."""
    return [part for part in re.split(r";[ \t]*$", script, flags=re.MULTILINE) if part.strip()]


LOCK_VERSION = "SELECT version FROM schema_version LIMIT 1 FOR UPDATE SKIP LOCKED"


async def check_skip_locked(db: Database, address: Address) -> None:
    """Nothing when a second connection skips the row that the first one locked; Refusal otherwise.

    Some engines accept the words and lock nothing, and two workers would claim the same segment.
    """
    async with db.transaction() as cursor:
        # Finding nothing means that another program that starts now holds the row: it does skip.
        if not await cursor.execute(LOCK_VERSION):
            return
        # Not from the pool, which may hold one connection only.
        async with await connect(address) as second, second.cursor() as other:
            locked_twice = await other.execute(LOCK_VERSION)
    if locked_twice:
        raise StartupError(
            f"the server ({await version_of(db)}) accepts SKIP LOCKED but does not lock: "
            "two workers would claim the same segment"
        )
