"""The answer is read from the rows, in the same way by whoever closed, joined or only asks."""

import asyncio
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from partway.app.requests.ledger import Settled, find_metered
from partway.store.database import Database, Unavailable, expand_lists


@dataclass(frozen=True)
class Request:
    """A request as its row says; `ends_at` is its deadline on this process's monotonic clock."""

    id: int
    public_id: str
    body_hash: bytes
    status: Literal["active", "completed", "cancelled", "abandoned"]
    segments: int
    separators: str | None
    on_missing: Literal["null", "source", "omit"]
    created_at: datetime
    deadline: datetime
    closed_at: datetime | None
    outcome: str | None
    ends_at: float


@dataclass(frozen=True)
class Finished:
    """A segment that is done or failed, and so never changes again."""

    index_no: int
    status: Literal["done", "failed"]
    result: str | None
    error: str | None
    attempts: int
    input_characters: int


class SegmentAnswer(BaseModel):
    """One segment of an answer, in document order."""

    index: int
    status: Literal["pending", "processing", "done", "failed", "timed_out", "cancelled"]
    result: str | None = None
    error: str | None = Field(None, description="Why a failed segment failed.")
    attempts: int | None = Field(None, description="Known once the segment is done or failed.")


def to_segment_answer(segment: Finished) -> SegmentAnswer:
    """What is answered of a segment that is done or failed."""
    is_done = segment.status == "done"
    return SegmentAnswer(
        index=segment.index_no,
        status=segment.status,
        result=segment.result if is_done else None,
        error=None if is_done else segment.error,
        attempts=segment.attempts,
    )


class Counts(BaseModel):
    """How many segments ended in which way; while the request runs, the rest is still to come."""

    total: int
    done: int
    failed: int
    timed_out: int
    cancelled: int


class Usage(BaseModel):
    """What is metered, in Unicode code points of the done segments and their results."""

    segments: int
    input_characters: int
    output_characters: int
    billed: bool = Field(description="False for an abandoned request: no answer, no charge.")
    final: bool = Field(description="Whether these figures can no longer change.")


class Answer(BaseModel):
    """What is there of a request."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    id: str
    status: Literal["running", "completed", "partial", "cancelled", "abandoned"]
    created_at: datetime
    deadline_at: datetime
    finished_at: datetime | None
    counts: Counts
    usage: Usage
    document: str | None
    segments: list[SegmentAnswer]


READ_REQUEST = """
SELECT id, public_id, body_hash, status, segments, gaps AS separators, on_missing,
       created_at, deadline, closed_at, outcome,
       TIMESTAMPDIFF(MICROSECOND, NOW(6), deadline) AS remaining_microseconds
FROM   requests
WHERE  tenant = %s
  AND  public_id = %s
"""


async def read_request(db: Database, tenant: str, public_id: str) -> Request | None:
    """The tenant's request of this id, read without a lock; None when there is none (any more)."""
    rows = await db.read(READ_REQUEST, (tenant, public_id))
    if not rows:
        return None
    row = rows[0]
    remaining_seconds = row.pop("remaining_microseconds") / 1_000_000
    return Request(**row, ends_at=time.monotonic() + remaining_seconds)


async def is_known(db: Database, tenant: str, public_id: str) -> bool:
    """Whether the tenant's request of this id is there, or was and is metered."""
    return (
        await read_request(db, tenant, public_id) is not None
        or await find_metered(db, tenant, public_id) is not None
    )


# The request and its finished segments in one statement: one round trip, one view of both. Only the
# rows not seen yet, since reading every result at each look costs five times as much.
NEWLY_FINISHED = """
SELECT r.status AS request_status,
       s.index_no, s.status, s.result, s.error, s.attempts,
       CHAR_LENGTH(s.source) AS input_characters
FROM   requests r
LEFT   JOIN segments s
       ON  s.request_id = r.id
       AND s.status IN ('done', 'failed')
       AND s.index_no NOT IN (...)
WHERE  r.id = %s
"""

# No segment has this number, and an empty list is no SQL.
NO_INDEX = 4_294_967_295


async def read_newly_finished(
    db: Database, request_id: int, seen: Collection[int]
) -> tuple[str | None, dict[int, Finished]]:
    """The status of a request, and its finished segments that are not in `seen`, by index.

    The status is None when the request is settled and gone.
    """
    known = sorted(seen) or [NO_INDEX]
    rows = await db.read(expand_lists(NEWLY_FINISHED, len(known)), (*known, request_id))
    status = rows[0]["request_status"] if rows else None
    fresh = {}
    for row in rows:
        del row["request_status"]
        if row["index_no"] is not None:
            fresh[row["index_no"]] = Finished(**row)
    return status, fresh


PROCESSING = """
SELECT index_no
FROM   segments
WHERE  request_id = %s
  AND  status = 'processing'
"""


async def read_processing(db: Database, request_id: int) -> set[int]:
    """The segments of a request that run now, or were left by a worker that died."""
    rows = await db.read(PROCESSING, (request_id,))
    return {row["index_no"] for row in rows}


# What somebody has seen who has not looked yet.
NONE_READ: Mapping[int, Finished] = MappingProxyType({})

SOURCES = """
SELECT index_no, source
FROM   segments
WHERE  request_id = %s
  AND  index_no IN (...)
"""


