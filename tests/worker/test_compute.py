"""Whatever a handler does, each attempt gets one ending, no seat is lost and no neighbour pays."""

import asyncio
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from partway.worker.compute import Compute
from partway.worker.handler import HandlerError
from partway.worker.process import Ending, Work, start_child

SYNC = "tests.odd_handlers:odd"
ASYNC = "tests.odd_handlers:odd_async"

# An upper bound for what takes milliseconds, on a machine that is busy with something else.
BOUND_SECONDS = 20.0

numbers = iter(range(1_000_000))


def work(text: str = "text", left: float = 60, **params: Any) -> Work:
    """A piece of work of its own, with `left` seconds until its deadline."""
    return Work(1, next(numbers), 1, text, params, time.monotonic() + left)


async def until(condition: Callable[[], object]) -> None:
    """Come back when the condition holds; TimeoutError when it never does."""
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def computing(
    handler: str = SYNC, seats: int = 1, limit_seconds: float = 30.0, cap: int = 10_000_000
) -> AsyncIterator[Compute]:
    """Children of the handler with all their seats free; afterwards all processes are gone."""
    compute = Compute(handler, seats, limit_seconds, cap)
    await compute.start()
    try:
        await until(lambda: compute.free == seats)
        async with asyncio.timeout(3 * BOUND_SECONDS):
            yield compute
    finally:
        await compute.close()
        assert children_of(os.getpid()) == []


def children_of(parent: int) -> list[int]:
    """The processes of worker.child whose parent this is."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):
            continue
        if b"partway.worker.child" in command and int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def is_gone(process: int) -> bool:
    """True when the process has ended, even if nobody has asked for its status."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def said(ending: Ending) -> tuple[str, str | None]:
    """Kind and result of an ending."""
    return ending.kind, ending.result


# What a handler gets and gives.


@pytest.mark.parametrize("handler", [SYNC, ASYNC])
async def test_the_text_comes_back(handler: str) -> None:
    async with computing(handler, seats=3) as compute:
        endings = await asyncio.gather(*(compute.run(work(f"text {n}")) for n in range(50)))

    assert [said(ending) for ending in endings] == [("done", f"text {n}") for n in range(50)]


async def test_a_handler_knows_its_params_its_place_its_attempt_and_its_time() -> None:
    async with computing(limit_seconds=9) as compute:
        ending = await compute.run(
            Work(1, 17, 2, "", {"do": "context", "mark": "é"}, time.monotonic() + 60)
        )

    assert ending.result is not None
    index, attempt, mark, remaining = ending.result.split()
    assert (index, attempt, mark) == ("17", "2", "é")
    assert 0 < float(remaining) <= 9


@pytest.mark.parametrize("handler", [SYNC, ASYNC])
@pytest.mark.parametrize(
    "do, kind, result, error",
    [
        ("none", "failed", None, "the handler returned NoneType instead of str"),
        ("int", "failed", None, "the handler returned int instead of str"),
        ("surrogate", "failed", None, "the result is not UTF-8: UnicodeEncodeError"),
        ("nul", "done", "\ufeffa\0b", None),
        ("empty", "done", "", None),
        ("print", "done", "text", None),
        ("retry", "retry", None, "later"),
        ("retry badly", "failed", None, "ValueError: Retry(after=nan)"),
        ("reject", "rejected", None, "bad_words: no such words"),
        ("raise", "failed", None, "KeyError: 'xxx"),
        ("unprintable", "failed", None, "Unprintable: its message could not be read"),
        ("sys.exit", "failed", None, "SystemExit: 4"),
        ("exit", "failed", None, "the handler's process ended with exit status 3"),
        ("kill", "failed", None, "the handler's process ended by signal 9"),
    ],
)
async def test_each_ending_is_told(
    handler: str, do: str, kind: str, result: str | None, error: str | None
) -> None:
    async with computing(handler) as compute:
        ending = await compute.run(work(do=do))
        after = await compute.run(work("next"))

    assert said(ending) == (kind, result)
    assert (ending.error or "").startswith(error or "")
    assert len(ending.error or "") <= 500
    assert ending.after_seconds == (2.5 if do == "retry" else None)
    assert said(after) == ("done", "next")


