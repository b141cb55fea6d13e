"""`make run` shows a document answered and billed, and leaves nothing behind however it ends."""

import contextlib
import fcntl
import os
import pty
import secrets
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from local.server import KINDS, find, hold

TREE = Path(__file__).resolve().parents[2]

# The example that is shown last: from here on it stays as it is.
UP = "Ctrl-C ends everything."

PROGRAMS = (" -m app ", " -m partway worker ", " -m batch ", "--datadir=")

# Enough to install nothing, start all, answer, keep for a moment, settle; and, later, to end all.
BOUND_SECONDS = 120.0


@dataclass(frozen=True)
class Run:
    """A `make run` of our own: what it shows, its port, its folder, and a mark to know it by."""

    make: "subprocess.Popen[bytes]"
    terminal: int
    output: Path
    folder: Path
    port: int
    mark: str

    def shown(self) -> str:
        """What the terminal has shown so far."""
        os.set_blocking(self.terminal, False)
        with self.output.open("ab") as output:
            # The end of a terminal is an error on Linux, not an empty read.
            try:
                while piece := os.read(self.terminal, 65536):
                    output.write(piece)
            except OSError:
                pass
        return self.output.read_text(errors="replace")

    def wait_until_shown(self, words: str) -> None:
        wait_until(lambda: words in self.shown() or self.make.poll() is not None, self.shown)
        assert words in self.shown()

    def processes(self) -> dict[int, str]:
        """Every living process of this run, wherever it hangs by now, and its command."""
        found = {}
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                try:
                    marked = self.mark.encode() in (place / "environ").read_bytes()
                    if marked:
                        found[int(place.name)] = (place / "cmdline").read_text().replace("\0", " ")
                except OSError:  # it has ended, or is not ours to look at
                    continue
        return found

    def python(self) -> int:
        """The process of `python -m local`."""
        return next(pid for pid, words in self.processes().items() if " -m local " in words)

    def assert_nothing_is_left(self) -> None:
        wait_until(lambda: not self.processes(), lambda: f"{self.processes()}\n{self.shown()}")
        assert [path for path in self.folder.rglob("*") if path.is_socket()] == []
        for folder in (self.folder, self.folder / "logs", self.folder / kind()):
            os.close(hold(folder, 0))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", self.port))


def wait_until(condition: Callable[[], bool], otherwise: Callable[[], object]) -> None:
    give_up = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < give_up, otherwise()
        time.sleep(0.1)


