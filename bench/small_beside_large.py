"""A small request beside a large one must not wait for it."""

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from bench import callers
from bench.fleet import Stage, fleet
from bench.measured import Measured, at_most, figure

SMALL, LARGE = 20, 1000
WORKERS, SLOTS = 2, 8
SERVICE_SECONDS = 0.5
QUICK_SERVICE_SECONDS = 0.05

# What a small request may wait for: a slot, for as long as what runs there takes, and a bit.
LIMIT = 1.2


def small_beside_large(stage: Stage) -> Measured:
    """The small one alone, then again and again while the large one runs."""
    seconds = QUICK_SERVICE_SECONDS if stage.quick else SERVICE_SECONDS
    rounds = 2 if stage.quick else 7
    small = callers.body(SMALL, seconds=seconds)
    large = callers.body(LARGE, deadline_ms=55_000, seconds=seconds)
    with fleet(stage) as used, ThreadPoolExecutor(1) as other:
        port = used.app()
        used.workers(WORKERS, "sleep", SLOTS)
        used.batch()
        callers.answer_seconds(port, small, 1)
        alone = callers.answer_seconds(port, small, rounds)
        beside = other.submit(callers.Caller(port).send, large)
        time.sleep(2 * seconds)
        together = callers.answer_seconds(port, small, rounds)
        if beside.done():
            raise RuntimeError("the large request has ended before the small ones had")
        _, answer = beside.result()
    if json.loads(answer)["counts"]["done"] == 0:
        raise RuntimeError("nothing of the large request was done")
    waited = [(answered - statistics.median(alone)) / seconds for answered in together]
    return Measured(
        figures=[
            figure("partway", f"{SMALL} segments on 16 slots, alone", 1, alone, "s"),
            figure("partway", f"{SMALL} segments beside {LARGE:,}", 2, together, "s"),
        ],
        verdicts=[
            at_most(f"{SMALL} segments beside {LARGE:,}: later", waited, LIMIT, "service times")
        ],
    )
