"""A program in Python sends documents with this, and needs to know nothing of HTTP."""

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
from partway.client.problems import Away, Metered, NotPartway, PartwayError, Problem, Wrong

__all__ = [
    "Accepted",
    "Answer",
    "AsyncPartway",
    "Away",
    "Counts",
    "End",
    "Event",
    "Metered",
    "NotPartway",
    "Options",
    "Partway",
    "PartwayError",
    "Problem",
    "Segment",
    "Usage",
    "Working",
    "Wrong",
]
