"""A private database server starts fresh, keeps what was committed, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import pytest

from local import server
from local.server import KINDS, Program, Server, ServerError, find

TREE = Path(__file__).resolve().parents[2]

STARTER = """
import sys, time
from pathlib import Path
from local.server import Server, find

server = Server(find(sys.argv[1]), Path(sys.argv[2]))
server.start()
print(server.process.pid, flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture(params=KINDS)
def program(request: pytest.FixtureRequest) -> Program:
    program = find(request.param)
    if program is None:
        pytest.skip(f"there is no {request.param} server here")
    return program


@pytest.fixture
def private(program: Program, tmp_path: Path) -> Iterator[Server]:
    private = Server(program, tmp_path / "server")
    private.start()
    yield private
    private.stop()


def starter(kind: str, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", STARTER, kind, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=TREE,
    )


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def alive(pid: int) -> bool:
    """Whether a process runs; one that is only waiting to be collected does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not come to that in time"
        time.sleep(0.05)


def test_a_server_that_was_stopped_leaves_only_its_data_and_its_log(
    program: Program, tmp_path: Path
) -> None:
    private = Server(program, tmp_path / "server")
    private.start()
    assert private.process is not None
    pid = private.process.pid

    assert private.execute("SELECT %s", "Ω")[0][0] == "Ω"
    private.stop()

    assert not alive(pid)
    assert sorted(path.name for path in private.folder.iterdir()) == ["data", "server.log"]


def test_a_server_ends_when_its_starter_is_killed(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "server"
    with starter(program.kind, folder) as process:
        pid = int(first_line(process))
        assert alive(pid)

        process.kill()

    wait_until(lambda: not alive(pid))
    assert sorted(path.name for path in folder.iterdir()) == ["data", "server.log"]


def test_a_server_started_right_after_its_starter_was_killed_waits_for_the_old_one(
    program: Program, tmp_path: Path
) -> None:
    folder = tmp_path / "server"
    with starter(program.kind, folder) as process:
        pid = int(first_line(process))
        process.kill()

    private = Server(program, folder)
    private.start()

    assert not alive(pid)
    assert private.execute("SELECT 1") == ((1,),)
    private.stop()


def test_what_was_committed_is_there_after_a_kill_and_nothing_else(private: Server) -> None:
    private.execute("CREATE DATABASE shop")
    private.execute("CREATE TABLE shop.bills (amount INT) ENGINE = InnoDB")
    private.execute("INSERT INTO shop.bills VALUES (1)")
    unfinished = private.connect("shop")
    unfinished.begin()
    unfinished.cursor().execute("INSERT INTO bills VALUES (2)")

    private.kill()
    assert not private.socket.exists()
    private.start()

    unfinished.close()
    assert private.execute("SELECT amount FROM shop.bills") == ((1,),)


def test_the_programs_account_can_make_tables_but_not_change_the_server(private: Server) -> None:
    private.execute("CREATE DATABASE shop")
    connection = pymysql.connect(
        unix_socket=str(private.socket), user="partway", password="partway", database="shop"
    )
    with connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE bills (amount INT)")
        with pytest.raises(pymysql.err.OperationalError, match="1227"):
            cursor.execute("SET GLOBAL read_only = ON")


def test_tcp_is_off_unless_asked_for(private: Server) -> None:
    (answer,) = private.execute("SELECT @@skip_networking")

    assert answer == (1,)
    with pytest.raises(ServerError, match="TCP off"):
        private.tcp_url("partway")


def test_tcp_answers_on_the_same_port_after_a_restart(program: Program, tmp_path: Path) -> None:
    private = Server(program, tmp_path / "server", tcp=True)
    for _ in range(2):
        private.start()
        connection = pymysql.connect(
            host="127.0.0.1", port=private.port or 0, user="partway", password="partway"
        )
        connection.close()
        private.stop()


def test_a_server_takes_options(program: Program, tmp_path: Path) -> None:
    private = Server(program, tmp_path / "server", ["--innodb-lock-wait-timeout=7"])
    private.start()

    assert private.execute("SELECT @@innodb_lock_wait_timeout") == ((7,),)
    private.stop()


def test_a_server_that_does_not_start_says_why(program: Program, tmp_path: Path) -> None:
    private = Server(program, tmp_path / "server", ["--no-such-option"])

    with pytest.raises(ServerError, match="no-such-option"):
        private.start()
    assert private.process is None


def test_a_second_server_cannot_have_the_same_folder(
    private: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STOP_SECONDS", 0.1)

    with pytest.raises(ServerError, match="in use by another process"):
        Server(private.program, private.folder).start()


def test_a_folder_too_deep_for_a_socket_is_refused(program: Program, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="choose a shorter folder"):
        Server(program, tmp_path / ("deep" * 30))


def test_two_that_start_first_on_a_machine_make_the_fresh_data_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MariaDB alone, since it is the one that never lies in the cache itself.
    if find("mariadb") is None:
        pytest.skip("there is no mariadb server here")
    monkeypatch.setenv("PARTWAY_CACHE", str(tmp_path / "cache"))

    with starter("mariadb", tmp_path / "a") as one, starter("mariadb", tmp_path / "b") as other:
        pids = [int(first_line(process)) for process in (one, other)]
        assert all(alive(pid) for pid in pids)

    assert (one.returncode, other.returncode) == (0, 0)
    (fresh,) = (tmp_path / "cache" / "fresh").iterdir()
    assert [path.name for path in fresh.iterdir()] == ["data"]


def test_half_a_copy_of_the_fresh_data_is_not_taken_for_data(
    program: Program, tmp_path: Path
) -> None:
    half = tmp_path / "server" / "data.part"
    half.mkdir(parents=True)
    (half / "ibdata1").write_bytes(b"half")

    private = Server(program, tmp_path / "server")
    private.start()

    assert not half.exists()
    private.stop()


def test_a_server_ends_when_a_signal_ends_its_starter(program: Program, tmp_path: Path) -> None:
    with starter(program.kind, tmp_path / "server") as process:
        pid = int(first_line(process))
        os.kill(process.pid, signal.SIGTERM)

    wait_until(lambda: not alive(pid))