def kind() -> str:
    found = [kind for kind in KINDS if find(kind) is not None]
    if not found:
        pytest.skip("there is no database server here")
    return found[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    told = {"PARTWAY_BATCH_RETENTION_SECONDS": "1", "PARTWAY_SLEEP_SECONDS": "0.1"}
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PARTWAY_")}
    cache = {name: os.environ[name] for name in ("PARTWAY_CACHE",) if name in os.environ}
    return ours | cache | told | more


def make_run(
    folder: Path, port: int, *, in_terminal: bool = False, handler: str = "sleep", **more: str
) -> Run:
    """Start `make run`; outside a terminal no signal comes to it but the one a test sends."""
    kind()
    terminal, inside = pty.openpty()
    mark = secrets.token_hex(8)
    words = f"ARGS=--port {port} --folder {folder} --handler {handler}"

    def take_the_terminal() -> None:
        if in_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    make = subprocess.Popen(
        ["make", "run", words],
        cwd=TREE,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env=environment(PARTWAY_MARK=mark, **more),
        start_new_session=True,
        preexec_fn=take_the_terminal,
    )
    os.close(inside)
    return Run(make, terminal, folder.parent / f"{mark}.txt", folder, port, mark)


@pytest.fixture(params=[(False, "sleep")])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """A run that is up and has shown all it has to show."""
    in_terminal, handler = request.param
    run = make_run(tmp_path / "run", free_port(), in_terminal=in_terminal, handler=handler)
    try:
        run.wait_until_shown(UP)
        yield run
    finally:
        end(run)


def end(run: Run) -> None:
    """Whatever a test has left of a run goes, so that the next test does not meet it."""
    run.shown()
    for pid in run.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.make.wait()
    os.close(run.terminal)


@pytest.mark.parametrize("run", [(True, "apertium")], indirect=True, ids=["in a terminal"])
def test_a_run_shows_the_answer_and_the_bill_and_ctrl_c_ends_it(run: Run) -> None:
    shown = run.shown()
    assert "of 30 s" in shown
    assert "El primer tren del día" in shown
    assert "exactly what was answered" in shown
    assert sum(" -m partway worker " in words for words in run.processes().values()) >= 4

    os.write(run.terminal, b"\x03")

    run.wait_until_shown("Everything has ended.")
    assert not any(program in words for words in run.processes().values() for program in PROGRAMS)
    run.make.wait(BOUND_SECONDS)
    run.assert_nothing_is_left()


def test_a_program_that_is_killed_is_started_again_and_the_end_of_the_server_is_told(
    run: Run,
) -> None:
    before = {pid for pid, words in run.processes().items() if " -m partway worker " in words}

    os.kill(min(before), signal.SIGKILL)

    run.wait_until_shown("was killed by signal 9 and is started again")
    wait_until(
        lambda: any(
            " -m partway worker " in words
            for pid, words in run.processes().items()
            if pid not in before
        ),
        run.shown,
    )
    assert "PARTWAY_DATABASE_URL='mysql://" in run.shown()

    (server_id,) = (pid for pid, words in run.processes().items() if "--datadir" in words)
    os.kill(server_id, signal.SIGKILL)

    run.wait_until_shown("ended with status -9")
    wait_until(lambda: not run.processes(), run.shown)


def test_nothing_is_left_when_make_is_killed(run: Run) -> None:
    run.make.kill()

    run.make.wait()
    run.assert_nothing_is_left()


def test_nothing_is_left_when_the_run_itself_is_killed(run: Run) -> None:
    os.kill(run.python(), signal.SIGKILL)

    run.assert_nothing_is_left()


@pytest.mark.parametrize("run", [(True, "sleep")], indirect=True, ids=["in a terminal"])
def test_nothing_is_left_when_the_terminal_is_closed(run: Run) -> None:
    # The last hold on the window goes; the number stays, for what is done at the end of each test.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, run.terminal)
    os.close(nowhere)

    run.make.wait(BOUND_SECONDS)
    run.assert_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_is_left_when_a_run_is_told_to_end_while_it_starts(
    tmp_path: Path, number: signal.Signals
) -> None:
    run = make_run(tmp_path / "run", free_port())
    try:
        run.wait_until_shown("Starting a private")
        os.kill(run.python(), number)

        run.make.wait(BOUND_SECONDS)
        wait_until(lambda: not run.processes(), run.shown)
    finally:
        end(run)


def test_a_second_run_says_that_one_is_up_already(run: Run) -> None:
    second = local(run.folder, free_port())

    assert second.returncode == 1
    assert "up already" in second.stdout
    assert run.make.poll() is None


def test_a_run_waits_for_the_programs_of_one_that_was_killed_and_comes_up_on_its_data(
    run: Run,
) -> None:
    slow = next(pid for pid, words in run.processes().items() if " -m partway worker " in words)
    os.kill(slow, signal.SIGSTOP)
    os.kill(run.python(), signal.SIGKILL)
    run.make.wait()

    again = make_run(run.folder, run.port)
    try:
        again.wait_until_shown("Waiting for the programs of the last run")
        os.kill(slow, signal.SIGCONT)
        again.wait_until_shown(UP)
    finally:
        end(again)


def test_a_run_whose_folder_is_too_deep_for_a_socket_keeps_its_server_in_the_cache(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if kind() != "mariadb":
        pytest.skip("a cache of our own has no MySQL in it, and there is no mariadb server here")
    cache = tmp_path_factory.mktemp("c")
    run = make_run(tmp_path / ("deep" * 25), free_port(), PARTWAY_CACHE=str(cache))
    try:
        run.wait_until_shown(UP)
        assert [path.name for path in cache.rglob("*") if path.is_socket()] == ["socket"]

        os.kill(run.python(), signal.SIGTERM)

        wait_until(lambda: not run.processes(), run.shown)
        assert not any(path.is_socket() for path in cache.rglob("*"))
    finally:
        end(run)


def test_a_taken_port_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    kind()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        told = local(tmp_path / "run", port)

    assert told.returncode == 1
    assert f"port {port} cannot be used" in told.stdout


def test_a_program_that_ends_by_itself_is_named_and_everything_ends(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", free_port(), PARTWAY_BATCH_RETENTION_SECONDS="soon")
    try:
        run.make.wait(BOUND_SECONDS)

        assert run.make.returncode != 0
        assert "batch has ended with status 2" in run.shown()
        run.assert_nothing_is_left()
    finally:
        end(run)


def test_a_given_database_is_used_and_no_server_is_started(tmp_path: Path) -> None:
    """It is one that cannot be reached, so that the programs say whom they asked."""
    told = local(
        tmp_path / "run",
        free_port(),
        PARTWAY_DATABASE_URL="mysql://partway:partway@127.0.0.1:1/partway",
    )

    assert told.returncode == 1
    assert "127.0.0.1:1" in told.stdout
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["logs"]


def local(folder: Path, port: int, **more: str) -> "subprocess.CompletedProcess[str]":
    """A run without make, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "local", "--port", str(port), "--folder", str(folder)],
        cwd=TREE,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=BOUND_SECONDS,
    )
