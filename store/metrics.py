"""Graphs and alarms ask every program how it does; here is what all of them are asked."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics import MetricWrapperBase

Metric = TypeVar("Metric", bound=MetricWrapperBase)

# Of our own: the library's begins with figures of the interpreter, which no sentence of ours names.
# Each program has its own beside it, for two of them may use a word that the library takes once.
REGISTRY = CollectorRegistry()

# Beside each counter the library would show since when it counts, which no graph of ours reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

TEXT = "text/plain; version=0.0.4; charset=utf-8"

BUILD = Gauge(
    "partway_build_info",
    "1: which program answers here, and of which version.",
    ("program", "version"),
    registry=REGISTRY,
)

DB_ERRORS = Counter(
    "partway_db_errors_total",
    "Conflicts and lost connections, by the number of the error; each is tried again.",
    ("errno",),
    registry=REGISTRY,
)

DB_AWAY = Gauge(
    "partway_db_away",
    "1 while this program knows its database to be away, else 0.",
    registry=REGISTRY,
)

DB_POOL = Gauge(
    "partway_db_pool_connections",
    "Connections that this program holds, in use or at rest.",
    ("state",),
    registry=REGISTRY,
)


def label_values(metric: Metric, *values: str) -> dict[str, Metric]:
    """The metric for each value of its one label, there from now on.

    At zero, since no graph sees the first event of a series that begins with it. Kept, so that an
    event looks nothing up but its own word.
    """
    return {value: metric.labels(value) for value in values}


def name_program(program: str) -> None:
    """Let the numbers say whose they are; nothing comes back."""
    BUILD.labels(program, version("partway")).set(1)


def error_counters(errors: Iterable[int]) -> dict[int | None, Counter]:
    """The counter of each error number, and under None that of errors that have none."""
    counters: dict[int | None, Counter] = {
        number: DB_ERRORS.labels(str(number)) for number in sorted(errors)
    }
    return counters | {None: DB_ERRORS.labels("none")}


def render_metrics(own: CollectorRegistry) -> bytes:
    """All that a program counts, with what is its own, as Prometheus reads it."""
    return generate_latest(REGISTRY) + generate_latest(own)
