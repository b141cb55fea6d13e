"""A hundred trivial segments through HTTP: what a caller waits for when nothing is computed.

The product and each peer take turns within a round, so that a ratio compares neighbours in time.
"""

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from bench import callers, peers
from bench.fleet import Fleet, Stage, fleet
from bench.measured import (
    Curve,
    Measured,
    Verdict,
    at_least,
    at_most,
    figure,
    point,
    ratios,
)
from bench.peers.scratch import scratch

AT_ONCE = (1, 2, 8, 32)
COMPARED_AT = (8, 32)

# As its user would run it: a handler that awaits costs nothing by having many slots, and an
# exchange carries what there are slots for. The peers' processes run as they come.
WORKERS = 2
SLOTS = 50
HANDLER = "bench.handlers:trivial"

# What a caller waits for alone is compared with this one, and speed with the fastest of those that
# lose no accepted work when a worker dies, and with the fastest that is durable.
QUICKEST = "dramatiq"
SAFE = ("dramatiq", "taskiq", "arq", "dask", "ray", "pgqueuer")
DURABLE = ("pgqueuer",)

# How many times the fastest, by the server; and how many times the fastest durable one.
TIMES_FASTEST = {"mariadb": 1.5, "mysql": 1.0}
TIMES_DURABLE = 2.0

# "No slower" leaves room for what two rounds of the very same thing differ by.
NO_SLOWER = 0.95

OURS = "partway"
WITHOUT_BATCH = "partway, batch stopped"


class System(Protocol):
    """What can be sent a hundred segments."""

    def alone(self) -> float:
        """The seconds that one request takes, with no other beside it."""

    def round(self, at_once: int, seconds: float) -> float:
        """The segments a second of so many requests at once."""


class Partway:
    """The product, as a peer of its peers."""

    def __init__(self, port: int) -> None:
        self.port = port

    def alone(self) -> float:
        """The median of some calls, one after the other."""
        waited = callers.answer_seconds(self.port, callers.body(), 7)
        return sorted(waited)[len(waited) // 2]

    def round(self, at_once: int, seconds: float) -> float:
        """The segments a second of so many callers."""
        return callers.segments_a_second(self.port, at_once, seconds)


@contextlib.contextmanager
def partway(used: Fleet, batch: bool) -> Iterator[System]:
    """The product on a database that is there, with or without a batch; it has served once."""
    # What a round without a batch leaves behind would be settled beside the calls of the next.
    used.run("TRUNCATE TABLE segments", "TRUNCATE TABLE requests")
    port = used.app()
    used.workers(WORKERS, HANDLER, SLOTS)
    if batch:
        used.batch()
    # What a program loads with its first call belongs to no round.
    callers.answer_seconds(port, callers.body(), 3)
    yield Partway(port)
    used.check()
    used.end()


@contextlib.contextmanager
def started(name: str, used: Fleet) -> Iterator[System]:
    """One system, for as long as a block lasts; Missing when a peer cannot be had here."""
    if name in (OURS, WITHOUT_BATCH):
        with partway(used, batch=name == OURS) as system:
            yield system
    else:
        with scratch() as folder, peers.started(name, folder) as peer:
            yield peer


def answers(stage: Stage) -> Measured:
    """Alone and at once, with the batch and without, beside the peers that were asked for."""
    rounds, seconds = (1, 1.0) if stage.quick else (3, 3.0)
    names = [OURS, WITHOUT_BATCH, *stage.peers]
    alone: dict[str, list[float]] = defaultdict(list)
    speed: dict[tuple[str, int], list[float]] = defaultdict(list)
    measured = Measured()
    with fleet(stage) as used:
        for _ in range(rounds):
            for name in list(names):
                try:
                    with started(name, used) as system:
                        alone[name].append(system.alone() * 1000)
                        for at_once in AT_ONCE:
                            speed[name, at_once].append(system.round(at_once, seconds))
                except peers.Missing as why:
                    names.remove(name)
                    measured.missing.append(f"{name}: {why}")
    for name in names:
        measured.figures.append(figure(name, "100 segments alone", 1, alone[name], "ms"))
        measured.figures.extend(
            figure(name, "100 segments each", at_once, speed[name, at_once], "segments/s")
            for at_once in AT_ONCE
        )
        measured.curves.append(
            Curve(
                f"segments-a-second-{stage.kind}",
                f"Trivial segments a second, 100 a request, on {stage.kind}",
                "requests at once",
                "segments a second",
                name,
                [point(at_once, speed[name, at_once]) for at_once in AT_ONCE],
            )
        )
    measured.verdicts.extend(against_peers(stage, names, alone, speed))
    measured.verdicts.extend(without_a_batch(alone, speed))
    return measured


def against_peers(
    stage: Stage,
    names: Sequence[str],
    alone: Mapping[str, Sequence[float]],
    speed: Mapping[tuple[str, int], Sequence[float]],
) -> Iterator[Verdict]:
    """What is said of the targets that name a peer, of those that were measured."""
    if QUICKEST in names:
        said = f"100 segments alone: time, against {QUICKEST}"
        yield at_most(said, ratios(alone[OURS], alone[QUICKEST]), 1.0)
    for kind, said, limit in (
        (SAFE, "the fastest that loses nothing", TIMES_FASTEST[stage.kind]),
        (DURABLE, "the fastest durable one", TIMES_DURABLE),
    ):
        for at_once in COMPARED_AT:
            medians = {
                name: statistics.median(speed[name, at_once]) for name in kind if name in names
            }
            if medians:
                peer = max(medians, key=medians.__getitem__)
                against = ratios(speed[OURS, at_once], speed[peer, at_once])
                yield at_least(f"{at_once} at once: speed, against {said}, {peer}", against, limit)


def without_a_batch(
    alone: Mapping[str, Sequence[float]], speed: Mapping[tuple[str, int], Sequence[float]]
) -> Iterator[Verdict]:
    """What is said of a run whose batch stands still."""
    said = "batch stopped: time alone, against batch running"
    yield at_most(said, ratios(alone[WITHOUT_BATCH], alone[OURS]), 1 / NO_SLOWER)
    for at_once in COMPARED_AT:
        said = f"batch stopped: speed of {at_once} at once, against batch running"
        yield at_least(said, ratios(speed[WITHOUT_BATCH, at_once], speed[OURS, at_once]), NO_SLOWER)
