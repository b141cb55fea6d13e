"""Tests meet real servers: one of each kind for a whole run, with empty tables for each test."""

import itertools
import os
import shutil
import signal
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pymysql
import pytest

from local.server import Server, find
from partway.store.database import Database, pooled
from partway.store.settings import DatabaseSettings, read_address
from tests.actions import ROOT, Programs
from tests.fork_server import ForkServer
from tests.prepared import Prepared
from tests.sweeps import WHOLE

# MariaDB from 11.6 on has it by default; the part of the suite that is marked runs with it too.
SNAPSHOT_ISOLATION = "--innodb-snapshot-isolation=ON"

GIVEN = os.environ.get("PARTWAY_DATABASE_URL")

# What the folders of all tests take together, and some more.
ROOM_IN_MEMORY_BYTES = 4 * 1024**3

number = itertools.count(1)


class AnyServer(Protocol):
    """What a test needs of a server, private or given."""

    def url(self, database: str) -> str:
        """The URL of a database on it."""

    def connect(self) -> "pymysql.connections.Connection[Any]":
        """A connection with autocommit; the caller closes it."""

    def execute(self, statement: str, *parameters: object) -> tuple[tuple[Any, ...], ...]:
        """The rows of one statement."""


class GivenServer:
    """The server of PARTWAY_DATABASE_URL, on which tests make databases of their own."""

    def __init__(self, url: str) -> None:
        self.given = url
        self.address = read_address(url)

    def url(self, database: str) -> str:
        """The given URL with another database."""
        head, _, options = self.given.partition("?")
        return f"{head.rpartition('/')[0]}/{database}" + (f"?{options}" if options else "")

    def connect(self) -> "pymysql.connections.Connection[Any]":
        """A connection with autocommit; the caller closes it."""
        return pymysql.connect(
            host=self.address.host,
            port=self.address.port,
            user=self.address.user,
            password=self.address.password,
            unix_socket=self.address.unix_socket,
            ssl=self.address.tls,
            charset="utf8mb4",
            autocommit=True,
        )

    def execute(self, statement: str, *parameters: object) -> tuple[tuple[Any, ...], ...]:
        """The rows of one statement."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return tuple(cursor.fetchall())


def kinds(with_snapshot_isolation: bool) -> list[str]:
    """The servers that this machine can run tests on."""
    if GIVEN:
        return ["given"]
    found = [kind for kind in ("mariadb", "mysql") if find(kind) is not None]
    if with_snapshot_isolation and "mariadb" in found:
        found.append("mariadb-snapshot")
    return found


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "snapshot_isolation: also on MariaDB with innodb_snapshot_isolation=ON"
    )
    config.addinivalue_line("markers", "one_server: not a matter of which server it runs on")
    config.addinivalue_line(
        "markers", "either_server: on one server, chosen by its name; on each in `make prove`"
    )
    config.addinivalue_line(
        "markers", "fresh_tables: it counts what a statement reads, deleted rows included"
    )
    config.addinivalue_line("markers", "sweep: it takes a sample of what `make prove` takes whole")
    # Nothing that a test writes has to outlive the machine, and a disk is what tests wait for most.
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > ROOM_IN_MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    # A shell has its background jobs ignore Ctrl-C, and our programs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        test = metafunc.definition
        found = kinds(test.get_closest_marker("snapshot_isolation") is not None)
        if test.get_closest_marker("one_server") is not None:
            found = found[:1]
        elif test.get_closest_marker("either_server") is not None and not WHOLE:
            # The same one at each run, and each of them for about as many tests.
            found = [found[zlib.crc32(test.nodeid.encode()) % len(found)]]
        metafunc.parametrize("server", found, indirect=True, scope="session")


ran_on: dict[str, str] = {}


@pytest.fixture(scope="session")
def running() -> Iterator[dict[str, Server]]:
    """The private servers that run, by kind: a test may be of another kind than the one before."""
    servers: dict[str, Server] = {}
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture(scope="session")
def server(
    request: pytest.FixtureRequest,
    running: dict[str, Server],
    tmp_path_factory: pytest.TempPathFactory,
) -> AnyServer:
    """A running server of each kind in turn."""
    kind: str = request.param
    if kind == "given":
        assert GIVEN is not None
        given = GivenServer(GIVEN)
        ran_on[kind] = str(given.execute("SELECT VERSION()")[0][0])
        return given
    if kind not in running:
        program = find(kind.removesuffix("-snapshot"))
        assert program is not None
        options = (SNAPSHOT_ISOLATION,) if kind.endswith("-snapshot") else ()
        private = Server(program, tmp_path_factory.mktemp("db"), options)
        private.start()
        running[kind] = private
        ran_on[kind] = str(private.execute("SELECT VERSION()")[0][0])
    return running[kind]


@pytest.fixture(scope="session")
def prepared(running: dict[str, Server]) -> Iterator[dict[int, Prepared]]:
    """The database of each server that all the tests of this process use in turn, while it runs."""
    found: dict[int, Prepared] = {}
    yield found
    for database in found.values():
        database.drop()


@pytest.fixture
def url(
    request: pytest.FixtureRequest, server: AnyServer, prepared: dict[int, Prepared]
) -> Iterator[str]:
    """The URL of a database whose tables are empty."""
    database = prepared.get(id(server))
    if database is None:
        database = prepared[id(server)] = Prepared(server, fresh_name())
        database.make()
    elif request.node.get_closest_marker("fresh_tables") is not None:
        database.make()
    yield server.url(database.name)
    database.clean()


@pytest.fixture
def empty_url(server: AnyServer) -> Iterator[str]:
    """The URL of a database without tables."""
    name = fresh_name()
    server.execute(f"CREATE DATABASE {name} CHARACTER SET latin1")
    yield server.url(name)
    server.execute(f"DROP DATABASE {name}")


def fresh_name() -> str:
    """A name that no database on the server has."""
    return f"partway_test_{os.getpid()}_{next(number)}"


@pytest.fixture
async def db(url: str) -> AsyncIterator[Database]:
    """A database with empty tables, as a program sees it."""
    async with pooled(DatabaseSettings(database_url=url, pool_size=200)) as opened_db:
        yield opened_db


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> Iterator[None]:
    """Programs of tests start from it; in `make prove` they start as people start them."""
    if WHOLE:
        yield
        return
    with ForkServer() as Programs.fork_server:
        yield


@pytest.fixture
async def programs(url: str, tmp_path: Path) -> AsyncIterator[Programs]:
    """Starts real programs on that database, and leaves none behind."""
    started = Programs(url, tmp_path)
    yield started
    await started.end()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes of a run tells the one that prints which servers it ran on."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["ran_on"] = ran_on


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What such a process told, which is nothing when it has crashed."""
    ran_on.update(getattr(node, "workeroutput", {}).get("ran_on", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    named = [f"{kind} {version}" for kind, version in ran_on.items()]
    for kind in ("mariadb", "mysql"):
        if not GIVEN and find(kind) is None:
            left_out = ROOT / ".run" / f"no-{kind}"
            why = left_out.read_text().strip() if left_out.exists() else "not installed"
            named.append(f"not on {kind} ({why})")
    terminalreporter.write_line(f"database servers: {', '.join(named) or 'none was needed'}")
