"""Every row meets a fresh server and real programs as processes, and all of them end with it."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pymysql

from bench.filling import Kind, filling
from local import children
from local.server import Program, Server
from partway.store.settings import DatabaseSettings
from partway.store.start import open_database

TREE = Path(__file__).resolve().parent.parent

READY_SECONDS = 120.0

# A hundred programs that start on two cores at the same moment wait for the database too long.
STARTED_AT_ONCE = 10
END_SECONDS = 40.0

# A machine that has its own database gives it memory; that each commit is on the disk before it is
# answered is set by local/server.py, and is asked again here.
OPTIONS = ("--innodb-buffer-pool-size=1G", "--max-connections=2000")

DURABLE = {"innodb_flush_log_at_trx_commit": "1", "innodb_doublewrite": "ON"}
DURABLE_BINLOG = {"sync_binlog": "1"}

DATABASE = "bench"

# One caller asks for what all callers of a node would; the limits are checked, but never met.
UNLIMITED = {
    "APP_KEYLESS": "on",
    "APP_TENANT_ACTIVE_REQUESTS": 1_000_000,
    "APP_TENANT_CHARACTERS_PER_MINUTE": 10**12,
    "APP_MAX_ACTIVE_REQUESTS": 1_000_000,
    "APP_MAX_WAITING_CHARACTERS": 10**12,
}


@dataclass(frozen=True)
class Stage:
    """Where a row is played: on which server, in which folder, for how long, beside whom."""

    program: Program
    folder: Path
    quick: bool
    peers: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The server by its short name."""
        return self.program.kind


