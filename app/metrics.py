"""Who runs a node must see whether callers are answered, and whether in time."""

import time
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from partway.app.problems import KINDS, NO_TYPE
from partway.store.metrics import label_values, name_program

REGISTRY = CollectorRegistry()

# How a POST or PUT of a request ended; of a stream that ends without its `end` the request runs on.
Outcome = Literal[
    "completed", "partial", "cancelled", "abandoned", "running", "rejected", "client_gone"
]

OUTCOMES: tuple[Outcome, ...] = (
    *("completed", "partial", "cancelled", "abandoned", "running", "rejected", "client_gone"),
)

REQUESTS = label_values(
    Counter(
        "partway_requests_total",
        "Calls of POST and PUT, by how they ended.",
        ("outcome",),
        registry=REGISTRY,
    ),
    *OUTCOMES,
)

PROBLEMS = label_values(
    Counter(
        "partway_problems_total",
        "Errors that were answered, by the kind of the problem.",
        ("type",),
        registry=REGISTRY,
    ),
    *KINDS,
    NO_TYPE,
)

# Up to the longest deadline, and what a node may need after that.
DURATION = Histogram(
    "partway_request_duration_seconds",
    "From the arrival of a POST or PUT to its answer; what is rejected or left has none.",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 45, 60, 75),
    registry=REGISTRY,
)

# What a caller is promised, so the figures that alarms and benchmarks ask for are bounds.
OVERRUN = Histogram(
    "partway_request_deadline_overrun_seconds",
    "How long after its deadline a call that waited for it was answered; 0 for in time.",
    buckets=(0, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)

POLLS = Counter(
    "partway_fanin_polls_total",
    "Looks at the requests that this node waits for, each of them one statement.",
    registry=REGISTRY,
)

INFLIGHT = Gauge(
    "partway_requests_inflight",
    "Requests that this node waits for.",
    registry=REGISTRY,
)

name_program("app")


class OpenCall:
    """A POST or PUT that is not answered yet; a class, since its answer comes long after it."""

    def __init__(self) -> None:
        self._arrived = time.monotonic()
        # When the request that it waits for is due; None where it waits for none.
        self.due_at: float | None = None
        # What its answer will say, once that is known.
        self.outcome: Outcome | None = None
        self._is_open = True

    def end(self, outcome: Outcome) -> None:
        """Count how it ended, the first time; nothing comes back."""
        if not self._is_open:
            return
        self._is_open = False
        now = time.monotonic()
        REQUESTS[outcome].inc()
        if outcome not in ("rejected", "client_gone"):
            DURATION.observe(now - self._arrived)
        # A rejection counts too: that the database is away is told at the deadline, or after it.
        if self.due_at is not None and outcome not in ("running", "client_gone"):
            # Who comes when it is due already is kept waiting since then.
            OVERRUN.observe(max(now - max(self.due_at, self._arrived), 0))
