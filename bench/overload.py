"""Twice as much as the fleet can do is offered, and what it can do must still be delivered."""

import time
from concurrent.futures import ThreadPoolExecutor

from bench import callers
from bench.fleet import Stage, fleet
from bench.measured import Measured, at_least, at_most, figure

WORKERS, SLOTS = 2, 8
OFFERED = 2.0

DELIVERED = 0.9
WASTED = 0.05


def overload(stage: Stage) -> Measured:
    """Calls come twice as fast as they can be done; what was answered, and what was in vain.

    Every claim counts as work, also of a segment that was ended at the deadline after a part of it:
    the waste is the share of claims whose result is in no answer.
    """
    service, arrivals, deadline = (0.05, 4.0, 2.0) if stage.quick else (0.5, 60.0, 10.0)
    capacity = WORKERS * SLOTS / service
    between = callers.SEGMENTS / (OFFERED * capacity)
    content = callers.body(deadline_ms=int(deadline * 1000), seconds=service)
    calls = int(arrivals / between)
    with fleet(stage) as used, ThreadPoolExecutor(calls) as crowd:
        port = used.app()
        # No batch: it would delete the rows by which claims are counted.
        used.workers(WORKERS, "sleep", SLOTS)
        callers.answer_seconds(port, callers.body(1, seconds=0), 3)
        # Not TRUNCATE: a worker remembers what a number meant, and would meet the same ones again.
        used.run("DELETE FROM segments", "DELETE FROM requests")
        began = time.monotonic()

        def call(number: int) -> int:
            time.sleep(max(began + number * between - time.monotonic(), 0))
            caller = callers.Caller(port)
            _, answer = caller.send(content)
            caller.close()
            return int(callers.figures_of(answer)["done"])

        delivered = sum(crowd.map(call, range(calls)))
        elapsed = time.monotonic() - began
        claims = used.number("SELECT SUM(attempts) FROM segments")
    share, waste = delivered / (capacity * elapsed), 1 - delivered / claims
    return Measured(
        figures=[
            figure("partway", "delivered, offered twice the fleet", calls, [share], "of capacity"),
            figure("partway", "wasted, offered twice the fleet", calls, [waste], "of claims"),
        ],
        verdicts=[
            at_least("offered twice the fleet: delivered", [share], DELIVERED, "of capacity"),
            at_most("offered twice the fleet: wasted", [waste], WASTED, "of claims"),
        ],
    )
