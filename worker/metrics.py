"""Who runs a fleet must see whether it keeps up, what its handlers do, and who loses leases."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from partway.store.metrics import label_values, name_program

REGISTRY = CollectorRegistry()

CLAIMS = label_values(
    Counter(
        "partway_claims_total",
        "Exchanges that asked for segments, by what they brought.",
        ("result",),
        registry=REGISTRY,
    ),
    *("claimed", "empty", "error"),
)

CLAIM_DURATION = Histogram(
    "partway_claim_duration_seconds",
    "How long an exchange took that asked for segments.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
    registry=REGISTRY,
)

# Up to the longest deadline, since nothing is claimed or runs beyond it.
OF_A_SEGMENT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)

QUEUE_WAIT = Histogram(
    "partway_segment_queue_wait_seconds",
    "From the arrival of a request to the first claim of a segment of it.",
    ("handler",),
    buckets=OF_A_SEGMENT,
    registry=REGISTRY,
)

RUN = Histogram(
    "partway_segment_run_seconds",
    "How long an attempt ran that its handler ended.",
    ("handler",),
    buckets=OF_A_SEGMENT,
    registry=REGISTRY,
)

# The endings of worker.compute; at max_attempts; to the next worker, at the end of this one.
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
    "Segments that were claimed after the lease of another had run out on them.",
    registry=REGISTRY,
)

FENCE_REJECTIONS = label_values(
    Counter(
        "partway_fence_rejections_total",
        "Writes that found their lease lost, by what they were to do.",
        ("op",),
        registry=REGISTRY,
    ),
    *("write_back", "renew", "fail", "give_back"),
)

SLOTS = label_values(
    Gauge(
        "partway_worker_slots",
        "Slots of this process, by whether a segment is in them.",
        ("state",),
        registry=REGISTRY,
    ),
    *("busy", "idle"),
)

name_program("worker")


@dataclass(frozen=True)
class OfHandler:
    """What is counted by handler, bound to the one of this process."""

    queue_wait: Histogram
    run: Histogram
    attempts: Mapping[str, Counter]


def of_handler(handler: str) -> OfHandler:
    """The metrics of this handler, there from now on, at zero."""
    return OfHandler(
        QUEUE_WAIT.labels(handler),
        RUN.labels(handler),
        {outcome: ATTEMPTS.labels(outcome, handler) for outcome in OUTCOMES},
    )