class Fleet:
    """One server with its database, and the programs of Partway that run on it."""

    def __init__(self, server: Server, logs: Path) -> None:
        self.server = server
        self.url = server.url(DATABASE)
        self.logs = logs
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def settings(self, pool_size: int = 10) -> DatabaseSettings:
        """How a program comes in."""
        return DatabaseSettings(database_url=self.url, pool_size=pool_size)

    def connect(self) -> "pymysql.connections.Connection[Any]":
        """A connection of root in the database; the caller closes it."""
        return self.server.connect(DATABASE)

    def fill(self, kind: Kind, requests: int, segments: int, tenants: int = 1) -> None:
        """Add so many requests of so many segments; nothing comes back."""
        with contextlib.closing(self.connect()) as link, link.cursor() as cursor:
            for together in filling(kind, requests, segments, tenants):
                link.begin()
                for statement, values in together:
                    cursor.execute(statement, values or None)
                link.commit()

    def run(self, *statements: str) -> None:
        """Run statements, each committed by itself; nothing comes back."""
        with contextlib.closing(self.connect()) as link, link.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def number(self, statement: str, *values: object) -> int:
        """The one number that a statement gives; 0 where it gives NULL."""
        with contextlib.closing(self.connect()) as link, link.cursor() as cursor:
            cursor.execute(statement, values or None)
            row = cursor.fetchone()
        return int(row[0] or 0) if row else 0

    def start(self, name: str, words: Sequence[str], settings: Mapping[str, object]) -> Path:
        """Start `partway WORDS` with these PARTWAY_ settings; where it writes its log."""
        name = f"{len(self.running)}-{name}"
        log = self.logs / f"{name}.log"
        ours = {key: value for key, value in os.environ.items() if not key.startswith("PARTWAY_")}
        told = {f"PARTWAY_{key}": str(value) for key, value in settings.items()}
        environment = {**ours, **told, "PARTWAY_DATABASE_URL": self.url}
        command = (sys.executable, "-m", "partway", *words)
        self.running[name] = children.start(command, log, env=environment, cwd=TREE)
        return log

    def app(self, **settings: object) -> int:
        """The port of a new node that is ready; it refuses nobody."""
        port = free_port()
        self.start("app", ("app", "--port", str(port)), UNLIMITED | settings)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:

            def is_ready() -> bool:
                try:
                    return client.get("/readyz").status_code == 200
                except httpx.TransportError:
                    return False

            self.wait_until(is_ready, "the app to be ready")
        return port

    def workers(self, count: int, handler: str, concurrency: int) -> None:
        """Come back when so many further worker processes look for work."""
        words = ("worker", "--handler", handler, "--concurrency", str(concurrency))
        for first in range(0, count, STARTED_AT_ONCE):
            group = range(first, min(first + STARTED_AT_ONCE, count))
            for log in [self.start("worker", words, {}) for _ in group]:
                self._wait_for("slots", log)

    def batch(self) -> None:
        """Come back when a batch settles, a second after each close."""
        self._wait_for("settling", self.start("batch", ("batch",), {"BATCH_RETENTION_SECONDS": 1}))

    def _wait_for(self, word: str, log: Path) -> None:
        self.wait_until(lambda: word in log.read_text(), f"{word!r} in {log}")

    def wait_until(
        self, true: Callable[[], bool], what: str, seconds: float = READY_SECONDS
    ) -> None:
        """Come back once it is true; RuntimeError when it does not come to that."""
        give_up = time.monotonic() + seconds
        while not true():
            self.check()
            if time.monotonic() > give_up:
                raise RuntimeError(f"waited {seconds:g} s for {what}")
            time.sleep(0.02)

    def check(self) -> None:
        """Nothing while all programs run; RuntimeError with the last words of one that ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                words = children.last_lines(self.logs / f"{name}.log")
                raise RuntimeError(f"{name} ended with status {process.returncode}:\n{words}")

    def resident_bytes(self, name: str) -> int:
        """The memory that the first program of this name holds."""
        pid = next(process.pid for known, process in self.running.items() if name in known)
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def end(self) -> None:
        """End all programs, all at the same time."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            children.await_end(process, END_SECONDS)
        self.running.clear()

    def database_cpu_seconds(self) -> float:
        """What the server has used of the processors so far."""
        assert self.server.process is not None
        stat = Path(f"/proc/{self.server.process.pid}/stat").read_text()
        # Behind the name, which may hold anything: user and system time, in ticks.
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def fleet(stage: Stage) -> Iterator[Fleet]:
    """A fresh server with our tables, and whatever is started on it, for as long as the block."""
    stage.folder.mkdir(parents=True, exist_ok=True)
    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=stage.folder))
    data = Path(tempfile.mkdtemp(prefix="db-", dir=stage.folder))
    server = Server(stage.program, data, OPTIONS)
    try:
        server.start()
        refuse_what_is_not_durable(server)
        server.execute(f"CREATE DATABASE {DATABASE}")
        used = Fleet(server, logs)
        asyncio.run(make_tables(used.settings()))
        try:
            yield used
            used.check()
        finally:
            used.end()
        shutil.rmtree(logs)
    finally:
        server.stop()
        shutil.rmtree(data)


def refuse_what_is_not_durable(server: Server) -> None:
    """Nothing where a commit survives a power cut; RuntimeError otherwise."""
    asked = ("stat", "--file-system", "--format=%T", str(server.folder))
    # The words are ours, and every system has this program.
    told = subprocess.run(asked, capture_output=True, text=True, check=True)
    kept_on = told.stdout.strip()
    found: dict[str, str] = dict(server.execute("SHOW GLOBAL VARIABLES"))
    needed = DURABLE | (DURABLE_BINLOG if found["log_bin"] == "ON" else {})
    wrong = [f"{name}={found[name]}" for name, value in needed.items() if found[name] != value]
    if kept_on == "tmpfs":
        wrong.append("its data lies in memory")
    if wrong:
        raise RuntimeError(f"commits would not survive a power cut: {', '.join(wrong)}")


async def make_tables(settings: DatabaseSettings) -> None:
    """Nothing; afterwards our tables are there."""
    async with open_database(settings):
        pass


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
