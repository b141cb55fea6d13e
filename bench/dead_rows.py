"""A claim beside a million dead rows, and beside garbage that nobody may take away, costs the same.

Dead rows wait for a batch that stands still: half answered, half cancelled before they were done.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack

from bench.fleet import Fleet, Stage, fleet
from bench.measured import Curve, Measured, at_most, figure, point, ratios
from partway.store.start import open_database
from partway.worker.lease import exchange

# Beside none at all: what two equal servers differ by.
LEVELS = (0, 10_000, 100_000, 1_000_000)
QUICK_LEVELS = (0, 10_000)

SEGMENTS = 100
LIMIT = 1.2

# Each row is written three times and deleted while an old snapshot keeps what it was.
CHURN = (
    "UPDATE segments SET status = 'processing', attempts = 1, lease_until = NOW(6)"
    " WHERE request_id > {after}",
    "UPDATE segments SET status = 'done', result = source WHERE request_id > {after}",
    "DELETE FROM segments WHERE request_id > {after}",
    "DELETE FROM requests WHERE id > {after}",
)


def dead_rows(stage: Stage) -> Measured:
    """Claims beside more and more dead rows, then with a purge that is held up."""
    rounds = 2 if stage.quick else 7
    measured = Measured()
    points = []
    # On servers of their own, so that not even the empty table shares memory with dead rows.
    with fleet(stage) as full, fleet(stage) as empty:
        dead = 0
        for level in QUICK_LEVELS if stage.quick else LEVELS:
            add = (level - dead) // SEGMENTS // 2
            full.fill("done", add, SEGMENTS)
            full.fill("cancelled", add, SEGMENTS)
            dead = level
            pairs = [milliseconds(full, empty) for _ in range(rounds)]
            beside, alone = [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
            times = ratios(beside, alone)
            points.append(point(level, times))
            said = f"claim beside {level:,} dead rows"
            measured.figures.append(figure("partway", said, 1, beside, "ms"))
            measured.verdicts.append(at_most(f"{said}, against an empty table", times, LIMIT))
    measured.curves.append(
        Curve(
            "claim-time",
            "One claim beside dead rows, against one in an empty table",
            "dead rows (answered or cancelled, not settled)",
            "times the claim in an empty table",
            stage.kind,
            points,
        )
    )
    stalled(stage, measured, rounds)
    return measured


def stalled(stage: Stage, measured: Measured, rounds: int) -> None:
    """Add claims while a snapshot holds up the purge; nothing comes back."""
    beside, against = [], []
    with fleet(stage) as empty, fleet(stage) as churned, old_snapshot(churned):
        for _ in range(rounds):
            after = churned.number("SELECT MAX(id) FROM requests")
            churned.fill("waiting", 20 if stage.quick else 500, SEGMENTS)
            churned.run(*(statement.format(after=after) for statement in CHURN))
            ours, theirs = milliseconds(churned, empty)
            beside.append(ours)
            against.append(theirs)
    said = "claim with a stalled purge"
    measured.figures.append(figure("partway", said, 1, beside, "ms"))
    measured.verdicts.append(
        at_most(f"{said}, against an empty table", ratios(beside, against), LIMIT)
    )


@contextlib.contextmanager
def old_snapshot(used: Fleet) -> Iterator[None]:
    """A report that somebody began and forgot: what it could still read may not be taken away."""
    with contextlib.closing(used.connect()) as link, link.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SELECT COUNT(*) FROM requests")
        yield


def milliseconds(*fleets: Fleet) -> list[float]:
    """The median time of a claim on each of these, of those that empty a fresh request."""
    times = asyncio.run(claim_times(fleets))
    return [statistics.median(taken) * 1000 for taken in times]


async def claim_times(fleets: Sequence[Fleet]) -> list[list[float]]:
    """How long each claim took on each server, a claim on one after a claim on the other."""
    times: list[list[float]] = [[] for _ in fleets]
    async with AsyncExitStack() as stack:
        open_ = []
        for used in fleets:
            used.fill("waiting", 1, SEGMENTS)
            number = used.number("SELECT MAX(id) FROM requests")
            db = await stack.enter_async_context(open_database(used.settings(pool_size=1)))
            open_.append((db, number))
        for _ in range(SEGMENTS):
            for (db, number), taken in zip(open_, times, strict=True):
                began = time.monotonic()
                brought = await exchange(db, [], number, 1, "bench", 60, 3)
                taken.append(time.monotonic() - began)
                if len(brought.claimed) != 1:
                    raise RuntimeError(f"a claim got {len(brought.claimed)} segments")
    return times
