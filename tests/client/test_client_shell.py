"""At a shell the text comes out on standard output, and all else is one line for who is there."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from partway.__main__ import main
from partway.client import Partway
from partway.client.command import SendOptions, cancel, send_and_wait
from partway.store.database import Database
from tests.actions import (
    ROOT,
    WAIT_SECONDS,
    Client,
    Programs,
    arrived,
    claimed,
    find_request,
    wait_until,
    worked,
    written,
)
from tests.scripted import (
    ACCEPTED,
    CUT,
    DONE,
    END,
    WORKING,
    answer,
    events,
    message,
    more,
    problem,
    reply,
    scripted,
)

# What a client hears is the door's own, whichever server holds the rows.
pytestmark = pytest.mark.one_server

TEXT = "One.\u2028 Two.\r\n\nThree."

COMPLETE = {
    "status": "completed",
    "document": "Uno.\u2028 Dos.",
    "counts": {"total": 2, "done": 2, "failed": 0, "timed_out": 0, "cancelled": 0},
}


class Run:
    """One `partway send`, and what it writes; `terminal` is where its standard error goes."""

    def __init__(
        self, *words: str, url: str, text: bytes = b"", in_terminal: bool = False, out: int
    ) -> None:
        # Without what makes a Python write at once, and with what a text must not depend on.
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("PARTWAY_", "PYTHON"))}
        self.terminal, inside = pty.openpty() if in_terminal else (-1, subprocess.PIPE)
        if in_terminal:
            fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
            os.set_blocking(self.terminal, False)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "partway", "send", *words],
            cwd=ROOT,
            env={**ours, "PARTWAY_URL": url, "TERM": "xterm", "PYTHONIOENCODING": "ascii"},
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=inside,
        )
        self._shown = b""
        self._text = text
        if in_terminal:
            os.close(inside)

    def shown(self) -> str:
        """What its terminal has shown so far, without the colours."""
        # The end of a terminal is an error on Linux, not an empty read.
        with contextlib.suppress(OSError):
            while piece := os.read(self.terminal, 65_536):
                self._shown += piece
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._shown.decode())

    def raw(self) -> bytes:
        """The same with what moves the cursor."""
        return self._shown

    async def shows(self, words: str) -> None:
        """Come back once its terminal has shown these words."""

        async def has_shown() -> bool:
            return words in self.shown()

        await wait_until(has_shown, f"{words!r} on the terminal")

    async def end(self) -> tuple[int, bytes, str]:
        """Its exit status, standard output and standard error, once it has ended."""
        out, errors = await asyncio.to_thread(self.process.communicate, self._text, WAIT_SECONDS)
        return self.process.returncode, out or b"", (errors or b"").decode()

    def close(self) -> None:
        """Kill it if it still runs."""
        self.process.kill()
        self.process.communicate()
        if self.terminal >= 0:
            os.close(self.terminal)


class Runs:
    """The runs of one test."""

    def __init__(self) -> None:
        self.all: list[Run] = []

    def start(
        self,
        *words: str,
        url: str,
        text: bytes = b"",
        in_terminal: bool = False,
        out: int = subprocess.PIPE,
    ) -> Run:
        """Start `partway send` with these words."""
        run = Run(*words, url=url, text=text, in_terminal=in_terminal, out=out)
        self.all.append(run)
        return run

    async def run(self, *words: str, **more: Any) -> tuple[int, bytes, str]:
        """Exit status, standard output and standard error of `partway send` with these."""
        return await self.start(*words, **more).end()


@pytest.fixture
async def runs() -> AsyncIterator[Runs]:
    started = Runs()
    yield started
    for run in started.all:
        run.close()


@pytest.fixture
def letter(tmp_path: Path) -> str:
    """The name of a file with a text in it."""
    path = tmp_path / "letter.txt"
    path.write_bytes(TEXT.encode())
    return str(path)


async def node(programs: Programs) -> Client:
    return await programs.app(APP_POLL_SECONDS=0.05)


def one_line(errors: str) -> str:
    """The one line that was said, without who says it."""
    assert errors.startswith("partway: ")
    assert errors.endswith("\n")
    assert errors.count("\n") == 1
    return errors.removeprefix("partway: ").strip()


async def test_the_text_comes_out_whole_and_nothing_else(
    programs: Programs, db: Database, runs: Runs, letter: str
) -> None:
    url = str((await node(programs)).base_url)
    await programs.worker()
    words = ("--param", "seconds=0", "--deadline", "25")

    from_file = await runs.run(letter, *words, url=url)
    from_input = await runs.run("-", *words, url=url, text=TEXT.encode())

    assert from_file == from_input == (0, TEXT.encode(), "")


async def test_json_is_the_answer_as_the_server_gives_it(
    programs: Programs, db: Database, runs: Runs, letter: str
) -> None:
    door = await node(programs)
    await programs.worker()
    words = ("--json", "--id", "mine", "--param", "seconds=0")

    status, out, errors = await runs.run(letter, *words, url=str(door.base_url))

    assert (status, errors) == (0, "")
    assert json.loads(out) == (await door.get("/v1/requests/mine")).json()
    assert out.count(b"\n") == 1


async def test_what_is_missing_is_written_as_asked_and_the_exit_status_is_3(
    programs: Programs, db: Database, runs: Runs
) -> None:
    url = str((await node(programs)).base_url)
    modes = ("source", "omit", "fail", "json")
    kept = {
        mode: runs.start(
            *("-", "--deadline", "6", "--id", mode),
            *(("--json",) if mode == "json" else ("--partial", mode)),
            url=url,
            text=b"One. Two.\n",
        )
        for mode in modes
    }
    ends = {mode: asyncio.create_task(run.end()) for mode, run in kept.items()}

    async def do_one(mode: str) -> None:
        assert not await written(db, *await claimed(db, (await arrived(db, mode)).id))

    # At once, since the deadline of each runs from its own arrival.
    await asyncio.gather(*map(do_one, modes))

    said = {mode: await end for mode, end in ends.items()}

    assert {mode: status for mode, (status, _, _) in said.items()} == dict.fromkeys(modes, 3)
    outs = {mode: out for mode, (_, out, _) in said.items()}
    assert outs["source"] == b"done 0 Two.\n"
    assert outs["omit"] == b"done 0 \n"
    assert outs["fail"] == b""
    assert json.loads(outs["json"])["status"] == "partial"
    counted = "partial: 1 of 2 segments, 1 timed out; billed: 4 characters in, 6 out"
    lines = {mode: one_line(errors) for mode, (_, _, errors) in said.items()}
    assert lines == {
        "source": f"{counted}; the source is written for missing segments",
        "omit": f"{counted}; missing segments are left out",
        "fail": f"{counted}; nothing is written",
        "json": counted,
    }


async def test_why_a_segment_failed_is_said(
    programs: Programs, db: Database, runs: Runs, letter: str
) -> None:
    url = str((await node(programs)).base_url)
    await programs.worker()

    status, _, errors = await runs.run(letter, "--param", "seconds=soon", url=url)

    assert status == 3
    assert "3 failed, segment 0: bad_params: seconds must be a number" in one_line(errors)
    assert "billed: 0 characters" in errors


async def test_what_a_handler_said_stays_one_line_and_moves_no_cursor(
    runs: Runs, letter: str
) -> None:
    failed = {"index": 0, "status": "failed", "error": "Oh\n\x1b[2Jno"}
    async with scripted(answer(segments=[failed])) as server:
        _, _, errors = await runs.run(letter, url=server.url)

    assert "segment 0: Oh  [2Jno;" in one_line(errors)


async def test_what_is_asked_for_is_what_is_sent(runs: Runs, letter: str) -> None:
    async with scripted(answer(**COMPLETE), answer(**COMPLETE)) as server:
        await runs.run(letter, url=server.url)
        await runs.run(
            *(letter, "--deadline", "2.5", "--language", "es", "--id", "mine"),
            *("--param", "target=spa", "--param", "n=3", "--partial", "fail"),
            url=server.url,
        )

    (_, _, plain), (line, headers, body) = server.asked
    assert plain == {
        "document": TEXT,
        "deadline_ms": 30_000,
        "params": {},
        "on_missing": "source",
    }
    assert line == "PUT /v1/requests/mine"
    assert headers["accept"] == "text/event-stream"
    assert body == {
        "document": TEXT,
        "deadline_ms": 2500,
        "language": "es",
        "params": {"target": "spa", "n": 3},
        "on_missing": "null",
    }


REFUSED = {
    "401": (problem(401), "requires a valid key; set PARTWAY_KEY"),
    "413": (problem(413, detail="A body may have 9 bytes."), "(413): A body may have 9 bytes."),
    "422": (
        problem(422, errors=[{"pointer": "/deadline_ms", "detail": "must be at most 55000"}]),
        "(422): /deadline_ms must be at most 55000",
    ),
    "429": (problem(429, "Retry-After: 60"), "(429): It is not to be. (try again in 60 s)"),
    "500": (problem(500), "(500): It is not to be."),
    "a proxy": (reply(403, "text/html", "<h1>No</h1>"), "(403): Forbidden"),
    "another server": (reply(200, "text/html", "<h1>Hi</h1>"), "did not answer as Partway does"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_refusal_is_one_line_and_exit_status_1(runs: Runs, letter: str, kind: str) -> None:
    said, words = REFUSED[kind]
    async with scripted(said) as server:
        status, out, errors = await runs.run(letter, url=server.url)

    assert (status, out) == (1, b"")
    assert words in one_line(errors)


async def told(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: SendOptions
) -> tuple[int, str]:
    """Exit status and standard error of the program in this process, whose patience is short."""
    monkeypatch.setattr("partway.client.command.RETRY_SECONDS", 0.3)
    status = await asyncio.to_thread(send_and_wait, options)
    return status, capfd.readouterr().err


async def test_a_server_that_is_away_is_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    async with scripted() as server:
        gone = server.url

    status, errors = await told(capfd, monkeypatch, SendOptions(letter, url=gone))

    assert status == 1
    assert one_line(errors).startswith(f"no answer from {gone}: ")
    assert "--id" not in errors


async def test_a_server_that_goes_away_later_leaves_the_id_to_come_back_with(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    gone_for_good = asyncio.Event()
    async with scripted([events(ACCEPTED), gone_for_good]) as server:
        telling = asyncio.create_task(
            told(capfd, monkeypatch, SendOptions(letter, url=server.url, id="mine"))
        )

        async def was_asked() -> bool:
            return bool(server.asked)

        await wait_until(was_asked, "the request")
        server.stop()
        gone_for_good.set()
        status, errors = await telling

    assert status == 1
    assert "retry with --id mine to attach to it" in one_line(errors)


@pytest.mark.parametrize(
    "words, said",
    [
        (["nowhere.txt"], "nowhere.txt: No such file or directory"),
        (["."], ".: Is a directory"),
        (["-"], "-: not UTF-8 at byte 2"),
        ([], "Missing argument 'FILE'"),
        (["-", "--deadline", "soon"], ".*--deadline.*: 'soon' is not a number of seconds"),
        (["-", "--deadline", "0"], ".*--deadline.*: must be from 0.001 to 86400"),
        (["-", "--deadline", "nan"], ".*--deadline.*: must be from 0.001 to 86400"),
        (["-", "--param", "target"], ".*--param.*: 'target' is not NAME=VALUE"),
        (["-", "--partial", "maybe"], ".*--partial.*: 'maybe' is not one of"),
        (["-", "--dedline", "5"], "No such option"),
        (["README.md", "--url", "localhost"], "'localhost' is not a URL"),
        (["README.md", "--id", "a/b"], "'a/b' is not an id"),
    ],
)
async def test_a_wrong_call_is_one_line_and_exit_status_2(
    runs: Runs, words: Sequence[str], said: str
) -> None:
    async with scripted() as server:
        status, out, errors = await runs.run(*words, url=server.url, text=b"ab\xff")

    assert (status, out) == (2, b"")
    assert re.match(said, one_line(errors)), errors


async def test_help_has_examples_and_every_exit_status(runs: Runs) -> None:
    status, out, errors = await runs.run("--help", url="http://localhost")

    assert (status, errors) == (0, "")
    assert b"partway send letter.txt --param source=eng" in out
    assert b"Exit status: 0 complete, 3 partial, 1 failed, 2 wrong usage, 130" in out


def test_it_is_installed_as_partway() -> None:
    (script,) = entry_points(group="console_scripts", name="partway")

    assert script.load() is main


async def test_ctrl_c_cancels_and_says_what_is_billed(
    programs: Programs, db: Database, runs: Runs, letter: str
) -> None:
    run = runs.start(letter, url=str((await node(programs)).base_url), text=b"")
    request = await arrived(db)
    await worked(db, request.id, 1)

    run.process.send_signal(signal.SIGINT)
    status, out, errors = await run.end()

    assert (status, out) == (130, b"")
    lines = errors.splitlines()
    assert lines[0].startswith("partway: cancelling")
    assert lines[1:] == [
        "partway: cancelled: 1 of 3 segments, 2 cancelled; billed: 4 characters in, 4 out"
    ]
    closed = await find_request(db, request.public_id)
    assert closed is not None
    assert closed.status == "cancelled"


async def test_sigterm_cancels_like_ctrl_c(
    programs: Programs, db: Database, runs: Runs, letter: str
) -> None:
    run = runs.start(letter, url=str((await node(programs)).base_url))
    request = await arrived(db)

    run.process.send_signal(signal.SIGTERM)
    status, out, errors = await run.end()

    assert (status, out) == (143, b"")
    assert errors.splitlines()[0].startswith("partway: cancelling")
    assert errors.splitlines()[1].startswith("partway: cancelled: 0 of 3 segments")
    closed = await find_request(db, request.public_id)
    assert closed is not None
    assert closed.status == "cancelled"


async def test_what_still_runs_after_a_cancel_is_said_to_be_billed_too(
    programs: Programs, db: Database, runs: Runs, letter: str
) -> None:
    run = runs.start(letter, url=str((await node(programs)).base_url))
    await claimed(db, (await arrived(db)).id)

    run.process.send_signal(signal.SIGINT)
    _, _, errors = await run.end()

    assert errors.endswith(
        "; billed: 0 characters in, 0 out, plus running segments if they finish\n"
    )


async def test_a_cancel_that_overtakes_its_request_waits_for_it(runs: Runs, letter: str) -> None:
    cancelled = answer(status="cancelled")
    for_ever = asyncio.Event()
    replies = ([for_ever], problem(404), problem(404), cancelled)
    async with scripted(*replies) as server:
        run = runs.start(letter, "--id", "mine", url=server.url)
        await wait_until(lambda: server.was_asked("PUT /v1/requests/mine"), "the request")
        run.process.send_signal(signal.SIGINT)
        status, _, errors = await run.end()

    assert server.lines[1:] == ["DELETE /v1/requests/mine"] * 3
    assert status == 130
    assert errors.splitlines()[1].startswith("partway: cancelled: 1 of 2 segments")


async def test_a_request_that_never_came_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partway.client.command.UNDERWAY_SECONDS", 0)
    async with scripted(problem(404)) as server:
        with Partway(server.url) as partway:
            said = await asyncio.to_thread(cancel, partway, "mine")

    assert said == "cancelled before it was stored; nothing is billed"


@pytest.mark.parametrize("second, wanted", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_second_signal_leaves_the_request_running_and_says_so(
    runs: Runs, letter: str, second: signal.Signals, wanted: int
) -> None:
    for_ever = asyncio.Event()
    async with scripted([for_ever], [for_ever]) as server:
        run = runs.start(letter, "--id", "mine", url=server.url)
        await wait_until(lambda: server.was_asked("PUT /v1/requests/mine"), "the request")
        run.process.send_signal(signal.SIGINT)
        await wait_until(lambda: server.was_asked("DELETE /v1/requests/mine"), "the cancel")
        run.process.send_signal(second)
        status, out, errors = await run.end()

    assert (status, out) == (wanted, b"")
    assert "not cancelled; the request continues: retry with --id mine to attach to it" in errors
    assert "Traceback" not in errors


async def test_a_cancel_that_is_refused_does_not_look_like_one(runs: Runs, letter: str) -> None:
    async with scripted([asyncio.Event()], problem(410)) as server:
        run = runs.start(letter, "--id", "mine", url=server.url)
        await wait_until(lambda: server.was_asked("PUT /v1/requests/mine"), "the request")
        run.process.send_signal(signal.SIGINT)
        status, _, errors = await run.end()

    assert status == 1
    assert "partway: not cancelled: refused (410)" in errors


async def test_ctrl_c_before_anything_was_sent_is_quiet(runs: Runs, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    os.mkfifo(slow)
    run = runs.start(str(slow), url="http://localhost")

    async def is_read() -> bool:
        # A pipe that nobody reads cannot be opened for writing.
        with contextlib.suppress(OSError):
            writing.append(os.open(slow, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writing)

    writing: list[int] = []
    await wait_until(is_read, "the program to read")
    run.process.send_signal(signal.SIGINT)

    assert await run.end() == (130, b"", "")
    os.close(writing[0])


async def test_a_reader_that_has_read_enough_ends_it_quietly(runs: Runs, letter: str) -> None:
    whole = answer(**COMPLETE | {"document": "x" * 1_000_000})
    for_reading, for_writing = os.pipe()
    os.close(for_reading)
    async with scripted(whole) as server:
        run = runs.start(letter, url=server.url, out=for_writing)
        os.close(for_writing)
        ended = await run.end()

    assert ended == (1, b"", "")


async def test_an_output_that_takes_nothing_is_one_line(runs: Runs, letter: str) -> None:
    with Path("/dev/full").open("wb") as full:
        async with scripted(answer(**COMPLETE)) as server:
            status, _, errors = await runs.run(letter, url=server.url, out=full.fileno())

    assert status == 1
    assert one_line(errors) == "standard output: No space left on device"


async def test_at_a_terminal_the_segments_come_in_against_the_deadline(
    runs: Runs, letter: str
) -> None:
    accepted, some, rest = asyncio.Event(), asyncio.Event(), asyncio.Event()
    done = message("end", json.loads(answer(**COMPLETE).partition(b"\r\n\r\n")[2]), "2:end")
    script: list[Any] = [accepted, events(ACCEPTED, WORKING), some, more(DONE), rest, more(done)]
    async with scripted(script) as server:
        run = runs.start(letter, "--deadline", "300", url=server.url, in_terminal=True)
        await run.shows("waiting for the server")
        accepted.set()
        await run.shows("0 of 2, 2 working")
        some.set()
        await run.shows("1 of 2, 1 working")
        await run.shows(" of 300 s")
        rest.set()
        status, out, _ = await run.end()

    assert (status, out) == (0, "Uno.\u2028 Dos.".encode())
    assert run.shown().splitlines()[-1] == (
        "partway: completed: 2 of 2 segments; billed: 4 characters in, 5 out"
    )


async def test_at_a_terminal_a_real_node_is_seen_to_work(
    programs: Programs, db: Database, runs: Runs, letter: str
) -> None:
    url = str((await node(programs)).base_url)
    run = runs.start(letter, url=url, in_terminal=True)
    request = await arrived(db)
    await worked(db, request.id, 1)
    await run.shows("1 of 3")
    (lease,) = await claimed(db, request.id)
    await run.shows("1 of 3, 1 working")
    await worked(db, request.id, 1)
    await run.shows("2 of 3, 1 working")
    assert not await written(db, lease, result="late")

    status, out, _ = await run.end()

    assert (status, out.decode()) == (0, TEXT.replace("Two.", "late 1"))
    assert "partway: completed: 3 of 3 segments" in run.shown()


async def test_what_is_no_terminal_is_shown_no_bar(runs: Runs, letter: str) -> None:
    async with scripted(events(ACCEPTED, WORKING, DONE), CUT, events(END)) as server:
        status, _, errors = await runs.run(letter, url=server.url)

    assert status == 3
    assert one_line(errors).startswith("partial: 1 of 2 segments")


async def test_ctrl_c_at_a_terminal_leaves_it_as_it_was(runs: Runs, letter: str) -> None:
    for_ever = asyncio.Event()
    async with scripted([events(ACCEPTED, WORKING), for_ever], answer(**COMPLETE)) as server:
        run = runs.start(letter, url=server.url, in_terminal=True)
        await run.shows("2 working")
        run.process.send_signal(signal.SIGINT)
        status, out, _ = await run.end()

    assert (status, out) == (130, b"")
    run.shown()
    # The cursor is hidden while the bars move, and shown again after them.
    assert run.raw().rindex(b"\x1b[?25h") > run.raw().rindex(b"\x1b[?25l")
    assert "completed: 2 of 2 segments" in run.shown()
