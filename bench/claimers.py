"""The statements of a worker without its compute: a process that only claims and writes back."""

import asyncio
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier

import uvloop

from bench.crowd import crowd
from bench.fleet import Fleet
from partway.store.settings import DatabaseSettings
from partway.store.start import open_database
from partway.worker.choice import Choice
from partway.worker.lease import Ready, exchange

RESULT = "y" * 1024

LEASE_SECONDS = 60.0
MAX_ATTEMPTS = 3

# As a worker's own (WorkerSettings.backoff_seconds), for the order of the list is part of the cost.
BACKOFF_SECONDS = 3.0


@dataclass(frozen=True)
class Drained:
    """How many segments one process claimed and wrote back, and between which moments."""

    segments: int
    began: float
    ended: float


def segments_a_second(fleet: Fleet, processes: int, at_once: int, seconds: float) -> float:
    """How many segments so many processes claim and write back, `at_once` in each exchange.

    Each process has one connection. They stop after `seconds`, or when nothing is left.
    """
    settings = fleet.settings(pool_size=1)
    parts = crowd(processes, drain, settings, at_once, seconds)
    elapsed = max(part.ended for part in parts) - min(part.began for part in parts)
    return sum(part.segments for part in parts) / elapsed


def drain(ready: Barrier, settings: DatabaseSettings, at_once: int, seconds: float) -> Drained:
    """What one process did."""
    return uvloop.run(exchanging(ready, settings, at_once, seconds))


async def exchanging(
    ready: Barrier, settings: DatabaseSettings, at_once: int, seconds: float
) -> Drained:
    """Exchange until nothing is left or the time is over, as a worker whose handler takes none."""
    async with open_database(settings) as db:
        choice = Choice(BACKOFF_SECONDS)
        results: list[Ready] = []
        done = 0
        await asyncio.to_thread(ready.wait)
        began = ended = time.monotonic()
        while ended < began + seconds:
            active = await choice.next(db)
            if active is None and not results:
                break
            brought = await exchange(
                db,
                results,
                active.id if active is not None else None,
                at_once,
                "bench",
                LEASE_SECONDS,
                MAX_ATTEMPTS,
                first_index=active.first_index if active is not None else 0,
            )
            done += len(results)
            ended = time.monotonic()
            if active is not None:
                indexes = [lease.index_no for lease in brought.claimed]
                choice.note_claimed(active, indexes, nothing_left=len(indexes) < at_once)
            results = [Ready(lease, RESULT) for lease in brought.claimed]
    return Drained(done, began, ended)
