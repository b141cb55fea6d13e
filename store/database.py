"""Connects every program to the one database in the same way, with short transactions only."""

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

from partway.store.metrics import DB_POOL, DB_UNAVAILABLE, error_counters, label_values
from partway.store.settings import Address, DatabaseSettings, read_address

log = logging.getLogger("partway.store")

Row = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")

# Set on every connection, reconnects included, in the first packet that the driver sends.
# READ COMMITTED: otherwise a close would lock segments, and a claim would lock the rows it scans.
# innodb_lock_wait_timeout is short because an answer must not wait for a lock. wait_timeout ends a
# client that froze inside a transaction. group_concat_max_len allows the outcome of a million
# segments. autocommit is set here because the driver sets it only when the server's greeting says
# that it is off, and the greeting of MySQL never does. sql_notes is off because the driver would
# fetch and print each note, such as that a table exists already.
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

# On by default since MariaDB 11.6. A locking statement would then fail with 1020 instead of
# waiting, and the write-backs of the same transaction would be rolled back.
WITHOUT_SNAPSHOT_ISOLATION = ", innodb_snapshot_isolation = OFF"
SNAPSHOT_ISOLATION = "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"

# Idle connections are renewed before the server's wait_timeout of 30 s ends them.
RECYCLE_SECONDS = 20

CONNECT_SECONDS = 3

# The limit for one attempt: a server that accepts and never answers must not block a program. No
# transaction takes this long.
ATTEMPT_SECONDS = 10

# How long a transaction is retried. A restart of the database takes longer: then the caller gets
# Unavailable.
RETRY_SECONDS = 3

# Deadlock, lock wait timeout, row changed since the snapshot, certification failed at COMMIT: the
# transaction runs again at once.
CONFLICTS = frozenset({1213, 1205, 1020, 3101})

# Connection lost or refused, server shutting down, connection killed, too many connections: the
# transaction runs again on another connection, or later.
GONE = frozenset(
    {2002, 2003, 2006, 2013, 2055, 1040, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1203, 1317, 1927}
    | {4031}
)

# The server is read-only after a failover, or its disk is full. Reads still succeed.
READ_ONLY = frozenset({1290, 1792, 1836} | {3, 1021, 1026, 1030, 1114})

UNAVAILABLE = GONE | READ_ONLY

ERROR_COUNTS = error_counters(CONFLICTS | UNAVAILABLE)

CONNECTIONS = label_values(DB_POOL, "busy", "idle")

CANNOT_CONNECT = 2003


class Unavailable(Exception):
    """The database is unavailable now. Nothing was half done, and a later attempt may succeed."""


