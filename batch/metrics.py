"""The metrics of the batch: whether it settles, how far behind it is, and how much work waits."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from partway.store.metrics import label_values, name_program

REGISTRY = CollectorRegistry()

_SETTLEMENTS = Counter(
    "partway_settlements_total",
    "Attempts to settle a request, by their result.",
    ("result",),
    registry=REGISTRY,
)

# The results of batch.settle, and "refused" for an error of the database.
SETTLEMENTS = {
    result: _SETTLEMENTS.labels(result) for result in ("settled", "deferred", "gone", "refused")
}

SETTLEMENT_DURATION = Histogram(
    "partway_settlement_duration_seconds",
    "The duration of the settlement of one request.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)

ABANDONED = Counter(
    "partway_abandoned_total",
    "Requests that the batch closed as abandoned, because no node had closed them.",
    registry=REGISTRY,
)

METERED_SEGMENTS = Counter(
    "partway_metered_segments_total",
    "Segments that were billed.",
    registry=REGISTRY,
)

METERED_CHARACTERS = label_values(
    Counter(
        "partway_metered_characters_total",
        "Unicode code points that were billed, of sources (input) and results (output).",
        ("direction",),
        registry=REGISTRY,
    ),
    *("input", "output"),
)

LAST_SUCCESS = Gauge(
    "partway_settlement_last_success_timestamp_seconds",
    "When the last step of the batch ended without an error (Unix time).",
    registry=REGISTRY,
)

BLOCKED = Gauge(
    "partway_settlement_blocked_requests",
    "Requests that the last pass deferred: a client has locked their rows, or a lease is live.",
    registry=REGISTRY,
)

# batch.gauges reads the following from the tables. Several batches show the same values.

ACTIVE = Gauge(
    "partway_requests_active",
    "Requests that are active.",
    registry=REGISTRY,
)

SEGMENTS = label_values(
    Gauge(
        "partway_segments",
        "Segments of requests before their deadline: pending, running, or with an expired lease.",
        ("state",),
        registry=REGISTRY,
    ),
    *("pending", "processing", "lease_expired"),
)

OLDEST_PENDING = Gauge(
    "partway_oldest_pending_age_seconds",
    "The age of the oldest request that has a pending segment; 0 when there is none.",
    registry=REGISTRY,
)

BACKLOG = Gauge(
    "partway_settlement_backlog_requests",
    "Requests that can be settled now.",
    registry=REGISTRY,
)

LAG = Gauge(
    "partway_settlement_lag_seconds",
    "How long the oldest of these requests could have been settled; 0 when there is none.",
    registry=REGISTRY,
)

WORKERS = Gauge(
    "partway_workers",
    "Workers that registered within the last 40 s.",
    registry=REGISTRY,
)

FLEET_SLOTS = Gauge(
    "partway_fleet_slots",
    "Slots of all these workers together.",
    registry=REGISTRY,
)

name_program("batch")