@pytest.mark.parametrize("handler", [SYNC, ASYNC])
async def test_two_megabytes_go_in_and_come_out(handler: str) -> None:
    text = "é\U0001f600x\n" * 500_000
    async with computing(handler, seats=2) as compute:
        endings = await asyncio.gather(*(compute.run(work(text)) for _ in range(3)))

    assert all(said(ending) == ("done", text) for ending in endings)


async def test_an_output_over_the_cap_is_rejected_and_its_neighbours_are_not() -> None:
    async with computing(ASYNC, seats=3, cap=1000) as compute:
        long, exact, short = await asyncio.gather(
            compute.run(work("a" * 80, do="repeat", times=13_000)),
            compute.run(work("a" * 80, do="repeat", times=12)),
            compute.run(work("a" * 1000)),
        )

    assert said(long) == ("rejected", None)
    assert long.error == "the result has 1040000 characters, more than 1000"
    assert said(exact) == ("done", "a" * 960)
    assert said(short) == ("done", "a" * 1000)


# Children that die.


async def test_a_child_killed_in_mid_segment_costs_that_segment_only() -> None:
    async with computing(seats=2) as compute:
        killed = asyncio.create_task(compute.run(work(do="look")))
        neighbour = asyncio.create_task(compute.run(work(do="sleep", seconds=1)))
        await until(lambda: compute.free == 0)
        first_child = next(iter(compute._children[0].running.values())).child
        assert first_child is not None
        os.kill(first_child.process.pid, signal.SIGKILL)
        endings = await asyncio.gather(*(compute.run(work(f"{n}")) for n in range(20)))

        assert (await killed).error == "the handler's process ended by signal 9"
        assert said(await neighbour) == ("done", "text")
        assert [ending.result for ending in endings] == [f"{n}" for n in range(20)]
        await until(lambda: compute.free == 2)


async def test_of_eight_together_only_the_one_that_kills_its_child_fails() -> None:
    async with computing(ASYNC, seats=8) as compute:
        attempts = [
            work(f"{n}", do="kill later") if n == 3 else work(f"{n}", do="sleep", seconds=0.4)
            for n in range(8)
        ]
        endings = await asyncio.gather(*(compute.run(attempt) for attempt in attempts))

        assert [ending.kind for ending in endings] == ["done"] * 3 + ["failed"] + ["done"] * 4
        assert endings[3].error == "the handler's process ended by signal 9"
        assert [ending.result for ending in endings if ending.kind == "done"] == list("0124567")
        await until(lambda: compute.free == 8)


async def test_two_that_kill_are_both_found_and_new_work_goes_on() -> None:
    async with computing(ASYNC, seats=4) as compute:
        bad = [asyncio.create_task(compute.run(work(do="kill later"))) for _ in range(2)]
        good = [asyncio.create_task(compute.run(work(do="sleep", seconds=0.5))) for _ in range(2)]
        await until(lambda: any(child.exclusive for child in compute._children))
        assert compute.free == 0
        await until(lambda: not compute._quarantined)
        # The last suspect runs, and it must be alone.
        assert compute.free == 0
        later = [asyncio.create_task(compute.run(work(f"{n}"))) for n in range(10)]
        await asyncio.sleep(0)
        assert [len(child.running) for child in compute._children] == [1]

        assert [(await ending).kind for ending in bad] == ["failed", "failed"]
        assert [(await ending).kind for ending in good] == ["done", "done"]
        assert [(await ending).result for ending in later] == [f"{n}" for n in range(10)]
        await until(lambda: compute.free == 4)


