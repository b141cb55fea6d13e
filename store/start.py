"""A program looks at the server before it works on it, and refuses what it cannot run on."""

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
    """What a program cannot run on, in one line for the operator."""


@asynccontextmanager
async def open_database(settings: DatabaseSettings) -> AsyncIterator[Database]:
    """The database, checked and with its tables in place, for as long as the block lasts.

    The first program that starts applies the migrations. Raises StartupError, with the server's own
    words where it has any.
    """
    address = read_address(settings.database_url)
    async with checked(settings) as db:
        with refusing(address):
            await apply_pending(db, address)
            await check_skip_locked(db, address)
        yield db


async def migrate(settings: DatabaseSettings) -> list[str]:
    """The migrations that this call applied, in order; [] when none was pending.

    Raises StartupError when one cannot be applied; those before it stay.
    """
    address = read_address(settings.database_url)
    async with checked(settings) as db:
        with refusing(address):
            return await apply_pending(db, address)


async def pending(settings: DatabaseSettings) -> list[str]:
    """The migrations that are not applied yet, in order; [] when there are none. Changes nothing.

    Raises StartupError when the database is newer and no longer serves this program.
    """
    async with checked(settings) as db:
        with refusing(read_address(settings.database_url)):
            return await find_pending(db)


@asynccontextmanager
async def checked(settings: DatabaseSettings) -> AsyncIterator[Database]:
    """The database on a server that is able to run Partway; its tables are not looked at."""
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
    """Turns an error of the database inside the block into a StartupError, with its place."""
    place = address.unix_socket or f"{address.host}:{address.port}"
    try:
        yield
    except SchemaError as error:
        raise StartupError(str(error)) from error
    except (MySQLError, OSError, Unavailable) as error:
        raise StartupError(f"cannot use the database at {place}: {error_text(error)}") from error


TLS_CIPHER = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"


async def check_tls(db: Database, address: Address) -> None:
    """Nothing when the connection is encrypted or need not be; StartupError otherwise.

    The driver goes on in the clear when the server offers no TLS.
    """
    if address.tls is not None and not (await db.read(TLS_CIPHER))[0]["Value"]:
        raise StartupError("tls=on is set, but the server offers no TLS")


VERSION = "SELECT VERSION() AS version"


async def version_of(db: Database) -> str:
    """What the server says it is."""
    return str((await db.read(VERSION))[0]["version"])


def check_version(version: str) -> None:
    """Nothing when such a server is new enough; StartupError otherwise."""
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
    """Nothing when the binary log is off or written by rows; StartupError when it holds statements.

    READ COMMITTED fails on a statement log (1665), and a replica would skip other rows than we did.
    """
    found = {row["Variable_name"]: row["Value"] for row in await db.read(BINLOG)}
    if found.get("log_bin") == "ON" and found.get("binlog_format") == "STATEMENT":
        raise StartupError("the server writes its binary log by statement; set binlog_format = ROW")


# One row by its key: among several, the second connection would skip to the next and lock that.
LOCK_VERSION = "SELECT version FROM schema_version WHERE version = %s FOR UPDATE SKIP LOCKED"


async def check_skip_locked(db: Database, address: Address) -> None:
    """Nothing when a second connection skips the row that the first locked; else StartupError.

    Some engines accept the words and lock nothing, and two workers would claim the same segment.
    """
    async with db.transaction() as cursor:
        # Finding nothing means that another program that starts now holds the row: it does skip.
        if not await cursor.execute(LOCK_VERSION, (SCHEMA_VERSION,)):
            return
        # Not from the pool, which may hold one connection only.
        async with await connect(address) as second, second.cursor() as other:
            locked_twice = await other.execute(LOCK_VERSION, (SCHEMA_VERSION,))
    if locked_twice:
        raise StartupError(
            f"the server ({await version_of(db)}) accepts SKIP LOCKED but does not lock: "
            "two workers would claim the same segment"
        )
