"""A row of the benchmark hands back its figures, what they say of its targets, and its curves."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.figure import Figure


@dataclass(frozen=True)
class Verdict:
    """What was measured against a target of the same run; `value` is the median of some rounds."""

    what: str
    value: float
    low: float
    high: float
    unit: str
    limit: float
    side: Literal["at least", "at most"]

    @property
    def met(self) -> bool:
        """Whether the median is on the right side of the limit."""
        return self.value >= self.limit if self.side == "at least" else self.value <= self.limit

    @property
    def missed_by(self) -> float:
        """How far the median is beyond the limit, as a share of it; 0.0 when the target is met."""
        return 0.0 if self.met else abs(self.value - self.limit) / self.limit


@dataclass(frozen=True)
class Point:
    """One point of a curve, with the least and the most of its rounds."""

    x: float
    low: float
    y: float
    high: float


@dataclass(frozen=True)
class Curve:
    """One line of a plot; those that share a name share the plot, whatever server they are from."""

    name: str
    title: str
    x: str
    y: str
    line: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Measured:
    """All that a row has to say."""

    figures: list[Figure] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    # What was to be measured and could not be had, with why.
    missing: list[str] = field(default_factory=list)


def figure(system: str, what: str, at_once: int, values: Sequence[float], unit: str) -> Figure:
    """The figure that these rounds make."""
    middle = statistics.median(values)
    return Figure(system, what, at_once, middle, unit, min(values), max(values))


def at_least(what: str, values: Sequence[float], limit: float, unit: str = "times") -> Verdict:
    """Whether the median of these rounds is no less than the limit."""
    return Verdict(
        what, statistics.median(values), min(values), max(values), unit, limit, "at least"
    )


def at_most(what: str, values: Sequence[float], limit: float, unit: str = "times") -> Verdict:
    """Whether the median of these rounds is no more than the limit."""
    return Verdict(
        what, statistics.median(values), min(values), max(values), unit, limit, "at most"
    )


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round: what a machine does that is slower for a while, it does to both."""
    return [our / their for our, their in zip(ours, theirs, strict=True)]


def point(x: float, values: Sequence[float]) -> Point:
    """The point that these rounds make."""
    return Point(x, min(values), statistics.median(values), max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of all lies; the largest where they are few."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]
