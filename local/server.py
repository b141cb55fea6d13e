"""Starts a private database server, with its own data and socket, beside others on the machine.

    server = Server(find("mariadb"), folder)
    server.start()
    server.execute("CREATE DATABASE partway")
    os.environ["PARTWAY_DATABASE_URL"] = server.url("partway")
    server.stop()

The programs log in as `partway`, which has all rights in a database and none on the server;
`execute` logs in as root. The server ends when this process ends, in whatever way.
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

# Long, since the machine may be busy: only a server that hangs takes so long.
START_SECONDS = 120.0
STOP_SECONDS = 60.0
ASK_AGAIN_SECONDS = 0.2

# The kernel allows 107 bytes. A round number is clearer in the error message.
LONGEST_SOCKET = 100

# The account of the programs. The host "%" would also allow other machines, but they cannot
# connect: TCP is off, or on the loopback address only.
ACCOUNT = (
    "CREATE USER partway@'%' IDENTIFIED BY 'partway'",
    "GRANT ALL ON `%`.* TO partway@'%'",
)


class ServerError(Exception):
    """A private server failed. The message ends with the last lines of its log."""


@dataclass(frozen=True)
class Program:
    """A database server that can be started: its kind, its version, and its command."""

    kind: str
    version: str
    command: tuple[str, ...]


def cache() -> Path:
    """The folder, outside the checkout, for what is made once per machine."""
    folder = os.environ.get("PARTWAY_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "partway"


def find(kind: str) -> Program | None:
    """Find the "mariadb" or "mysql" server of this machine; None when there is none."""
    for command in (*_installed(), *_unpacked(cache() / "mysql-sid")):
        program = _identify(command)
        if program is not None and program.kind == kind:
            return program
    return None


def _installed() -> list[tuple[str, ...]]:
    # Debian installs servers in folders that are not in the PATH of a person.
    folders = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin"
    paths = (shutil.which(name, path=folders) for name in ("mariadbd", "mysqld"))
    return [(path,) for path in paths if path is not None]


def _unpacked(tree: Path) -> list[tuple[str, ...]]:
    """The command of the mysqld that setup.sh unpacked; [] when there is none.

    It is from a newer system, so it needs its own C library, and the loader of that library.
    """
    mysqld = tree / "usr/sbin/mysqld"
    loaders = sorted(tree.glob("usr/lib/*/ld-linux*.so*"))
    if not mysqld.exists() or not loaders:
        return []
    loader = (str(loaders[0]), "--argv0", str(mysqld), "--library-path", str(loaders[0].parent))
    return [(*loader, str(mysqld), "--no-defaults", f"--basedir={tree / 'usr'}")]


@functools.cache
def _identify(command: tuple[str, ...]) -> Program | None:
    """Read the kind and version of a server, since both can be called mysqld; None on an error.

    The result is cached: each test that runs on both servers calls this.
    """
    result = subprocess.run(
        (*command, "--version"), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    version = re.search(r"Ver (\S+)", result.stdout)
    if result.returncode != 0 or version is None:
        return None
    kind = "mariadb" if "MariaDB" in result.stdout else "mysql"
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
        # The same port for the life of this object, so that clients find a restarted server.
        self.port = _free_port() if tcp else None
        self.process: subprocess.Popen[bytes] | None = None
        if not fits(self.folder):
            raise ServerError(
                f"{self.socket} is too long a path for a Unix socket"
                f" (more than {LONGEST_SOCKET} bytes): choose a shorter folder"
            )

    def start(self) -> None:
        """Start the server on the data in the folder, or on fresh data; wait until it answers."""
        if self.process is not None:
            raise ServerError(f"the private {self.program.kind} server runs already")
        # The root account has no password, so other users of the machine must not reach the socket.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The server inherits the lock. So after this process was killed, the next server starts
        # only when the old one has ended, and not while that still answers.
        lock = hold(self.folder, STOP_SECONDS)
        try:
            if not (self.folder / "data").exists():
                _copy(_fresh_data(self.program), self.folder / "data")
            self.process = children.start(self._command(), self.log, keep=(lock,))
        finally:
            os.close(lock)
        self._wait_until_it_answers()

    def stop(self) -> None:
        """Shut the server down and keep its data; does nothing when it does not run."""
        if self.process is not None:
            status = _end(self.process)
            self.process = None
            # Early in its start, a server has no signal handler yet and has written nothing.
            if status not in (0, -signal.SIGTERM):
                raise ServerError(f"the server ended with status {status}:\n{self._log_end()}")

    def kill(self) -> None:
        """Kill the server; what was committed is there at the next start."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            # A client must get the same error as after a stop: no such file.
            for path in self.folder.glob("socket*"):
                path.unlink()

    def url(self, database: str) -> str:
        """The PARTWAY_DATABASE_URL of a database, over the Unix socket."""
        query = urlencode({"unix_socket": str(self.socket)}, quote_via=quote)
        return f"mysql://partway:partway@localhost/{database}?{query}"

    def tcp_url(self, database: str) -> str:
        """The PARTWAY_DATABASE_URL of a database, over TCP; needs a server with tcp=True."""
        if self.port is None:
            raise ServerError("this private server has TCP off: make it with tcp=True")
        return f"mysql://partway:partway@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> "pymysql.connections.Connection[Any]":
        """Open a connection as root, with autocommit; the caller closes it."""
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
            # A commit is on the disk before it is answered, as in production.
            "--innodb-flush-log-at-trx-commit=1",
            # Small, since several servers run at once on a small machine.
            "--innodb-buffer-pool-size=64M",
            # A test keeps a hundred claims open, each on its own connection.
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
                f"the private {self.program.kind} server {reason}:\n{self._log_end()}"
            )

    def _answers(self) -> bool:
        # PyMySQL does not close its socket when the connect fails, and this is called many times.
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

    def _log_end(self) -> str:
        return f"{children.last_lines(self.log)}\n    (all of it: {self.log})"