async def test_an_idle_child_that_dies_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async with computing() as compute:
        old = compute._children[0].process.pid
        os.kill(old, signal.SIGKILL)
        # Without a turn of the loop: what is sent to a dead child must not be blamed for its death.
        os.waitid(os.P_PID, old, os.WEXITED | os.WNOWAIT)
        ending = await compute.run(work(do="pid"))

    assert ending.kind == "done"
    assert ending.result != str(old)
    assert caplog.messages == [
        "the handler's process ended by signal 9; starting another",
    ]


async def test_what_a_child_said_before_it_died_is_heard() -> None:
    async with computing(ASYNC, seats=2) as compute:
        child = compute._children[0]
        first = asyncio.create_task(compute.run(work(do="pid")))
        second = asyncio.create_task(compute.run(work(do="kill later")))
        await asyncio.sleep(0)
        child.flush()
        # As if so much had been said that it takes several turns to read.
        child.transport.pause_reading()
        os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
        asyncio.get_running_loop().call_later(0.05, child.transport.resume_reading)

        assert said(await first) == ("done", str(child.process.pid))
        assert (await second).error == "the handler's process ended by signal 9"


async def test_a_death_is_noticed_though_another_process_holds_the_socket_open() -> None:
    async with computing() as compute:
        ending = await compute.run(work(do="fork and die"))

    assert ending.error == "the handler's process ended with exit status 3"
    assert ending.run_seconds < 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_the_whole_group_does_not_end_a_child(number: signal.Signals) -> None:
    async with computing() as compute:
        ending = asyncio.create_task(compute.run(work(do="sleep", seconds=0.5)))
        await until(lambda: compute.free == 0)
        os.kill(compute._children[0].process.pid, number)

        assert said(await ending) == ("done", "text")


# Handlers that do not end.


@pytest.mark.parametrize("do", ["spin", "hold the GIL", "sleep"])
async def test_a_sync_handler_is_ended_at_the_time_limit_and_its_seat_used_again(do: str) -> None:
    async with computing(limit_seconds=0.3) as compute:
        ending = await compute.run(work(do=do, seconds=30))
        after = await compute.run(work("next"))

    assert said(ending) == ("failed", None)
    assert ending.error == "time limit of 0.3 s reached"
    assert ending.run_seconds >= 0.3
    assert said(after) == ("done", "next")


async def test_a_handler_that_swallows_cancellation_is_killed_and_its_neighbour_runs_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with computing(ASYNC, seats=2, limit_seconds=1) as compute:
        swallowing = asyncio.create_task(compute.run(work(do="swallow")))
        await until(lambda: compute.free == 1)
        # Begins so late that it is in mid-run when its child is killed.
        await asyncio.sleep(0.8)
        neighbour = await compute.run(work(do="sleep", seconds=0.7))

        assert (await swallowing).error == "time limit of 1 s reached"
        assert said(neighbour) == ("done", "text")
        await until(lambda: compute.free == 2)
    assert len(caplog.messages) == 1
    assert "did not stop at request 1, segment" in caplog.messages[0]


async def test_a_handler_that_lets_go_keeps_its_child() -> None:
    async with computing(limit_seconds=0.2) as compute:
        child = compute._children[0].process.pid
        ending = await compute.run(work(do="look"))
        after = await compute.run(work(do="pid"))

    assert said(ending) == ("failed", None)
    assert after.result == str(child)


@pytest.mark.parametrize("handler, do", [(SYNC, "spin"), (SYNC, "look"), (ASYNC, "swallow")])
async def test_a_deadline_stops_a_handler_and_nothing_is_written(handler: str, do: str) -> None:
    async with computing(handler) as compute:
        ending = await compute.run(work(left=0.2, do=do))
        after = await compute.run(work("next"))

    assert said(ending) == ("stopped", None)
    assert said(after) == ("done", "next")


