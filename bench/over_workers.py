"""How much of a database one segment takes tells how large a fleet it can feed."""

import time

from bench import callers
from bench.answers import HANDLER, SLOTS
from bench.fleet import Stage, fleet
from bench.measured import Curve, Measured, figure, point

NUMBERS = (1, 2, 4, 8, 16)
QUICK_NUMBERS = (1, 2)
AT_ONCE = 8


def over_workers(stage: Stage) -> Measured:
    """The processor time of the server for a segment, with more and more worker processes."""
    rounds, seconds = (1, 1.0) if stage.quick else (3, 4.0)
    measured = Measured()
    points = []
    with fleet(stage) as used:
        port = used.app()
        used.batch()
        running = 0
        for number in QUICK_NUMBERS if stage.quick else NUMBERS:
            used.workers(number - running, HANDLER, SLOTS)
            running = number
            callers.answer_seconds(port, callers.body(), 3)
            spent = []
            for _ in range(rounds):
                before, began = used.database_cpu_seconds(), time.monotonic()
                speed = callers.segments_a_second(port, AT_ONCE, seconds)
                segments = speed * (time.monotonic() - began)
                spent.append((used.database_cpu_seconds() - before) / segments * 1_000_000)
            points.append(point(number, spent))
            said = "processor time of the database for a segment, settlement included"
            measured.figures.append(figure("partway", said, number, spent, "us"))
    measured.curves.append(
        Curve(
            "database-cpu",
            "Processor time of the database for each segment, settlement included",
            "worker processes",
            "microseconds a segment",
            stage.kind,
            points,
        )
    )
    return measured
