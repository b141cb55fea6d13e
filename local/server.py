"""A private database server: data and socket of its own, so it meets no other on the machine.

    server = Server(find("mariadb"), folder)
    server.start()
    server.execute("CREATE DATABASE partway")
    os.environ["PARTWAY_DATABASE_URL"] = server.url("partway")
    server.stop()

The programs come in as `partway`, who may do anything inside a database and nothing to the server;
`execute` comes in as root. The server ends when we do, however we end.
"""

import contextlib
import fcntl
import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pymysql

from local import children

KINDS = ("mariadb", "mysql")

# A private server is young, but its machine may be busy: only a server that hangs meets this.
START_SECONDS = 120.0
STOP_SECONDS = 60.0
ASK_AGAIN_SECONDS = 0.2

# The kernel allows 107 bytes; a round number is easier to tell a person.
LONGEST_SOCKET = 100

# What the programs need to come in. "%" as a host would also let in other machines; there is no
# way in from those, since TCP is off or on the loopback address.
ACCOUNT = (
    "CREATE USER partway@'%' IDENTIFIED BY 'partway'",
    "GRANT ALL ON `%`.* TO partway@'%'",
)


class ServerError(Exception):
    """A private server did not do what it was asked; the message ends with the last of its log."""


@dataclass(frozen=True)
class Program:
    """A database server that can be started: its kind, its version, and the words to start it."""

    kind: str
    version: str
    command: tuple[str, ...]


