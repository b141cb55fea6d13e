"""Checks the database server at the start of a program, and refuses one that cannot be used."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from pymysql.err import MySQLError

from partway.store.database import Database, Unavailable, connect, error_text, pooled
from partway.store.schema import SCHEMA_VERSION, SchemaError, apply_pending, find_pending
from partway.store.settings import Address, DatabaseSettings, read_address

# MySQL enforces CHECK since 8.0.16; MariaDB knows SKIP LOCKED since 10.6.
OLDEST_MYSQL = (8, 0, 16)
OLDEST_MARIADB = (10, 6, 0)


class StartupError(Exception):
    """The reason why a program cannot start, in one line for the operator."""


@asynccontextmanager
async def open_database(settings: DatabaseSettings) -> AsyncIterator[Database]:
    """The database for the length of the block, checked and with its tables up to date.

    The first program that starts applies the migrations. Raises StartupError, with the server's
    message if there is one.
    """
    address = read_address(settings.database_url)
    async with checked(settings) as db:
        with refusing(address):
            await apply_pending(db, address)
            await check_skip_locked(db, address)
        yield db


async def migrate(settings: DatabaseSettings) -> list[str]:
    """Apply the pending migrations; returns those that this call applied, in order.

    Raises StartupError when one cannot be applied. Those before it stay applied.
    """
    address = read_address(settings.database_url)
    async with checked(settings) as db:
        with refusing(address):
            return await apply_pending(db, address)


async def pending(settings: DatabaseSettings) -> list[str]:
    """The migrations that are not applied yet, in order; [] when there are none. Changes nothing.

    Raises StartupError when the database is newer and no longer supports this program.
    """
    async with checked(settings) as db:
        with refusing(read_address(settings.database_url)):
            return await find_pending(db)


@asynccontextmanager
async def checked(settings: DatabaseSettings) -> AsyncIterator[Database]:
    """The database for the length of the block, on a server that can run Partway.

    The tables are not checked.
    """
    address = read_address(settings.database_url)
    async with AsyncExitStack() as stack:
        with refusing(address):
            db = await stack.enter_async_context(pooled(settings))
            await check_tls(db, address)
            check_version(await version_of(db))
            await check_binlog(db)
        yield db


@contextmanager
def refusing(address: Address) -> Iterator[None]:
    """Turn a database error inside the block into a StartupError that names the server."""
    place = address.unix_socket or f"{address.host}:{address.port}"
    try:
        yield
    except SchemaError as error:
        raise StartupError(str(error)) from error
    except (MySQLError, OSError, Unavailable) as error:
        raise StartupError(f"cannot use the database at {place}: {error_text(error)}") from error


TLS_CIPHER = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"


async def check_tls(db: Database, address: Address) -> None:
    """Raise StartupError when TLS is required and the connection is not encrypted.

    The driver continues without encryption when the server offers no TLS.
    """
    if address.tls is not None and not (await db.read(TLS_CIPHER))[0]["Value"]:
        raise StartupError("tls=on is set, but the server offers no TLS")


VERSION = "SELECT VERSION() AS version"


async def version_of(db: Database) -> str:
    """The version string of the server."""
    return str((await db.read(VERSION))[0]["version"])


def check_version(version: str) -> None:
    """Raise StartupError when the server is too old, or no MySQL or MariaDB."""
    numbers = re.search(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None:
        raise StartupError(
            f"the server calls itself {version!r}, which is no MySQL or MariaDB version"
        )
    actual = tuple(int(number) for number in numbers.groups())
    name, oldest = ("MariaDB", OLDEST_MARIADB) if "MariaDB" in version else ("MySQL", OLDEST_MYSQL)
    if actual < oldest:
        needed = ".".join(str(number) for number in oldest)
        raise StartupError(f"the server is {version}; Partway needs {name} {needed} or newer")


BINLOG = "SHOW VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format')"


async def check_binlog(db: Database) -> None:
    """Raise StartupError when the server writes its binary log by statement.

    READ COMMITTED fails with such a log (1665), and on a replica SKIP LOCKED would skip other rows.
    """
    values = {row["Variable_name"]: row["Value"] for row in await db.read(BINLOG)}
    if values.get("log_bin") == "ON" and values.get("binlog_format") == "STATEMENT":
        raise StartupError("the server writes its binary log by statement; set binlog_format = ROW")


# One row, by its key: among several rows, the second connection would lock the next one.
LOCK_VERSION = "SELECT version FROM schema_version WHERE version = %s FOR UPDATE SKIP LOCKED"


async def check_skip_locked(db: Database, address: Address) -> None:
    """Raise StartupError when a second connection does not skip the row that the first locked.

    Some engines accept SKIP LOCKED and lock nothing. Two workers would then claim the same segment.
    """
    async with db.transaction() as cursor:
        # No row found: another program that starts now has locked it, so SKIP LOCKED works.
        if not await cursor.execute(LOCK_VERSION, (SCHEMA_VERSION,)):
            return
        # Not from the pool, which may have one connection only.
        async with await connect(address) as second, second.cursor() as other:
            locked_twice = await other.execute(LOCK_VERSION, (SCHEMA_VERSION,))
    if locked_twice:
        raise StartupError(
            f"the server ({await version_of(db)}) accepts SKIP LOCKED but does not lock: "
            "two workers would claim the same segment"
        )
