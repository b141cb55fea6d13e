"""Operators must see whether a node answers its callers, and whether it answers in time."""

import time
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from partway.app.problems import KINDS, NO_TYPE
from partway.store.metrics import label_values, name_program

REGISTRY = CollectorRegistry()

# How a POST or PUT ended. `running`: it got a 202, or a stream that broke before the event `end`.
Outcome = Literal[
    "completed", "partial", "cancelled", "abandoned", "running", "rejected", "client_gone"
]

OUTCOMES: tuple[Outcome, ...] = (
    *("completed", "partial", "cancelled", "abandoned", "running", "rejected", "client_gone"),
)

REQUESTS = label_values(
    Counter(
        "partway_requests_total",
        "POST and PUT calls, by how they ended.",
        ("outcome",),
        registry=REGISTRY,
    ),
    *OUTCOMES,
)

PROBLEMS = label_values(
    Counter(
        "partway_problems_total",
        "Errors sent to callers, by the kind of the problem.",
        ("type",),
        registry=REGISTRY,
    ),
    *KINDS,
    NO_TYPE,
)

# Buckets up to the longest deadline, plus the time that a node may need after it.
DURATION = Histogram(
    "partway_request_duration_seconds",
    "Seconds from the arrival of a POST or PUT to its answer, without rejected and left calls.",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 45, 60, 75),
    registry=REGISTRY,
)

# Callers are promised an answer at the deadline. The thresholds of alerts and benchmarks are
# bucket bounds, so that they are counted exactly.
OVERRUN = Histogram(
    "partway_request_deadline_overrun_seconds",
    "Seconds from the deadline to the answer of a call that waited; 0 when it was in time.",
    buckets=(0, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)

POLLS = Counter(
    "partway_fanin_polls_total",
    "Polls of the requests that this node waits for; each poll is one statement.",
    registry=REGISTRY,
)

INFLIGHT = Gauge(
    "partway_requests_inflight",
    "Requests that this node waits for.",
    registry=REGISTRY,
)

name_program("app")


class OpenCall:
    """A POST or PUT that is not answered yet. It keeps its arrival until the answer is sent."""

    def __init__(self) -> None:
        self._arrived = time.monotonic()
        # The deadline of the request that the call waits for; None when it waits for none.
        self.due_at: float | None = None
        # How the call will be counted; None until that is known.
        self.outcome: Outcome | None = None
        self._is_open = True

    def end(self, outcome: Outcome) -> None:
        """Count how the call ended; only the first time, later calls do nothing."""
        if not self._is_open:
            return
        self._is_open = False
        now = time.monotonic()
        REQUESTS[outcome].inc()
        if outcome not in ("rejected", "client_gone"):
            DURATION.observe(now - self._arrived)
        # Rejections count: a caller hears of an unavailable database only at its deadline or later.
        if self.due_at is not None and outcome not in ("running", "client_gone"):
            # A call that arrives after the deadline has waited only since its arrival.
            OVERRUN.observe(max(now - max(self.due_at, self._arrived), 0))