async def read_sources(db: Database, request_id: int, wanted: Sequence[int]) -> dict[int, str]:
    """The sources of these segments, by index; fewer when the request is settled and gone."""
    if not wanted:
        return {}
    rows = await db.read(expand_lists(SOURCES, len(wanted)), (request_id, *wanted))
    return {row["index_no"]: row["source"] for row in rows}


# A database that is silent must not hold a call much longer than one that is away; the largest
# answers take seconds.
READ_SECONDS = 5.0


async def read_answer(
    db: Database, tenant: str, public_id: str, seen: Mapping[int, Finished] = NONE_READ
) -> Answer | None:
    """What is there now; None when the tenant never had this id. Raises Settled.

    `seen` holds the finished segments that the caller of this function has read already: each
    result crosses the wire once. Raises Unavailable when the rows cannot be had in READ_SECONDS.
    """
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await _read_answer(db, tenant, public_id, seen)
    except TimeoutError as error:
        raise Unavailable("the database does not answer in time") from error


async def _read_answer(
    db: Database, tenant: str, public_id: str, seen: Mapping[int, Finished]
) -> Answer | None:
    request = await read_request(db, tenant, public_id)
    if request is not None:
        processing: set[int] = set()
        if request.status != "completed":
            # Before the results, never after: what is written back in between would be in neither,
            # and figures without it be called final.
            processing = await read_processing(db, request.id)
        status, fresh = await read_newly_finished(db, request.id, seen)
        finished = {**seen, **fresh}
        processing -= finished.keys()
        named = {i for i, letter in enumerate(request.outcome or "") if letter in "df"}
        if status is not None and named <= finished.keys():
            wanted: list[int] = []
            if request.on_missing == "source" and request.separators is not None:
                said = segment_statuses(request, finished, processing)
                wanted = [i for i, word in enumerate(said) if word != "done"]
            sources = await read_sources(db, request.id, wanted)
            if len(sources) == len(wanted):
                return build_answer(request, finished, processing, sources)
    # Gone, or going between the reads: then there is a record, and it is the last word.
    metered = await find_metered(db, tenant, public_id)
    if metered is not None:
        raise Settled(metered)
    return None


SegmentStatus = Literal["pending", "processing", "done", "failed", "timed_out", "cancelled"]


def segment_statuses(
    request: Request, finished: Mapping[int, Finished], processing: Collection[int]
) -> list[SegmentStatus]:
    """What the answer says of each segment, in document order.

    Of a completed request only the outcome counts. What ran when it was cancelled or abandoned may
    still have become done, and is then answered and metered.
    """
    if request.outcome is None:
        return [
            finished[i].status if i in finished else "processing" if i in processing else "pending"
            for i in range(request.segments)
        ]
    late: SegmentStatus = "timed_out"
    if request.status == "cancelled" or (
        request.status == "abandoned"
        and request.closed_at is not None
        and request.closed_at < request.deadline
    ):
        late = "cancelled"
    counted = "df" if request.status == "completed" else "dfr"
    return [
        finished[i].status if letter in counted and i in finished else late
        for i, letter in enumerate(request.outcome)
    ]


def build_answer(
    request: Request,
    finished: Mapping[int, Finished],
    processing: Collection[int],
    sources: Mapping[int, str],
) -> Answer:
    """The answer that these rows make; the same rows always make the same bytes.

    `sources` holds the sources of what is not done, where on_missing asks for them.
    """
    said = segment_statuses(request, finished, processing)
    done = [finished[i] for i, word in enumerate(said) if word == "done"]
    parts: list[str | None] = [
        finished[i].result
        if word == "done"
        else ""
        if request.on_missing == "omit"
        else sources.get(i)
        for i, word in enumerate(said)
    ]
    stragglers = [
        i for i, letter in enumerate(request.outcome or "") if letter == "r" and i in processing
    ]
    return Answer(
        id=request.public_id,
        status=status(request, said),
        created_at=request.created_at.replace(tzinfo=UTC),
        deadline_at=request.deadline.replace(tzinfo=UTC),
        finished_at=request.closed_at and request.closed_at.replace(tzinfo=UTC),
        counts=Counts(
            total=request.segments,
            done=len(done),
            failed=said.count("failed"),
            timed_out=said.count("timed_out"),
            cancelled=said.count("cancelled"),
        ),
        usage=Usage(
            segments=len(done),
            input_characters=sum(segment.input_characters for segment in done),
            output_characters=sum(len(segment.result or "") for segment in done),
            billed=request.status != "abandoned",
            final=request.outcome is not None and (request.status == "completed" or not stragglers),
        ),
        document=join_document(request.separators, parts),
        segments=[
            to_segment_answer(finished[i])
            if word in ("done", "failed")
            else SegmentAnswer(index=i, status=word)
            for i, word in enumerate(said)
        ],
    )


def status(
    request: Request, said: list[SegmentStatus]
) -> Literal["running", "completed", "partial", "cancelled", "abandoned"]:
    """The word for the whole: a completed request of which something is missing is partial."""
    if request.status == "active":
        return "running"
    if request.status == "completed":
        return "completed" if all(word == "done" for word in said) else "partial"
    return request.status


def join_document(separators: str | None, parts: list[str | None]) -> str | None:
    """The document with its white space; None when a part is missing or there was no document."""
    if separators is None or None in parts:
        return None
    first, *rest = json.loads(separators)
    return str(first) + "".join(f"{part}{after}" for part, after in zip(parts, rest, strict=True))
