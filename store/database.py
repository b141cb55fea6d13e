"""Every program reaches one database in one way, and holds a transaction only briefly."""

import asyncio
import functools
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import aiomysql
from pymysql.constants import CLIENT
from pymysql.err import InterfaceError, MySQLError

from partway.store.metrics import DB_AWAY, DB_POOL, error_counters, label_values
from partway.store.settings import Address, DatabaseSettings, read_address

log = logging.getLogger("partway.store")

Row = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")

# Set on every connection, reconnects included, in the one packet that the driver sends first.
# READ COMMITTED keeps the close from locking segments and a claim from locking what it scanned.
# The lock wait is short because nobody who answers may wait; wait_timeout ends a client that froze
# inside a transaction; group_concat_max_len holds the outcome of a million segments. Autocommit is
# here too: the driver sets it only where the greeting says that it is off, and MySQL's never does.
# Notes, such as that a table exists already, would each be fetched and printed.
SESSION = """
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET SESSION sql_mode = 'STRICT_ALL_TABLES,ONLY_FULL_GROUP_BY,NO_ENGINE_SUBSTITUTION',
            time_zone = '+00:00',
            autocommit = ON,
            sql_notes = OFF,
            innodb_lock_wait_timeout = 1,
            wait_timeout = 30,
            group_concat_max_len = 1048576
"""

# MariaDB's default since 11.6: a locking statement then fails with 1020 where it would have waited,
# and takes the write-backs of the same transaction with it.
WITHOUT_SNAPSHOT_ISOLATION = ", innodb_snapshot_isolation = OFF"
SNAPSHOT_ISOLATION = "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"

# Idle connections are renewed before the server's wait_timeout of 30 s ends them.
RECYCLE_SECONDS = 20

CONNECT_SECONDS = 3

# A server that accepts and never answers must not hold a program: no transaction takes this long.
ATTEMPT_SECONDS = 10

# A restart of the database takes longer; who cannot wait for that gets a clear error after this.
RETRY_SECONDS = 3

# Deadlock, lock wait, changed since the snapshot, certification at COMMIT: again at once.
CONFLICTS = frozenset({1213, 1205, 1020, 3101})

# Gone, refused, shutting down, killed, too many connections: again on another connection, or later.
GONE = frozenset(
    {2002, 2003, 2006, 2013, 2055, 1040, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1203, 1317, 1927}
    | {4031}
)

# A server that may no longer write after a failover, or has a full disk; it still reads.
UNWRITABLE = frozenset({1290, 1792, 1836} | {3, 1021, 1026, 1030, 1114})

UNAVAILABLE = GONE | UNWRITABLE

ERROR_COUNTS = error_counters(CONFLICTS | UNAVAILABLE)

CONNECTIONS = label_values(DB_POOL, "busy", "idle")

CANNOT_CONNECT = 2003


class Unavailable(Exception):
    """The database cannot do this now; it may be asked again later, and nothing was half done."""