def cache() -> Path:
    """The folder, outside the tree, for what is made once for each machine."""
    own = os.environ.get("PARTWAY_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "partway"


def find(kind: str) -> Program | None:
    """The "mariadb" or "mysql" server of this machine; None when it has none."""
    for command in (*_installed(), *_unpacked(cache() / "mysql-sid")):
        program = _identify(command)
        if program is not None and program.kind == kind:
            return program
    return None


def _installed() -> list[tuple[str, ...]]:
    # Debian keeps servers where the PATH of a person does not look.
    places = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin"
    found = (shutil.which(name, path=places) for name in ("mariadbd", "mysqld"))
    return [(path,) for path in found if path is not None]


def _unpacked(tree: Path) -> list[tuple[str, ...]]:
    """How to run the mysqld that setup.sh unpacked; empty when it has not.

    It comes from a newer system, so it brings its own C library, and that library's own loader.
    """
    mysqld = tree / "usr/sbin/mysqld"
    loaders = sorted(tree.glob("usr/lib/*/ld-linux*.so*"))
    if not mysqld.exists() or not loaders:
        return []
    loader = (str(loaders[0]), "--argv0", str(mysqld), "--library-path", str(loaders[0].parent))
    return [(*loader, str(mysqld), "--no-defaults", f"--basedir={tree / 'usr'}")]


@functools.cache
def _identify(command: tuple[str, ...]) -> Program | None:
    """Ask a server what it is: both answer to the name mysqld; None when it cannot say.

    It is asked once: each test that runs on both servers looks for them.
    """
    asked = subprocess.run(
        (*command, "--version"), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    version = re.search(r"Ver (\S+)", asked.stdout)
    if asked.returncode != 0 or version is None:
        return None
    kind = "mariadb" if "MariaDB" in asked.stdout else "mysql"
    return Program(kind, version[1], command)


class Server:
    """One private server in one folder: its data, its socket, its log."""

    def __init__(
        self, program: Program, folder: Path, options: Sequence[str] = (), *, tcp: bool = False
    ) -> None:
        self.program = program
        self.folder = folder.absolute()
        self.options = tuple(options)
        self.socket = _socket(self.folder)
        self.log = self.folder / "server.log"
        # One port for the life of this object, so that a server started again is found again.
        self.port = _free_port() if tcp else None
        self.process: subprocess.Popen[bytes] | None = None
        if not fits(self.folder):
            raise ServerError(
                f"{self.socket} is too long a path for a Unix socket"
                f" (more than {LONGEST_SOCKET} bytes): choose a shorter folder"
            )

    def start(self) -> None:
        """Start on the data in the folder, or on fresh data, and return when it answers."""
        if self.process is not None:
            raise ServerError(f"the private {self.program.kind} server runs already")
        # Nobody else on the machine shall reach a root without a password.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The server inherits the lock, so it is held until the server is gone, not only we: one
        # started right after its starter was killed must not answer for the one still ending.
        lock = hold(self.folder, STOP_SECONDS)
        try:
            if not (self.folder / "data").exists():
                _copy(_fresh_data(self.program), self.folder / "data")
            self.process = children.start(self._command(), self.log, keep=(lock,))
        finally:
            os.close(lock)
        self._wait_until_it_answers()

    def stop(self) -> None:
        """End in order, keeping the data; nothing to do when it does not run."""
        if self.process is not None:
            status = _end(self.process)
            self.process = None
            # Very early, a starting server has no handler yet and has written nothing.
            if status not in (0, -signal.SIGTERM):
                raise ServerError(f"the server ended with status {status}:\n{self._last_words()}")

    def kill(self) -> None:
        """End it like a power cut; what was committed is there at the next start."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            # Who meets this name now shall hear "nobody there", as after a stop.
            for left_over in self.folder.glob("socket*"):
                left_over.unlink()

    def url(self, database: str) -> str:
        """PARTWAY_DATABASE_URL for a database, over the Unix socket."""
        where = urlencode({"unix_socket": str(self.socket)}, quote_via=quote)
        return f"mysql://partway:partway@localhost/{database}?{where}"

    def tcp_url(self, database: str) -> str:
        """PARTWAY_DATABASE_URL for a database, over TCP; only for a server made with tcp=True."""
        if self.port is None:
            raise ServerError("this private server has TCP off: make it with tcp=True")
        return f"mysql://partway:partway@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> "pymysql.connections.Connection[Any]":
        """A connection as root, with autocommit; the caller closes it."""
        return pymysql.connect(
            unix_socket=str(self.socket),
            user="root",
            database=database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=5,
        )

    def execute(self, statement: str, *parameters: object) -> tuple[tuple[Any, ...], ...]:
        """Run one statement as root and return its rows; empty when it has none."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, parameters or None)
                return tuple(cursor.fetchall())
        finally:
            connection.close()

    def _command(self) -> tuple[str, ...]:
        return (
            *_base_command(self.program, self.folder / "data"),
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'data' / 'server.pid'}",
            *_network(self.port),
            "--character-set-server=utf8mb4",
            # A commit is on the disk before it is answered, as on a server that matters.
            "--innodb-flush-log-at-trx-commit=1",
            # Small, for several run side by side on a small machine.
            "--innodb-buffer-pool-size=64M",
            # A test holds a hundred claims open, each on a connection of its own.
            "--max-connections=500",
            *self.options,
        )

    def _wait_until_it_answers(self) -> None:
        process = self._running()
        give_up = time.monotonic() + START_SECONDS
        while not self._answers():
            if process.poll() is not None:
                reason = f"ended at once, with status {process.returncode}"
            elif time.monotonic() > give_up:
                reason = f"did not answer within {START_SECONDS:.0f} s"
            else:
                time.sleep(0.05)
                continue
            self.kill()
            raise ServerError(
                f"the private {self.program.kind} server {reason}:\n{self._last_words()}"
            )

    def _answers(self) -> bool:
        # PyMySQL leaves its socket open when nobody listens, and we ask many times.
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        try:
            self.execute("SELECT 1")
        except pymysql.err.OperationalError:
            return False
        return True

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise ServerError(f"the private {self.program.kind} server does not run")
        return self.process

    def _last_words(self) -> str:
        return f"{children.last_lines(self.log)}\n    (all of it: {self.log})"


def _end(process: subprocess.Popen[bytes]) -> int:
    """The exit status of a server that is asked to end, and killed after STOP_SECONDS.

    It is asked again and again: MariaDB loses a SIGTERM that comes early in its start.
    """
    give_up = time.monotonic() + STOP_SECONDS
    while time.monotonic() < give_up:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(ASK_AGAIN_SECONDS)
    return children.end(process, 0)


def fits(folder: Path) -> bool:
    """Whether the path of a server's socket would not be too long in this folder."""
    return len(os.fsencode(_socket(folder))) <= LONGEST_SOCKET


def _socket(folder: Path) -> Path:
    return folder / "socket"


def hold(folder: Path, seconds: float) -> int:
    """Lock a folder for one process and what inherits the number returned; waits `seconds`.

    The lock is on the folder itself, so there is no lock file to leave behind.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    give_up = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > give_up:
                os.close(lock)
                raise ServerError(f"{folder} is in use by another process") from None
            time.sleep(0.05)


def _base_command(program: Program, datadir: Path) -> tuple[str, ...]:
    # --no-defaults must come first, and settings of the machine's own server never apply.
    command = program.command
    if "--no-defaults" not in command:
        command = (*command, "--no-defaults")
    command = (*command, f"--datadir={datadir}")
    if os.geteuid() == 0:
        # Both refuse to be root unless told so. Another user would cost the tie to our own life:
        # the kernel drops it when a process changes its credentials.
        command = (*command, "--user=root")
    if program.kind == "mysql":
        # Neither a folder for files nor the X protocol's port is used here.
        command = (*command, "--secure-file-priv=NULL", "--mysqlx=OFF")
    return command


def _network(port: int | None) -> tuple[str, ...]:
    if port is None:
        return ("--skip-networking",)
    return ("--bind-address=127.0.0.1", f"--port={port}", "--skip-name-resolve")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _fresh_data(program: Program) -> Path:
    """The data of a server that nobody has used yet, made once for each machine and version."""
    folder = cache() / "fresh" / f"{program.kind}-{program.version}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = hold(folder, START_SECONDS)
    try:
        if not (folder / "data").exists():
            print(f"Preparing fresh {program.kind} data (a few seconds, once) …", file=sys.stderr)
            _make_fresh_data(program, folder / "data")
    finally:
        os.close(lock)
    return folder / "data"


def _make_fresh_data(program: Program, fresh: Path) -> None:
    # In a place of its own: the path of the cache may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="partway-") as place:
        made = Path(place)
        if program.kind == "mariadb":
            command = _mariadb_install(program, made / "data")
        else:
            command = (*_base_command(program, made / "data"), "--initialize-insecure")
        log = made / "initialise.log"
        status = children.start(command, log).wait(START_SECONDS)
        if status != 0:
            raise ServerError(
                f"fresh {program.kind} data could not be made (status {status}):\n"
                f"{children.last_lines(log)}"
            )
        server = Server(program, made)
        server.start()
        try:
            for statement in ACCOUNT:
                server.execute(statement)
        finally:
            server.stop()
        _copy(made / "data", fresh)


def _mariadb_install(program: Program, datadir: Path) -> tuple[str, ...]:
    install = shutil.which("mariadb-install-db") or shutil.which("mysql_install_db")
    if install is None:
        raise ServerError("mariadb-install-db is missing; Debian has it in mariadb-server-core")
    as_root = ("--user=root",) if os.geteuid() == 0 else ()
    return (
        install,
        "--no-defaults",
        f"--datadir={datadir}",
        "--auth-root-authentication-method=normal",
        # Its anonymous user would stand before ours at every login over the socket.
        "--skip-test-db",
        *as_root,
    )


def _copy(fresh: Path, datadir: Path) -> None:
    # Under another name first: half a copy must not pass for data at the next start.
    part = datadir.with_name("data.part")
    shutil.rmtree(part, ignore_errors=True)
    # Nine tenths of it are zeros that no statement has written over yet.
    subprocess.run(("cp", "-R", "--sparse=always", fresh, part), check=True)
    part.rename(datadir)