async def test_nothing_begins_once_its_deadline_has_passed(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    async with computing() as compute:
        ending = await compute.run(work(left=-0.001, do="look", begun=str(begun)))
        await compute.run(work("next"))

    assert said(ending) == ("stopped", None)
    assert ending.run_seconds == 0.0
    assert not begun.exists()


async def test_a_deadline_that_passes_before_a_seat_is_free_stops_too() -> None:
    async with computing() as compute:
        long = asyncio.create_task(compute.run(work(do="sleep", seconds=0.6)))
        await until(lambda: compute.free == 0)
        waiting = await compute.run(work(left=0.1))

        assert not long.done()
        assert (waiting.kind, waiting.run_seconds) == ("stopped", 0.0)
        assert (await long).kind == "done"
        assert compute.free == 1


@pytest.mark.parametrize(
    "handler, do",
    [(SYNC, "spin"), (SYNC, "look"), (ASYNC, "swallow"), (ASYNC, "sleep"), (SYNC, "echo")],
)
async def test_cancelling_a_run_ends_the_handler_and_frees_the_seat(handler: str, do: str) -> None:
    async with computing(handler) as compute:
        run = asyncio.create_task(compute.run(work(do=do, seconds=30)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        # An async handler has let go when the run comes back, and so has one that was killed.
        assert all(not child.running for child in compute._children)
        await until(lambda: compute.free == 1)

        assert said(await compute.run(work("next"))) == ("done", "next")


async def test_an_async_handler_cancelled_before_its_first_step_keeps_its_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("partway.worker.compute.KILL_AFTER_SECONDS", 3.0)
    async with computing(ASYNC, seats=2) as compute:
        before = await compute.run(work(do="pid"))
        # The child finds the run and its cancellation together.
        blocking = asyncio.create_task(compute.run(work(do="block", seconds=0.3)))
        run = asyncio.create_task(compute.run(work(do="sleep", seconds=60)))
        await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait([run, blocking])
        after = await compute.run(work(do="pid"))

    assert after.result == before.result


async def test_cancelling_twice_or_while_waiting_loses_no_seat() -> None:
    async with computing() as compute:
        running = asyncio.create_task(compute.run(work(do="spin")))
        await until(lambda: compute.free == 0)
        waiting = asyncio.create_task(compute.run(work()))
        await asyncio.sleep(0)
        waiting.cancel()
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        gone = await asyncio.gather(running, waiting, return_exceptions=True)

        assert [type(error) for error in gone] == [asyncio.CancelledError] * 2
        await until(lambda: compute.free == 1)
        assert said(await compute.run(work("next"))) == ("done", "next")


@pytest.mark.parametrize("handler, seats", [(SYNC, 3), (ASYNC, 6)])
async def test_no_seat_leaks_after_200_mixed_endings(handler: str, seats: int) -> None:
    chance = random.Random(5)
    quick = ["echo", "none", "surrogate", "retry", "reject", "raise", "empty", "print", "sys.exit"]
    slow = ["exit", "kill", "spin" if handler == SYNC else "swallow", "sleep"]

    async def one(number: int) -> str:
        do = slow[number // 20 % 4] if number % 20 == 0 else chance.choice(quick)
        run = asyncio.create_task(compute.run(work(do=do, seconds=0.01, left=30)))
        if number % 7 == 0:
            await asyncio.sleep(chance.random() / 10)
            run.cancel()
        try:
            return (await run).kind
        except asyncio.CancelledError:
            return "cancelled"

    async with computing(handler, seats, limit_seconds=0.5) as compute:
        kinds = await asyncio.gather(*(one(number) for number in range(200)))

        assert {"done", "failed", "retry", "rejected", "cancelled"} <= set(kinds)
        await until(lambda: compute.free == seats)
        assert all(not child.running for child in compute._children)
        after = await asyncio.gather(*(compute.run(work(f"{n}")) for n in range(20)))
        assert [ending.result for ending in after] == [f"{n}" for n in range(20)]


# Seats.


async def test_a_seat_that_becomes_free_is_told() -> None:
    async with computing() as compute:
        run = asyncio.create_task(compute.run(work(do="sleep", seconds=0.2)))
        await until(lambda: compute.free == 0)
        compute.seat_free.clear()
        async with asyncio.timeout(BOUND_SECONDS):
            await compute.seat_free.wait()

        assert compute.free == 1
        assert (await run).kind == "done"


async def test_more_work_than_seats_waits_its_turn() -> None:
    async with computing(ASYNC, seats=2) as compute:
        runs = [
            asyncio.create_task(compute.run(work(f"{n}", do="sleep", seconds=0.05)))
            for n in range(9)
        ]
        await asyncio.sleep(0)

        assert compute.free == 0
        assert sum(len(child.running) for child in compute._children) == 2
        assert [(await run).result for run in runs] == [f"{n}" for n in range(9)]


async def test_the_loop_turns_while_a_handler_holds_its_processor() -> None:
    """Renewals live in this loop: it must not notice what a handler does."""
    async with computing(limit_seconds=1) as compute:
        run = asyncio.create_task(compute.run(work(do="hold the GIL")))
        turns = 0
        while not run.done():
            await asyncio.sleep(0.01)
            turns += 1

    assert turns >= 20


# Setting up, health, closing.


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The file that makes SetUp fail, and the one in which it says that it has closed."""
    broken, closed = tmp_path / "broken", tmp_path / "closed"
    monkeypatch.setenv("ODD_BROKEN", str(broken))
    monkeypatch.setenv("ODD_CLOSED", str(closed))
    return broken, closed


@pytest.mark.parametrize(
    "handler, why",
    [
        ("nope", "handler 'nope' is neither package.module:name nor one of apertium, http, sleep"),
        ("no_module:x", "handler 'no_module:x' cannot be imported: ModuleNotFoundError"),
        ("tests.odd_handlers:nope", "cannot be imported: AttributeError"),
        ("tests.odd_handlers:not_callable", "cannot be called: it is of type int"),
        ("tests.odd_handlers:NeedsAnArgument", "cannot be set up: TypeError"),
    ],
)
async def test_a_handler_that_cannot_be_used_is_refused_in_one_line(handler: str, why: str) -> None:
    with pytest.raises(HandlerError) as refusal:
        await Compute(handler, 2, 10, 1000).start()

    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert children_of(os.getpid()) == []


async def test_a_handler_whose_setup_fails_at_the_start_is_refused(
    marks: tuple[Path, Path],
) -> None:
    marks[0].touch()
    with pytest.raises(HandlerError, match=r"cannot be set up: ConnectionError: no server$"):
        await Compute("tests.odd_handlers:SetUp", 2, 10, 1000).start()


async def test_a_module_that_kills_its_process_at_import_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly_mt.py").write_text("import os\nos._exit(9)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(HandlerError, match="ended with exit status 9 before it was ready"):
        await Compute("deadly_mt:f", 1, 10, 1000).start()


async def test_setup_that_fails_later_is_tried_until_it_works(
    marks: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    broken, _ = marks
    async with computing("tests.odd_handlers:SetUp") as compute:
        broken.touch()
        ending = await compute.run(work(do="exit"))
        waiting = asyncio.create_task(compute.run(work()))
        await until(lambda: sum("no server" in line for line in caplog.messages) == 3)
        free_without_a_child = compute.free
        broken.unlink()

        assert said(await waiting) == ("done", "text")
    assert ending.kind == "failed"
    assert free_without_a_child == 0
    pauses = [line.rpartition("in ")[2] for line in caplog.messages if "no server" in line]
    assert pauses[:3] == ["0.1 s", "0.2 s", "0.4 s"]


async def test_close_closes_the_handler(marks: tuple[Path, Path]) -> None:
    async with computing("tests.odd_handlers:SetUp"):
        assert not marks[1].exists()

    assert marks[1].read_text() == "closed"


async def test_close_kills_what_does_not_end_and_stops_what_still_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("partway.worker.compute.CLOSE_SECONDS", 0.3)
    async with computing() as compute:
        running = asyncio.create_task(compute.run(work(do="spin")))
        waiting = asyncio.create_task(compute.run(work()))
        await until(lambda: compute.free == 0)

    assert (await running).kind == "stopped"
    assert (await waiting).kind == "stopped"


@pytest.mark.parametrize("handler", ["Unwell", "UnwellSync"])
async def test_an_unwell_handler_is_replaced_after_a_failure(
    handler: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with computing(f"tests.odd_handlers:{handler}") as compute:
        before = await compute.run(work(do="pid"))
        rejected = await compute.run(work(do="reject"))
        same = await compute.run(work(do="pid"))
        failed = await compute.run(work(do="raise"))
        after = await compute.run(work(do="pid"))

    assert rejected.kind == "rejected"
    assert same.result == before.result
    assert failed.kind == "failed"
    assert (failed.error or "").startswith("KeyError")
    assert after.kind == "done"
    assert after.result != before.result
    assert len([line for line in caplog.messages if "is replaced: healthy()" in line]) == 1


@pytest.mark.parametrize("count", [1, 2])
async def test_the_neighbours_of_an_unwell_handler_run_again(count: int) -> None:
    async with computing("tests.odd_handlers:Unwell", seats=3) as compute:
        neighbours = [
            asyncio.create_task(compute.run(work(f"{n}", do="sleep", seconds=0.3)))
            for n in range(count)
        ]
        await until(lambda: compute.free == 3 - count)
        failed = await compute.run(work(do="none"))

        assert failed.kind == "failed"
        assert [said(await run) for run in neighbours] == [("done", f"{n}") for n in range(count)]


# The parent dies.


PARENT = """
import asyncio, sys, time
from partway.worker.compute import Compute
from partway.worker.process import Work

async def main():
    compute = Compute("tests.odd_handlers:odd", 2, 600, 1000)
    await compute.start()
    params = [{"do": sys.argv[1], "begun": begun, "seconds": 600} for begun in sys.argv[2:]]
    await asyncio.gather(
        *(compute.run(Work(1, n, 1, "", params[n], time.monotonic() + 600)) for n in range(2))
    )

asyncio.run(main())
"""


@pytest.mark.parametrize("do", ["sleep", "spin", "hold the GIL"])
async def test_children_are_gone_soon_after_their_parent_was_killed(
    do: str, tmp_path: Path
) -> None:
    begun = [tmp_path / "first", tmp_path / "second"]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, do, *map(str, begun)])
    try:
        await until(lambda: all(mark.exists() for mark in begun))
        children = children_of(parent.pid)
        assert len(children) == 2
        parent.kill()
        parent.wait()
        killed_at = time.monotonic()
        await until(lambda: all(is_gone(child) for child in children))
    finally:
        parent.kill()
        parent.wait()

    assert time.monotonic() - killed_at < 5


def test_a_child_whose_parent_is_not_the_one_it_was_told_ends_at_once() -> None:
    """The parent may die before the child could ask the kernel to follow it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = str(theirs.fileno())
        run = "from partway.worker.child import run; run()"
        command = [sys.executable, "-c", run, number, "1", "10", "sleep"]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        ours.settimeout(BOUND_SECONDS)
        try:
            heard = ours.recv(100)
        finally:
            child.kill()
            child.wait()

    assert heard == b""


@pytest.mark.parametrize("handler", [SYNC, ASYNC])
def test_a_child_whose_parent_died_in_mid_sentence_ends(handler: str) -> None:
    """What the dead have not read makes the kernel report a reset where an end was expected."""
    ours, process = start_child(handler, max_output_characters=100)
    assert select.select([ours], [], [], BOUND_SECONDS) == ([ours], [], [])

    ours.close()

    try:
        assert process.wait(BOUND_SECONDS) == 1
    finally:
        process.kill()
        process.wait()


def test_a_child_that_has_nobody_left_to_tell_ends_without_a_word() -> None:
    script = (
        "import socket\n"
        "from partway.worker.child import send\n"
        "ours, parents = socket.socketpair()\n"
        "parents.close()\n"
        "send(ours, {})\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=BOUND_SECONDS, check=False
    )

    assert (ended.returncode, ended.stderr) == (1, b"")