class Database:
    """The connections of one program, and since when the database has been away."""

    def __init__(self, pool: aiomysql.Pool) -> None:
        self._pool = pool
        # Who waits inside the pool is not woken when a connection comes back closed.
        self._turns = asyncio.Semaphore(pool.maxsize)
        self._away_since: float | None = None
        self._still_reads = False

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[aiomysql.Connection]:
        async with asyncio.timeout(ATTEMPT_SECONDS), self._turns:
            connection = await self._pool.acquire()
            try:
                yield connection
            except BaseException as error:
                # An answer may still be on its way, or the server may no longer be the one that
                # writes: the next borrower must not meet either.
                if is_connection_broken(error):
                    connection.close()
                raise
            finally:
                await self._pool.release(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[aiomysql.DictCursor]:
        """One short transaction: committed at the end of the block, rolled back when it raises.

        Nothing inside awaits anything but the cursor. Run it under `retried`: any part of it,
        the commit included, can meet a conflict or a lost connection.
        """
        async with self._connection() as connection:
            await connection.begin()
            try:
                async with connection.cursor(aiomysql.DictCursor) as cursor:
                    yield cursor
                await connection.commit()
            except Exception:
                # A lock wait (1205) ends the statement and leaves the transaction open.
                if not connection.closed:
                    await connection.rollback()
                raise

    async def read(
        self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[Row]:
        """The rows of one plain read, outside any transaction; [] when there are none."""

        async def once(_: Exception | None) -> list[Row]:
            async with self._connection() as link, link.cursor(aiomysql.DictCursor) as cursor:
                await cursor.execute(statement, values)
                return list(await cursor.fetchall())

        return await self.retry(once, only_reads=True)

    async def write(self, statement: str, values: Sequence[Any] = ()) -> int:
        """How many rows one statement, committed by itself, found to change.

        It runs again when the reply was lost: only for statements whose guard allows that.
        """

        async def once(_: Exception | None) -> int:
            async with self._connection() as link, link.cursor() as cursor:
                return int(await cursor.execute(statement, values))

        return await self.retry(once)

    async def retry(
        self, run: Callable[[Exception | None], Awaitable[T]], only_reads: bool = False
    ) -> T:
        """What `run` returns; it runs again, whole, after a conflict or a lost connection.

        `run` is told the error that the run before it met, None at first. Raises Unavailable when
        RETRY_SECONDS were not enough; any other error as it comes.
        """
        ends_at = time.monotonic() + RETRY_SECONDS
        pause = 0.01
        trouble: Exception | None = None
        while True:
            lost_again = trouble is not None
            try:
                result = await run(trouble)
            except (MySQLError, OSError, EOFError) as error:
                if not is_retryable(error):
                    raise
                trouble = error
                ERROR_COUNTS[error_number(error)].inc()
                if error_number(error) in CONFLICTS:
                    # Operators ask how often; a caller sees only that it took a little longer.
                    log.info("met %s, running again", error_text(error))
            else:
                # A read that succeeds says nothing about a server that may not write.
                if not (only_reads and self._still_reads):
                    self._note_back()
                return result
            given_up = time.monotonic() + pause > ends_at
            # One lost connection is replaced and no news; what is not mended by that is.
            if error_number(trouble) not in CONFLICTS and (lost_again or given_up):
                self._note_away(trouble)
            if given_up:
                raise Unavailable(
                    f"the database cannot do this now: {error_text(trouble)}"
                ) from trouble
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 0.5)

    def _note_away(self, error: Exception) -> None:
        self._still_reads = error_number(error) in UNWRITABLE
        if self._away_since is None:
            self._away_since = time.monotonic()
            DB_AWAY.set(1)
            log.warning("database away, trying on: %s", error_text(error))

    def _note_back(self) -> None:
        if self._away_since is not None:
            log.warning("database back after %.1f s", time.monotonic() - self._away_since)
            self._away_since = None
            self._still_reads = False
            DB_AWAY.set(0)


def retried(
    step: Callable[Concatenate[Database, P], Awaitable[T]],
) -> Callable[Concatenate[Database, P], Awaitable[T]]:
    """The same function, run again whole as Database.retry says."""

    @functools.wraps(step)
    async def whole(db: Database, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await db.retry(lambda _: step(db, *args, **kwargs))

    return whole


def error_number(error: BaseException | None) -> int | None:
    """The number that the server or the driver gives an error; None when it has none."""
    if isinstance(error, MySQLError) and not isinstance(error, InterfaceError) and error.args:
        number = error.args[0]
        return number if isinstance(number, int) else None
    return None


def is_connection_broken(error: BaseException) -> bool:
    """Whether the connection that met this error must not be used again.

    A broken socket, a time limit, a cancelled read, a packet out of order; a server that went away.
    """
    if isinstance(error, MySQLError):
        return error_number(error) is None or error_number(error) in UNAVAILABLE
    return not isinstance(error, Exception) or isinstance(error, OSError | EOFError)


def is_retryable(error: Exception) -> bool:
    """Whether the same again may succeed: after a conflict, or on another connection."""
    return error_number(error) in CONFLICTS or is_connection_broken(error)


def error_text(error: BaseException | None) -> str:
    """An error in one line, for a log or a refusal."""
    number = error_number(error)
    if number is not None and error is not None:
        # The driver says only that it cannot connect; why is in what it met.
        why = f" ({error.__cause__})" if number == CANNOT_CONNECT and error.__cause__ else ""
        return " ".join(f"{number} {error.args[-1]}{why}".split())
    if isinstance(error, TimeoutError):
        return f"no answer within {ATTEMPT_SECONDS} s"
    return " ".join(f"{type(error).__name__}: {error}".split())


def expand_lists(statement: str, count: int) -> str:
    """The statement with its `(...)`, and its `WHEN ... THEN ...`, written out for `count` items.

    PyMySQL takes no list as a parameter, and a row constructor with one tuple scans the whole table
    on MariaDB.
    """
    return statement.replace("(...)", "(" + ", ".join(["%s"] * count) + ")").replace(
        "WHEN ... THEN ...", " ".join(["WHEN %s THEN %s"] * count)
    )


async def connect(address: Address, **more: Any) -> aiomysql.Connection:
    """One connection outside the pool, with the server's own session settings."""
    return await aiomysql.connect(**_where(address), **more)


def _where(address: Address) -> dict[str, Any]:
    return {
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "password": address.password,
        "db": address.database,
        "unix_socket": address.unix_socket,
        "ssl": address.tls,
        "charset": "utf8mb4",
        "autocommit": True,  # a plain read must see what is there now, not an old snapshot
        "connect_timeout": CONNECT_SECONDS,
        # Rows found, not rows changed: an identical renewal is no lost lease.
        "client_flag": CLIENT.FOUND_ROWS,
    }


@asynccontextmanager
async def pooled(settings: DatabaseSettings) -> AsyncIterator[Database]:
    """The database of a program for as long as the block lasts; every connection has SESSION set.

    Raises what the driver raises when the server cannot be reached.
    """
    address = read_address(settings.database_url)
    async with asyncio.timeout(ATTEMPT_SECONDS):
        async with await connect(address) as first, first.cursor() as cursor:
            known = await cursor.execute(SNAPSHOT_ISOLATION)
        pool = await aiomysql.create_pool(
            **_where(address),
            init_command=SESSION + (WITHOUT_SNAPSHOT_ISOLATION if known else ""),
            minsize=1,
            maxsize=settings.pool_size,
            pool_recycle=RECYCLE_SECONDS,
        )
    CONNECTIONS["busy"].set_function(lambda: pool.size - pool.freesize)
    CONNECTIONS["idle"].set_function(lambda: pool.freesize)
    try:
        yield Database(pool)
    finally:
        pool.terminate()
        await pool.wait_closed()
