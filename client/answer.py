"""The options of a request, the answer, and the events of a stream, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from pydantic import TypeAdapter


class Options(TypedDict, total=False):
    """The options of a request; the server chooses the default of each.

    With its own `id`, a caller can retry the request or read it from another process. With
    `on_disconnect="cancel"`, a broken connection closes the request as abandoned: it is not billed.
    """

    id: str
    language: str
    params: Mapping[str, Any]
    deadline_ms: int
    on_missing: Literal["null", "source", "omit"]
    on_disconnect: Literal["continue", "cancel"]


@dataclass(frozen=True)
class Segment:
    """One segment: its result when it is done, its error when it failed."""

    index: int
    status: Literal["pending", "processing", "done", "failed", "timed_out", "cancelled"]
    result: str | None = None
    error: str | None = None
    attempts: int | None = None


@dataclass(frozen=True)
class Counts:
    """How many segments have each status. While the request runs, the others are not finished."""

    total: int
    done: int
    failed: int
    timed_out: int
    cancelled: int


@dataclass(frozen=True)
class Usage:
    """What is metered, in Unicode code points. The figures can grow until `final` is true."""

    segments: int
    input_characters: int
    output_characters: int
    billed: bool
    final: bool


@dataclass(frozen=True)
class Answer:
    """The state of a request, with its segments and its document."""

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
    """The request is stored. It continues even if the connection breaks now."""

    id: str
    deadline_at: datetime
    total: int


@dataclass(frozen=True)
class Working:
    """The segments that run now."""

    indexes: tuple[int, ...]


@dataclass(frozen=True)
class End:
    """The request is final. This is the last event."""

    answer: Answer


# A Segment becomes an event when it is done or failed, after which it never changes.
Event = Accepted | Segment | Working | End

# Members that a newer server adds are ignored. Wrong or missing members raise ValidationError.
ANSWER = TypeAdapter(Answer)
ACCEPTED = TypeAdapter(Accepted)
SEGMENT = TypeAdapter(Segment)
WORKING = TypeAdapter(Working)


def read_event(name: str, content: str) -> Event | None:
    """Parse an event; None when this version knows no such event, ValueError when it is invalid."""
    match name:
        case "accepted":
            return ACCEPTED.validate_json(content)
        case "segment":
            return SEGMENT.validate_json(content)
        case "working":
            return WORKING.validate_json(content)
        case "end":
            return End(ANSWER.validate_json(content))
    return None
