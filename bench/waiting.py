"""How many calls can wait at one node before their answers come late, and what each holds.

Nobody computes anything, so each answer is due at its deadline. They come and go evenly, a new one
while nothing ends and then an answer while nothing comes, which is what one node does for the rest.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator

from bench import callers
from bench.fleet import Fleet, Stage, fleet
from bench.measured import Curve, Measured, Point, at_least, at_most, figure, percentile

NUMBERS = (500, 2000, 5000)
QUICK_NUMBERS = (20, 60)

# At least so many must wait without being late; aimed at are the most of NUMBERS.
NUMBER_REQUIRED = 2000
LATE_MILLISECONDS = 100.0

# Calls a second that one node can store beside the one who makes them here.
A_SECOND = 40.0

# All have come before the first has to go.
COMING_SHARE = 0.9


def waiting(stage: Stage) -> Measured:
    """For each number of waiting calls: how late they are answered, and the memory of the node."""
    measured = Measured()
    points, held = [], []
    numbers = QUICK_NUMBERS if stage.quick else NUMBERS
    for number in numbers:
        with fleet(stage) as used, no_collection():
            late, bytes_each = asyncio.run(lateness(used, number))
        p50, p99 = percentile(late, 0.5), percentile(late, 0.99)
        points.append(Point(number, p50, p99, max(late)))
        held.append(bytes_each / 1024)
        measured.figures.extend(
            [
                figure("partway", "late at the deadline, all calls", number, late, "ms"),
                figure("partway", "late at the deadline, p99", number, [p99], "ms"),
                figure("partway", "memory of a waiting call", number, held[-1:], "KiB"),
            ]
        )
        if number in (NUMBER_REQUIRED, max(numbers)):
            said = f"{number:,} waiting calls of one node: late, p99"
            measured.verdicts.append(at_most(said, [p99], LATE_MILLISECONDS, "ms"))
    in_time = [int(at.x) for at in points if at.y <= LATE_MILLISECONDS]
    most = float(max(in_time, default=0))
    measured.verdicts.append(
        at_least("waiting calls answered in time", [most], NUMBER_REQUIRED, "calls")
    )
    measured.curves.append(
        Curve(
            "lateness",
            "Answers that are due at their deadline: median, 99 of 100, latest",
            "calls that wait at one node",
            "milliseconds late (p99)",
            stage.kind,
            points,
        )
    )
    return measured


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Thousands of calls are many objects, and our pause to sift them would look like the app's."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def lateness(used: Fleet, number: int) -> tuple[list[float], float]:
    """How many milliseconds late each call was answered, and the bytes that each made a node hold.

    Late is what its caller waited beyond the deadline that it asked for.
    """
    coming_seconds = number / A_SECOND
    deadline_seconds = max(coming_seconds / COMING_SHARE, 2.0)
    port = used.app(APP_MAX_DEADLINE_MS=int(deadline_seconds * 1000) + 1000)
    content = callers.body(deadline_ms=int(deadline_seconds * 1000))
    # What a node loads with its first call belongs to none of them.
    await call(port, callers.body(1, deadline_ms=100), 0.0)
    before = used.resident_bytes("app")
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(call(port, content, began + turn / A_SECOND))
            for turn in range(number)
        ]
        await asyncio.sleep((coming_seconds + deadline_seconds) / 2)
        open_calls = sum(not one.done() for one in calls)
        held = used.resident_bytes("app") - before
    if open_calls != number:
        raise RuntimeError(f"only {open_calls} of {number} calls waited at the same time")
    late = [(waited.result() - deadline_seconds) * 1000 for waited in calls]
    return late, held / number


async def call(port: int, content: bytes, at: float) -> float:
    """How long this call waited for its answer; it is sent at that moment."""
    await asyncio.sleep(at - time.monotonic())
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = (
            "POST /v1/requests HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        answer = await reader.read()
    finally:
        writer.close()
    if b" 200 " not in answer[:20] or b"\r\npartway-outcome: partial" not in answer[:1000].lower():
        raise RuntimeError(f"a waiting call was answered with {answer[:300]!r}")
    return time.monotonic() - began