class Database:
    """The connections of one program, and since when the database has been unavailable."""

    def __init__(self, pool: aiomysql.Pool) -> None:
        self._pool = pool
        # The pool does not wake a waiting task when a connection is released that was closed.
        self._free_connections = asyncio.Semaphore(pool.maxsize)
        self._unavailable_since: float | None = None
        self._is_read_only = False

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[aiomysql.Connection]:
        async with asyncio.timeout(ATTEMPT_SECONDS), self._free_connections:
            connection = await self._pool.acquire()
            try:
                yield connection
            except BaseException as error:
                # An answer may still arrive on this connection, or the server may be read-only. It
                # must not be used again.
                if is_connection_broken(error):
                    connection.close()
                raise
            finally:
                await self._pool.release(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[aiomysql.DictCursor]:
        """One short transaction: committed at the end of the block, rolled back when it raises.

        Inside, await nothing but the cursor. Use it in a function that is `retried`: each part,
        the commit included, can fail with a conflict or a lost connection.
        """
        async with self._connection() as connection:
            await connection.begin()
            try:
                async with connection.cursor(aiomysql.DictCursor) as cursor:
                    yield cursor
                await connection.commit()
            except Exception:
                # A lock wait timeout (1205) ends the statement, but leaves the transaction open.
                if not connection.closed:
                    await connection.rollback()
                raise

    async def read(
        self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[Row]:
        """The rows of one plain read, outside any transaction; [] when there are none."""

        async def run(_: Exception | None) -> list[Row]:
            async with (
                self._connection() as connection,
                connection.cursor(aiomysql.DictCursor) as cursor,
            ):
                await cursor.execute(statement, values)
                return list(await cursor.fetchall())

        return await self.retry(run, only_reads=True)

    async def write(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run one statement, committed by itself; returns how many rows its condition matched.

        It runs again when the reply was lost. Only statements whose guard allows that may be used.
        """

        async def run(_: Exception | None) -> int:
            async with self._connection() as connection, connection.cursor() as cursor:
                return int(await cursor.execute(statement, values))

        return await self.retry(run)

    async def retry(
        self, run: Callable[[Exception | None], Awaitable[T]], only_reads: bool = False
    ) -> T:
        """Return what `run` returns; run it again, whole, after a conflict or a lost connection.

        `run` gets the error of its previous run, or None. Raises Unavailable when RETRY_SECONDS
        were not enough. Other errors are raised at once.
        """
        ends_at = time.monotonic() + RETRY_SECONDS
        pause = 0.01
        last_error: Exception | None = None
        while True:
            is_repeated = last_error is not None
            try:
                result = await run(last_error)
            except (MySQLError, OSError, EOFError) as error:
                if not is_retryable(error):
                    raise
                last_error = error
                ERROR_COUNTS[error_number(error)].inc()
                if error_number(error) in CONFLICTS:
                    # Operators want to know how often. For a caller it only takes a little longer.
                    log.info("transaction retried after %s", error_text(error))
            else:
                # While the server is read-only, a read that succeeds does not show that it writes.
                if not (only_reads and self._is_read_only):
                    self._note_available()
                return result
            gives_up = time.monotonic() + pause > ends_at
            # A single lost connection is replaced and not reported. A second failure is.
            if error_number(last_error) not in CONFLICTS and (is_repeated or gives_up):
                self._note_unavailable(last_error)
            if gives_up:
                raise Unavailable(
                    f"the database is unavailable: {error_text(last_error)}"
                ) from last_error
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 0.5)

    def _note_unavailable(self, error: Exception) -> None:
        self._is_read_only = error_number(error) in READ_ONLY
        if self._unavailable_since is None:
            self._unavailable_since = time.monotonic()
            DB_UNAVAILABLE.set(1)
            log.warning("database unavailable, retrying: %s", error_text(error))

    def _note_available(self) -> None:
        if self._unavailable_since is not None:
            seconds = time.monotonic() - self._unavailable_since
            log.warning("database available again after %.1f s", seconds)
            self._unavailable_since = None
            self._is_read_only = False
            DB_UNAVAILABLE.set(0)


def retried(
    step: Callable[Concatenate[Database, P], Awaitable[T]],
) -> Callable[Concatenate[Database, P], Awaitable[T]]:
    """Decorate a function so that Database.retry runs it."""

    @functools.wraps(step)
    async def run(db: Database, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await db.retry(lambda _: step(db, *args, **kwargs))

    return run


def error_number(error: BaseException | None) -> int | None:
    """The error number of the server or the driver; None when the error has none."""
    if isinstance(error, MySQLError) and not isinstance(error, InterfaceError) and error.args:
        number = error.args[0]
        return number if isinstance(number, int) else None
    return None


def is_connection_broken(error: BaseException) -> bool:
    """Whether a connection must not be used again after this error.

    True for a broken socket, a timeout, a cancelled read, a packet out of order, and a server that
    went away.
    """
    if isinstance(error, MySQLError):
        return error_number(error) is None or error_number(error) in UNAVAILABLE
    return not isinstance(error, Exception) or isinstance(error, OSError | EOFError)


def is_retryable(error: Exception) -> bool:
    """Whether another run may succeed: after a conflict, or on another connection."""
    return error_number(error) in CONFLICTS or is_connection_broken(error)


def error_text(error: BaseException | None) -> str:
    """Describe an error in one line, for a log or an error message."""
    number = error_number(error)
    if number is not None and error is not None:
        # The driver reports only that it cannot connect. The reason is in its cause.
        why = f" ({error.__cause__})" if number == CANNOT_CONNECT and error.__cause__ else ""
        return " ".join(f"{number} {error.args[-1]}{why}".split())
    if isinstance(error, TimeoutError):
        return f"no answer within {ATTEMPT_SECONDS} s"
    return " ".join(f"{type(error).__name__}: {error}".split())


def expand_lists(statement: str, count: int) -> str:
    """Repeat the placeholders in `(...)` and `WHEN ... THEN ...` for `count` items.

    PyMySQL accepts no list as a parameter, and on MariaDB a row constructor with one tuple scans
    the whole table.
    """
    return statement.replace("(...)", "(" + ", ".join(["%s"] * count) + ")").replace(
        "WHEN ... THEN ...", " ".join(["WHEN %s THEN %s"] * count)
    )


async def connect(address: Address, **options: Any) -> aiomysql.Connection:
    """Open one connection outside the pool, with the session settings of the server."""
    return await aiomysql.connect(**_connection_options(address), **options)


def _connection_options(address: Address) -> dict[str, Any]:
    return {
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "password": address.password,
        "db": address.database,
        "unix_socket": address.unix_socket,
        "ssl": address.tls,
        "charset": "utf8mb4",
        "autocommit": True,  # a plain read must see the current rows, not an old snapshot
        "connect_timeout": CONNECT_SECONDS,
        # Count matched rows, not changed rows: an identical renewal is not a lost lease.
        "client_flag": CLIENT.FOUND_ROWS,
    }


@asynccontextmanager
async def pooled(settings: DatabaseSettings) -> AsyncIterator[Database]:
    """The database for the length of the block; every connection has SESSION set.

    Raises the driver's error when the server cannot be reached.
    """
    address = read_address(settings.database_url)
    async with asyncio.timeout(ATTEMPT_SECONDS):
        async with await connect(address) as first, first.cursor() as cursor:
            has_variable = await cursor.execute(SNAPSHOT_ISOLATION)
        pool = await aiomysql.create_pool(
            **_connection_options(address),
            init_command=SESSION + (WITHOUT_SNAPSHOT_ISOLATION if has_variable else ""),
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
