"""What a caller may ask for and is told, as values: an answer, and the events by which it grows."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from pydantic import TypeAdapter


class Options(TypedDict, total=False):
    """What a request may say besides its text; the server chooses what is left out.

    An `id` of the caller's own serves to come back from another process. With
    `on_disconnect="cancel"` a broken connection ends the request, as abandoned and not billed.
    """

    id: str
    language: str
    params: Mapping[str, Any]
    deadline_ms: int
    on_missing: Literal["null", "source", "omit"]
    on_disconnect: Literal["continue", "cancel"]


@dataclass(frozen=True)
class Segment:
    """One segment: its result once it is done, why it failed when it did."""

    index: int
    status: Literal["pending", "processing", "done", "failed", "timed_out", "cancelled"]
    result: str | None = None
    error: str | None = None
    attempts: int | None = None


@dataclass(frozen=True)
class Counts:
    """How many segments ended in which way; while the request runs, the rest is still to come."""

    total: int
    done: int
    failed: int
    timed_out: int
    cancelled: int


@dataclass(frozen=True)
class Usage:
    """What is metered, in Unicode code points; until it is `final` it can still grow."""

    segments: int
    input_characters: int
    output_characters: int
    billed: bool
    final: bool


@dataclass(frozen=True)
class Answer:
    """What is there of a request."""

    id: str
    status: Literal["running", "completed", "partial", "cancelled", "abandoned"]
    created_at: datetime
    deadline_at: datetime
    finished_at: datetime | None
    counts: Counts
    usage: Usage
    document: str | None
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Accepted:
    """The request is stored, or was already; it goes on if the connection breaks now."""

    id: str
    deadline_at: datetime
    total: int


@dataclass(frozen=True)
class Working:
    """Which segments run now."""

    indexes: tuple[int, ...]


@dataclass(frozen=True)
class End:
    """The request is final; no event comes after this one."""

    answer: Answer


# A Segment is an event when it is done or failed, and so never changes again.
Event = Accepted | Segment | Working | End

# Members that a newer server adds are left out, and what is wrong or missing is refused by name.
ANSWER = TypeAdapter(Answer)
ACCEPTED = TypeAdapter(Accepted)
SEGMENT = TypeAdapter(Segment)
WORKING = TypeAdapter(Working)


def read_event(name: str, said: str) -> Event | None:
    """The event of this name; None when this version knows none. ValueError when it is garbled."""
    match name:
        case "accepted":
            return ACCEPTED.validate_json(said)
        case "segment":
            return SEGMENT.validate_json(said)
        case "working":
            return WORKING.validate_json(said)
        case "end":
            return End(ANSWER.validate_json(said))
    return None
