"""What is alike for every peer: the trivial segment, two workers, and how often it may look."""

import os
import time
from collections.abc import Awaitable, Callable

WORKERS = 2
SEGMENTS = 100
SOURCE_BYTES = 500
RESULT_BYTES = 1024

# Where a peer polls for results, it begins with this: its own default is longer, and would be all
# that is measured.
POLL_SECONDS = 0.02
LONGEST_POLL_SECONDS = 0.5

# Send the sources of one request, wait, return its results in order.
Request = Callable[[list[str]], Awaitable[list[str]]]
ThreadedRequest = Callable[[list[str]], list[str]]


def sources() -> list[str]:
    """The sources of one request; each begins with its place in it."""
    return [f"{index_no} ".ljust(SOURCE_BYTES, ".") for index_no in range(SEGMENTS)]


def compute(source: str) -> str:
    """The result: the place of the source, and the process that computed it."""
    index_no = source.split(" ", 1)[0]
    return f"{index_no} {os.getpid()} ".ljust(RESULT_BYTES, ".")


def pause_seconds(began: float) -> float:
    """How long to rest until the next look: a tenth of the time waited since `began`, as ours does.

    A look every 20 ms from 32 callers would leave a database no time for the work.
    """
    return min(max((time.monotonic() - began) / 10, POLL_SECONDS), LONGEST_POLL_SECONDS)


def makers(results: list[str]) -> set[str]:
    """The process ids behind the results of one request; ValueError when they are not its."""
    parts = [result.split(" ") for result in results]
    if [part[0] for part in parts] != [str(index_no) for index_no in range(SEGMENTS)]:
        raise ValueError(f"a peer answered wrongly: {len(results)} results, or in no order")
    return {part[1] for part in parts}
