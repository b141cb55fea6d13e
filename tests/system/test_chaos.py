"""Real processes are broken at random under load, and every answer still equals its record."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from local import children
from local.server import KINDS, find
from proof.chaos import PROGRAMS, TO_A_PROGRAM, TO_THE_DATABASE, differences, marked, plan
from proof.chaos_callers import Book, expected
from tests.actions import ROOT, wait_until
from tests.sweeps import sampled

FOUND = [kind for kind in KINDS if find(kind)]

servers = pytest.mark.parametrize("kind", sampled(FOUND, sample=FOUND[:1]))

# The faults of a run last so long; with start and settlement it takes twice that.
MINUTES = sampled("0.3", sample="0.12")
RUN_SECONDS = 240.0


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for what a run leaves; its path is short enough for the socket of a server."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def begin(place: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a run, which ends when we do; what it says is in `place`."""
    started = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "TMPDIR": str(place)}
        command = (sys.executable, "-m", "proof.chaos", *words)
        started.append(children.start(command, place / "said.txt", env=env, cwd=ROOT))
        return started[-1]

    yield start
    for run in started:
        if run.poll() is None:
            children.end(run, RUN_SECONDS)


# Another seed on each: `make chaos` takes any, on both.
SEEDS = {"mariadb": 1, "mysql": 2}


@pytest.mark.sweep
@servers
def test_whatever_breaks_every_answer_is_its_record(
    begin: Callable[..., subprocess.Popen[bytes]], place: Path, kind: str
) -> None:
    run = begin("--seed", str(SEEDS[kind]), "--minutes", MINUTES, "--server", kind)

    status = run.wait(RUN_SECONDS)

    said = (place / "said.txt").read_text()
    assert status == 0, said
    assert "differences       0 characters; 0 in all" in said


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal; False when it has ended."""
    with contextlib.suppress(OSError):
        return "\nState:\tT" in Path(f"/proc/{pid}/status").read_text()
    return False


# A seed whose plan begins with a program that is frozen.
FROZEN_FIRST = 21


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_run_that_is_interrupted_leaves_no_process(
    begin: Callable[..., subprocess.Popen[bytes]], place: Path, number: signal.Signals
) -> None:
    """Not even one that is stopped at that moment, and so cannot end when it is told to."""
    kind = next(kind for kind in KINDS if find(kind))
    run = begin("--seed", str(FROZEN_FIRST), "--minutes", "5", "--server", kind)

    async def one_is_frozen() -> bool:
        assert run.poll() is None, (place / "said.txt").read_text()
        return any(is_stopped(pid) for pid in marked(run.pid))

    await wait_until(one_is_frozen, "a program of the run to be frozen")
    assert len(marked(run.pid)) >= len(PROGRAMS)
    run.send_signal(number)

    async def nothing_runs() -> bool:
        return run.poll() is not None and not marked(run.pid)

    await wait_until(nothing_runs, "the end of all that the run had started")
    if number == signal.SIGTERM:
        assert list(place.iterdir()) == [place / "said.txt"]


def test_the_same_seed_makes_the_same_plan() -> None:
    kinds = [*TO_A_PROGRAM, *TO_THE_DATABASE]

    assert plan(7, 180, kinds) == plan(7, 180, kinds)
    assert plan(7, 180, kinds) != plan(8, 180, kinds)
    assert plan(FROZEN_FIRST, 180, kinds)[0].kind == "frozen"
    # Long enough a run meets all that there is.
    assert set(kinds) < {fault.kind for fault in plan(7, 3600, kinds)}


FIGURES = {"segments": 2, "input_characters": 9, "output_characters": 11}
ANSWERED = {"status": "partial", "usage": FIGURES | {"billed": True, "final": True}}
RECORD = FIGURES | {"status": "completed", "billed": 1}


@pytest.mark.parametrize(
    "record",
    [
        RECORD | {"output_characters": 12},
        RECORD | {"input_characters": 8},
        RECORD | {"segments": 3},
        RECORD | {"billed": 0},
        RECORD | {"status": "abandoned", "billed": 0},
        None,
    ],
    ids=repr,
)
def test_one_character_between_an_answer_and_its_record_is_seen(
    record: dict[str, Any] | None,
) -> None:
    book = Book()
    book.answers["mine"].append(ANSWERED)

    assert differences(book, {"mine": RECORD}, {"mine"}) == []
    assert differences(book, {"mine": record} if record else {}, set()) != []
    assert differences(book, {"mine": RECORD}, {"mine", "vanished"}) != []


def test_a_result_of_somebody_else_is_seen() -> None:
    """What a caller knows of the handlers is what the handlers do."""
    assert expected("0.10 say one 1") == "SAY ONE 1"
    assert expected("0.10 swell 2 x") == "SWELL 2 XSWELL 2 X"
    assert expected("0.10 fail x") is None
