"""Who sends the bill must see that it is counted, how far behind it is, and what else waits."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from partway.store.metrics import label_values, name_program

REGISTRY = CollectorRegistry()

_SETTLEMENTS = Counter(
    "partway_settlements_total",
    "Tries to settle a request, by how they ended.",
    ("result",),
    registry=REGISTRY,
)

# By the words of batch.settle.
SETTLEMENTS = {
    said: _SETTLEMENTS.labels(said.replace(" ", "_"))
    for said in ("settled", "deferred", "gone", "refused")
}

SETTLEMENT_DURATION = Histogram(
    "partway_settlement_duration_seconds",
    "How long it took to settle one request.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)

ABANDONED = Counter(
    "partway_abandoned_total",
    "Requests that the batch closed, because nobody else did.",
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
        "Unicode code points that were billed, of sources and of results.",
        ("direction",),
        registry=REGISTRY,
    ),
    *("input", "output"),
)

LAST_SUCCESS = Gauge(
    "partway_settlement_last_success_timestamp_seconds",
    "When the last look for what to settle ended without an error (Unix time).",
    registry=REGISTRY,
)

BLOCKED = Gauge(
    "partway_settlement_blocked_requests",
    "Requests that the last look deferred, since somebody holds their rows or still runs them.",
    registry=REGISTRY,
)

# Read from the tables by batch.gauges. Of several batches each shows the same rows.

ACTIVE = Gauge(
    "partway_requests_active",
    "Requests that are active.",
    registry=REGISTRY,
)

SEGMENTS = label_values(
    Gauge(
        "partway_segments",
        "Segments that wait, run, or have outlived their lease, of requests that are not due yet.",
        ("state",),
        registry=REGISTRY,
    ),
    *("pending", "processing", "lease_expired"),
)

OLDEST_PENDING = Gauge(
    "partway_oldest_pending_age_seconds",
    "How long the oldest request has been there of which a segment waits; 0 when none does.",
    registry=REGISTRY,
)

BACKLOG = Gauge(
    "partway_settlement_backlog_requests",
    "Requests that could be settled now.",
    registry=REGISTRY,
)

LAG = Gauge(
    "partway_settlement_lag_seconds",
    "For how long the oldest of them could have been settled; 0 when there is none.",
    registry=REGISTRY,
)

WORKERS = Gauge(
    "partway_workers",
    "Workers that were seen a moment ago.",
    registry=REGISTRY,
)

FLEET_SLOTS = Gauge(
    "partway_fleet_slots",
    "Slots of all these workers.",
    registry=REGISTRY,
)

name_program("batch")
