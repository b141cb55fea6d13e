"""A slot that waits is paid for all the same: it must be filled at once, and again at once."""

import time
from concurrent.futures import ThreadPoolExecutor

from bench import callers
from bench.fleet import Stage, fleet
from bench.measured import Measured, at_least, at_most, figure, percentile

WORKERS, SLOTS = 4, 25
ANSWERED_WITHIN = 1.15
BUSY = 0.95

# How many times over the backlog fills all slots: its first and last claim count little then.
WAVES = 20


def busy_slots(stage: Stage) -> Measured:
    """A request that just fills the slots, and how busy they are under a backlog."""
    service, rounds, waves = (0.2, 3, 3) if stage.quick else (1.0, 30, WAVES)
    content = callers.body(seconds=service)
    patient = callers.body(deadline_ms=55_000, seconds=service)
    with fleet(stage) as used, ThreadPoolExecutor(waves) as crowd:
        port = used.app()
        used.workers(WORKERS, "sleep", SLOTS)
        used.batch()
        callers.answer_seconds(port, content, 1)
        waited = [taken / service for taken in callers.answer_seconds(port, content, rounds)]
        began = time.monotonic()
        list(crowd.map(lambda _: callers.Caller(port).send_whole(patient), range(waves)))
        busy = waves * service / (time.monotonic() - began)
    p95 = percentile(waited, 0.95)
    said = "100 segments on 100 slots in 4 processes"
    return Measured(
        figures=[
            figure("partway", f"{said}, answered", 1, waited, "service times"),
            figure("partway", "slots busy under a backlog", waves, [busy], "of the time"),
        ],
        verdicts=[
            at_most(f"{said}: answered within, p95", [p95], ANSWERED_WITHIN, "service times"),
            at_least("slots busy under a backlog", [busy], BUSY, "of the time"),
        ],
    )
