"""Runs one peer inside its own environment, and answers questions on its input with JSON lines.

    python -m bench.peers.drive dramatiq_group

A peer's module names the commands that start its two workers (COMMANDS; none where the library
starts them itself), and has `opened()`, which yields what sends one request and waits for it.
"""

import asyncio
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bench.peers.alike import SEGMENTS, WORKERS, Request, ThreadedRequest, makers, sources
from local import children

ALONE_REQUESTS = 7
MOST_THREADS = 64

# Some wait here for the end of an idle poll; what they did is measured by then.
END_SECONDS = 5


@contextmanager
def working(commands: Sequence[tuple[str, ...]]) -> Iterator[None]:
    """The workers run inside; nothing is yielded."""
    programs = Path(sys.prefix) / "bin"
    running: list[subprocess.Popen[bytes]] = []

    def give_up(*_: object) -> None:
        # Our asker was killed, and its server ends too. Some workers would wait for it to return.
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
        os._exit(1)

    signal.signal(signal.SIGTERM, give_up)
    try:
        for program, *words in commands:
            running.append(children.start((str(programs / program), *words), Path("workers.log")))
        yield
    finally:
        for process in running:
            process.terminate()
        until = time.monotonic() + END_SECONDS
        for process in running:
            children.await_end(process, max(0.0, until - time.monotonic()))


def in_threads(ask: ThreadedRequest, threads: ThreadPoolExecutor) -> Request:
    """The same question from a thread, for a peer whose callers wait in threads."""

    async def request(texts: list[str]) -> list[str]:
        return await asyncio.get_running_loop().run_in_executor(threads, ask, texts)

    return request


async def warm_up(request: Request) -> None:
    """Come back when every worker has answered; the asker sets the limit of time."""
    seen: set[str] = set()
    while len(seen) < WORKERS:
        seen |= makers(await request(sources()))


async def alone(request: Request) -> float:
    """The seconds that one request takes with no other beside it: a median."""
    taken = []
    for _ in range(ALONE_REQUESTS):
        began = time.monotonic()
        makers(await request(sources()))
        taken.append(time.monotonic() - began)
    return statistics.median(taken)


async def in_a_row(request: Request, until: float) -> int:
    """How many requests one caller had answered, the one still open at the end included."""
    answered = 0
    while time.monotonic() < until:
        makers(await request(sources()))
        answered += 1
    return answered


async def throughput(request: Request, at_once: int, seconds: float) -> float:
    """Segments a second, until the last request that began within `seconds` was answered."""
    began = time.monotonic()
    answered = await asyncio.gather(*(in_a_row(request, began + seconds) for _ in range(at_once)))
    return sum(answered) * SEGMENTS / (time.monotonic() - began)


async def main(module: str) -> None:
    """Answer until the input ends."""
    # What the peers print goes to the log: only answers may stand between us and our asker.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peer = importlib.import_module(f"bench.peers.{module}")
    with ThreadPoolExecutor(MOST_THREADS) as threads:
        async with peer.opened() as ask:
            request = ask if asyncio.iscoroutinefunction(ask) else in_threads(ask, threads)
            with working(peer.COMMANDS):
                await warm_up(request)
                print(json.dumps({"ready": module}), file=answers)
                while line := await asyncio.to_thread(sys.stdin.readline):
                    match json.loads(line):
                        case {"at_once": at_once, "seconds": seconds}:
                            rate = await throughput(request, at_once, seconds)
                            print(json.dumps({"segments_per_second": rate}), file=answers)
                        case {}:
                            print(json.dumps({"seconds": await alone(request)}), file=answers)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
