"""The metrics of a worker: whether it keeps up, what its handlers do, which leases are lost."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from partway.store.metrics import label_values, name_program

REGISTRY = CollectorRegistry()

CLAIMS = label_values(
    Counter(
        "partway_claims_total",
        "Exchanges that asked for segments, by their result.",
        ("result",),
        registry=REGISTRY,
    ),
    *("claimed", "empty", "error"),
)

CLAIM_DURATION = Histogram(
    "partway_claim_duration_seconds",
    "The duration of an exchange that asked for segments.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
    registry=REGISTRY,
)

# Up to the longest deadline: nothing is claimed or runs after it.
SEGMENT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)

QUEUE_WAIT = Histogram(
    "partway_segment_queue_wait_seconds",
    "The time from the arrival of a request to the first claim of one of its segments.",
    ("handler",),
    buckets=SEGMENT_BUCKETS,
    registry=REGISTRY,
)

RUN = Histogram(
    "partway_segment_run_seconds",
    "The duration of an attempt that its handler ended.",
    ("handler",),
    buckets=SEGMENT_BUCKETS,
    registry=REGISTRY,
)

# The kinds of endings in worker.compute; then "given_up" at max_attempts, and "given_back" when the
# worker shuts down.
OUTCOMES = ("done", "failed", "retry", "rejected", "stopped", "given_up", "given_back")

ATTEMPTS = Counter(
    "partway_segments_total",
    "Attempts at segments, by how they ended.",
    ("outcome", "handler"),
    registry=REGISTRY,
)

RENEWALS = Counter(
    "partway_lease_renewals_total",
    "Leases that were renewed.",
    registry=REGISTRY,
)

EXPIRATIONS = Counter(
    "partway_lease_expirations_total",
    "Segments that were claimed again after their lease had expired.",
    registry=REGISTRY,
)

FENCE_REJECTIONS = label_values(
    Counter(
        "partway_fence_rejections_total",
        "Writes that were refused because their lease was lost, by the kind of write.",
        ("op",),
        registry=REGISTRY,
    ),
    *("write_back", "renew", "fail", "give_back"),
)

SLOTS = label_values(
    Gauge(
        "partway_worker_slots",
        "Slots of this process, by whether a segment runs in them.",
        ("state",),
        registry=REGISTRY,
    ),
    *("busy", "idle"),
)

name_program("worker")


@dataclass(frozen=True)
class HandlerMetrics:
    """The metrics with the label `handler`, for the handler of this process."""

    queue_wait: Histogram
    run: Histogram
    attempts: Mapping[str, Counter]


def handler_metrics(handler: str) -> HandlerMetrics:
    """The metrics of this handler; from now on they are exported, at zero."""
    return HandlerMetrics(
        QUEUE_WAIT.labels(handler),
        RUN.labels(handler),
        {outcome: ATTEMPTS.labels(outcome, handler) for outcome in OUTCOMES},
    )
