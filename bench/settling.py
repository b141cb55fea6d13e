"""A ledger that falls behind its fleet never catches up: settlement must be the faster of the two.

Both are measured on the same machine at the same load; the batch has a backlog to begin with.
"""

import time
from concurrent.futures import ThreadPoolExecutor

from bench import callers
from bench.answers import HANDLER, SLOTS, WORKERS
from bench.fleet import Fleet, Stage, fleet
from bench.measured import Measured, at_least, figure

AT_ONCE = (8, 32)
TIMES = 2.0

BACKLOG_REQUESTS, SEGMENTS = 4000, 100
QUICK_BACKLOG_REQUESTS = 200


def settling(stage: Stage) -> Measured:
    """The fastest that requests are completed without a batch, and settlement while they run."""
    rounds, seconds = (1, 1.0) if stage.quick else (3, 5.0)
    backlog = QUICK_BACKLOG_REQUESTS if stage.quick else BACKLOG_REQUESTS
    settled = []
    with fleet(stage) as used:
        port = used.app()
        used.workers(WORKERS, HANDLER, SLOTS)
        callers.answer_seconds(port, callers.body(), 3)
        completed = [
            callers.segments_a_second(port, at_once, seconds)
            for _ in range(rounds)
            for at_once in AT_ONCE
        ]
        used.fill("done", backlog, SEGMENTS)
        used.batch()
        with ThreadPoolExecutor(1) as other:
            for _ in range(rounds):
                load = other.submit(callers.segments_a_second, port, AT_ONCE[0], seconds)
                before, began = metered(used), time.monotonic()
                beside = load.result()
                settled.append((metered(used) - before) / (time.monotonic() - began))
        left = used.number("SELECT COUNT(*) FROM requests WHERE status <> 'active'")
    fastest = max(completed)
    measured = Measured(
        figures=[
            figure("partway", "completed, no batch", AT_ONCE[-1], completed, "segments/s"),
            figure("partway", "completed beside settlement", AT_ONCE[0], [beside], "segments/s"),
            figure("partway", "settled while requests run", AT_ONCE[0], settled, "segments/s"),
        ],
        verdicts=[
            at_least(
                "settled while requests run, against the fastest completion",
                [rate / fastest for rate in settled],
                TIMES,
            )
        ],
    )
    if left == 0 and not stage.quick:
        raise RuntimeError("the backlog was settled before the rounds had ended: make it larger")
    return measured


def metered(used: Fleet) -> int:
    """How many segments are in the ledger."""
    return used.number("SELECT SUM(segments) FROM meter")
