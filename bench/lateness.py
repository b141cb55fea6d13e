"""How late is a partial answer? From its caller's side, at a request too large for its deadline."""

import time
from concurrent.futures import ThreadPoolExecutor

from bench import callers
from bench.fleet import Stage, fleet
from bench.measured import Measured, figure, percentile

DEADLINE_MS = 1000
SERVICE_SECONDS = 0.2
SLOTS = 8

AT_ONCE = (1, 8, 32)
ANSWERS = 20


def lateness(stage: Stage) -> Measured:
    """How many milliseconds after its deadline each caller has what was done by then."""
    measured = Measured()
    content = callers.body(deadline_ms=DEADLINE_MS, seconds=SERVICE_SECONDS)
    with fleet(stage) as used:
        port = used.app()
        used.workers(1, "sleep", SLOTS)
        used.batch()
        callers.answer_seconds(port, callers.body(1, seconds=0.0), 3)

        def late(_: int) -> float:
            caller = callers.Caller(port)
            began = time.monotonic()
            outcome, _answer = caller.send(content)
            taken = time.monotonic() - began
            caller.close()
            if outcome != "partial":
                raise RuntimeError(f"a request that is too large ended as {outcome}")
            return taken * 1000 - DEADLINE_MS

        for at_once in AT_ONCE:
            answers = at_once if stage.quick else max(ANSWERS, at_once * 3)
            with ThreadPoolExecutor(at_once) as crowd:
                found = list(crowd.map(late, range(answers)))
            measured.figures.append(
                figure("partway", "late with a partial answer", at_once, found, "ms")
            )
            measured.figures.append(
                figure(
                    "partway",
                    "late with a partial answer, p95",
                    at_once,
                    [percentile(found, 0.95)],
                    "ms",
                )
            )
    return measured