def _end(process: subprocess.Popen[bytes]) -> int:
    """Stop a server, and kill it after STOP_SECONDS; returns its exit status.

    SIGTERM is sent repeatedly: MariaDB loses one that arrives early in its start.
    """
    give_up = time.monotonic() + STOP_SECONDS
    while time.monotonic() < give_up:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(ASK_AGAIN_SECONDS)
    return children.end(process, 0)


def fits(folder: Path) -> bool:
    """Whether the path of a server's socket in this folder is short enough."""
    return len(os.fsencode(_socket(folder))) <= LONGEST_SOCKET


def _socket(folder: Path) -> Path:
    return folder / "socket"


def hold(folder: Path, seconds: float) -> int:
    """Lock a folder for this process and for children that inherit the returned file descriptor.

    Waits up to `seconds`. The lock is on the folder itself, so no lock file is left behind.
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
    # --no-defaults must be first. The settings of the machine's own server must not apply.
    command = program.command
    if "--no-defaults" not in command:
        command = (*command, "--no-defaults")
    command = (*command, f"--datadir={datadir}")
    if os.geteuid() == 0:
        # Both servers refuse to run as root without this. With another user, the server would not
        # end with this process: the kernel drops that signal when a process changes its user.
        command = (*command, "--user=root")
    if program.kind == "mysql":
        # The folder for import files and the port of the X protocol are not used here.
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
    """The data folder of an unused server, made once per machine and version."""
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
    # In a temporary folder: the path of the cache may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="partway-") as path:
        temporary = Path(path)
        if program.kind == "mariadb":
            command = _mariadb_install(program, temporary / "data")
        else:
            command = (*_base_command(program, temporary / "data"), "--initialize-insecure")
        log = temporary / "initialise.log"
        status = children.start(command, log).wait(START_SECONDS)
        if status != 0:
            raise ServerError(
                f"fresh {program.kind} data could not be made (status {status}):\n"
                f"{children.last_lines(log)}"
            )
        server = Server(program, temporary)
        server.start()
        try:
            for statement in ACCOUNT:
                server.execute(statement)
        finally:
            server.stop()
        _copy(temporary / "data", fresh)


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
        # Otherwise its anonymous user would match first at every login over the socket.
        "--skip-test-db",
        *as_root,
    )


def _copy(fresh: Path, datadir: Path) -> None:
    # First under another name: at the next start, half a copy must not be used as data.
    part = datadir.with_name("data.part")
    shutil.rmtree(part, ignore_errors=True)
    # Sparse, since nine tenths of fresh data are zeros.
    subprocess.run(("cp", "-R", "--sparse=always", fresh, part), check=True)
    part.rename(datadir)
