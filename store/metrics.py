"""The metrics that all programs have in common, and how a program exports its own."""

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

# Not the library's registry, which contains metrics of the interpreter that nothing here uses. Each
# program has a second registry of its own, since a registry accepts each metric name only once.
REGISTRY = CollectorRegistry()

# Otherwise the library would export the start time of each counter, which no graph here reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

TEXT = "text/plain; version=0.0.4; charset=utf-8"

BUILD = Gauge(
    "partway_build_info",
    "Always 1; the labels are the program and its version.",
    ("program", "version"),
    registry=REGISTRY,
)

DB_ERRORS = Counter(
    "partway_db_errors_total",
    "Conflicts and lost connections, by error number; each is retried.",
    ("errno",),
    registry=REGISTRY,
)

DB_UNAVAILABLE = Gauge(
    "partway_db_unavailable",
    "1 while this program knows that its database is unavailable, else 0.",
    registry=REGISTRY,
)

DB_POOL = Gauge(
    "partway_db_pool_connections",
    "Database connections of this program, busy or idle.",
    ("state",),
    registry=REGISTRY,
)


def label_values(metric: Metric, *values: str) -> dict[str, Metric]:
    """The metric for each value of its one label; from now on each series is exported.

    Each series starts at zero, since `rate()` does not see an event with which a series begins. The
    callers keep the dict, so that an event needs no other lookup.
    """
    return {value: metric.labels(value) for value in values}


def name_program(program: str) -> None:
    """Set the metric that names this program and its version."""
    BUILD.labels(program, version("partway")).set(1)


def error_counters(errors: Iterable[int]) -> dict[int | None, Counter]:
    """The counter of each error number, and under None the counter of errors without a number."""
    counters: dict[int | None, Counter] = {
        number: DB_ERRORS.labels(str(number)) for number in sorted(errors)
    }
    return counters | {None: DB_ERRORS.labels("none")}


def render_metrics(own: CollectorRegistry) -> bytes:
    """The common metrics and those of the program, in the text format of Prometheus."""
    return generate_latest(REGISTRY) + generate_latest(own)
