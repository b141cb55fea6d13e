"""A private server for one peer: data in a folder of its own, nobody else's socket or port."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.peers.install import Missing, environment, program
from bench.peers.scratch import scratch
from local import children

START_SECONDS = 60
STOP_SECONDS = 30

# PostgreSQL refuses to be root. The kernel forgets, with the old user, to tell it of our end; INT
# ends it at once, where TERM would wait for its clients.
AS_NOBODY = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=INT"]


def serving(server: str, folder: Path) -> AbstractContextManager[dict[str, str]]:
    """What a peer needs in its environment to reach a fresh server of this name."""
    return SERVERS[server](folder)


@contextmanager
def nothing(_: Path) -> Iterator[dict[str, str]]:
    """Nothing, for a peer that brings its own."""
    yield {}


@contextmanager
def redis(folder: Path) -> Iterator[dict[str, str]]:
    """A Redis as it comes: a snapshot now and then, no log of writes."""
    port = _free_port()
    log = folder / "redis.log"
    process = children.start(
        (
            *(_found("redis-server"), "--bind", "127.0.0.1", "--port", str(port)),
            # Its folder is thrown away with it.
            *("--dir", str(folder), "--shutdown-on-sigterm", "nosave"),
        ),
        log,
        env=environment(),
    )
    try:
        _await(lambda: _listens(port), process, log)
        yield {"REDIS_URL": f"redis://127.0.0.1:{port}/0"}
    finally:
        children.end(process, STOP_SECONDS)


@contextmanager
def postgresql(_: Path) -> Iterator[dict[str, str]]:
    """A PostgreSQL as it comes: every commit is on the disk before it is answered."""
    # Not in the peer's folder: nobody could come in there.
    with scratch() as folder:
        as_whom = AS_NOBODY if os.geteuid() == 0 else []
        if as_whom:
            shutil.chown(folder, "nobody", "nogroup")
        log, data = folder / "log", folder / "data"
        fresh = ("-D", str(data), "--username=postgres", "--auth=trust", "--locale=C.UTF-8")
        made = children.start((*as_whom, _found("initdb"), *fresh), log, env=environment())
        if made.wait(START_SECONDS) != 0:
            raise Missing(f"initdb could not make a database:\n{children.last_lines(log)}")
        # On a socket only.
        words = ("-D", str(data), "-k", str(folder), "-c", "listen_addresses=")
        process = children.start((*as_whom, _found("postgres"), *words), log, env=environment())
        try:
            _await(lambda: _says_ready(data / "postmaster.pid"), process, log)
            yield {"PGHOST": str(folder), "PGUSER": "postgres", "PGDATABASE": "postgres"}
        finally:
            process.send_signal(signal.SIGINT)
            children.await_end(process, STOP_SECONDS)


def mariadb(folder: Path) -> AbstractContextManager[dict[str, str]]:
    """The MariaDB that the product is measured on."""
    return _database("mariadb", folder)


def mysql(folder: Path) -> AbstractContextManager[dict[str, str]]:
    """The MySQL that the product is measured on."""
    return _database("mysql", folder)


@contextmanager
def _database(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    # Not at the top: a peer's own environment reads this module too, and has no PyMySQL.
    from local.server import Server, ServerError, find

    found = find(kind)
    if found is None:
        raise Missing(f"this machine has no {kind} server")
    server = Server(found, folder / kind, ("--innodb-buffer-pool-size=1G",))
    try:
        server.start()
    except ServerError as why:
        raise Missing(str(why)) from why
    try:
        server.execute("CREATE DATABASE peers")
        yield {"MYSQL_UNIX_PORT": str(server.socket)}
    finally:
        server.stop()


SERVERS: dict[str, Callable[[Path], AbstractContextManager[dict[str, str]]]] = {
    "": nothing,
    "redis": redis,
    "postgresql": postgresql,
    "mariadb": mariadb,
    "mysql": mysql,
}


def _found(name: str) -> str:
    path = program(name)
    if path is None:
        raise Missing(f"this machine has no {name}")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await(ready: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up = time.monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > give_up:
            raise Missing(f"a server did not start:\n{children.last_lines(log)}")
        time.sleep(0.02)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _says_ready(status: Path) -> bool:
    # Its last line is the state of the server, for pg_ctl, which waits the same way.
    return status.exists() and status.read_text().split()[-1:] == ["ready"]
