"""The Python client: a program sends documents without any knowledge of the HTTP API."""

from partway.client.answer import (
    Accepted,
    Answer,
    Counts,
    End,
    Event,
    Options,
    Segment,
    Usage,
    Working,
)
from partway.client.partway import AsyncPartway, Partway
from partway.client.problems import (
    FieldError,
    Metered,
    NotPartway,
    PartwayError,
    Problem,
    ServerUnavailable,
)

__all__ = [
    "Accepted",
    "Answer",
    "AsyncPartway",
    "Counts",
    "End",
    "Event",
    "FieldError",
    "Metered",
    "NotPartway",
    "Options",
    "Partway",
    "PartwayError",
    "Problem",
    "Segment",
    "ServerUnavailable",
    "Usage",
    "Working",
]
