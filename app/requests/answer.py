"""Every caller of a request gets its answer from the same rows, read in the same way."""

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
    """The row of a request; `ends_at` is its deadline on the monotonic clock of this process."""

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
    """A segment that is done or failed. It never changes again."""

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
    """The part of the answer for a segment that is done or failed."""
    is_done = segment.status == "done"
    return SegmentAnswer(
        index=segment.index_no,
        status=segment.status,
        result=segment.result if is_done else None,
        error=None if is_done else segment.error,
        attempts=segment.attempts,
    )


class Counts(BaseModel):
    """How many segments ended in each way. While the request runs, the sum is less than `total`."""

    total: int
    done: int
    failed: int
    timed_out: int
    cancelled: int


class Usage(BaseModel):
    """What is metered: the done segments, and their texts and results in Unicode code points."""

    segments: int
    input_characters: int
    output_characters: int
    billed: bool = Field(description="False for an abandoned request: no answer, no charge.")
    final: bool = Field(description="True when these figures can no longer change.")


class Answer(BaseModel):
    """The state of a request, with the results that it has."""

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
    """The tenant's request of this id, read without a lock; None when there is no row."""
    rows = await db.read(READ_REQUEST, (tenant, public_id))
    if not rows:
        return None
    row = rows[0]
    remaining_seconds = row.pop("remaining_microseconds") / 1_000_000
    return Request(**row, ends_at=time.monotonic() + remaining_seconds)


async def is_known(db: Database, tenant: str, public_id: str) -> bool:
    """Whether the tenant has a request of this id, stored or settled."""
    return (
        await read_request(db, tenant, public_id) is not None
        or await find_metered(db, tenant, public_id) is not None
    )


# The request and its finished segments in one statement, so both are read at the same moment and in
# one round trip. Rows that were read before are left out: to read all results at each poll costs
# five times as much.
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

# The list stands in for an empty one, which SQL does not allow. No segment has this index.
NO_INDEX = 4_294_967_295


async def read_newly_finished(
    db: Database, request_id: int, known: Collection[int]
) -> tuple[str | None, dict[int, Finished]]:
    """The status of a request, and its finished segments whose index is not in `known`.

    The status is None when the request is settled and deleted.
    """
    left_out = sorted(known) or [NO_INDEX]
    rows = await db.read(expand_lists(NEWLY_FINISHED, len(left_out)), (*left_out, request_id))
    status = rows[0]["request_status"] if rows else None
    finished = {}
    for row in rows:
        del row["request_status"]
        if row["index_no"] is not None:
            finished[row["index_no"]] = Finished(**row)
    return status, finished


PROCESSING = """
SELECT index_no
FROM   segments
WHERE  request_id = %s
  AND  status = 'processing'
"""


async def read_processing(db: Database, request_id: int) -> set[int]:
    """The indexes of the segments that run now, or were left by a worker that died."""
    rows = await db.read(PROCESSING, (request_id,))
    return {row["index_no"] for row in rows}


# For a caller that has read no segment before.
NONE_READ: Mapping[int, Finished] = MappingProxyType({})

SOURCES = """
SELECT index_no, source
FROM   segments
WHERE  request_id = %s
  AND  index_no IN (...)
"""


async def read_sources(db: Database, request_id: int, indexes: Sequence[int]) -> dict[int, str]:
    """The sources of these segments, by index; fewer when the request is settled and deleted."""
    if not indexes:
        return {}
    rows = await db.read(expand_lists(SOURCES, len(indexes)), (request_id, *indexes))
    return {row["index_no"]: row["source"] for row in rows}


# The largest answers take seconds to read. A database that does not reply must not hold a call
# much longer than one that refuses connections.
READ_SECONDS = 5.0


async def read_answer(
    db: Database, tenant: str, public_id: str, known: Mapping[int, Finished] = NONE_READ
) -> Answer | None:
    """The answer as it is now; None when the tenant has no request of this id. Raises Settled.

    `known` holds the finished segments that were read before, so that each result is sent by the
    database once. Raises Unavailable when the rows cannot be read in READ_SECONDS.
    """
    try:
        async with asyncio.timeout(READ_SECONDS):
            request = await read_request(db, tenant, public_id)
            answer = await _read_rows(db, request, known) if request is not None else None
            if answer is not None:
                return answer
            # The rows are deleted, perhaps between two reads. Then there is a record.
            metered = await find_metered(db, tenant, public_id)
    except TimeoutError as error:
        raise Unavailable("the database does not answer in time") from error
    if metered is not None:
        raise Settled(metered)
    return None


async def _read_rows(
    db: Database, request: Request, known: Mapping[int, Finished]
) -> Answer | None:
    """The answer that the rows of a request give; None when rows were deleted meanwhile."""
    processing: set[int] = set()
    if request.status != "completed":
        # This read must come before that of the results. In the other order a segment that is
        # written back in between would be in neither, and the figures would be called final.
        processing = await read_processing(db, request.id)
    status, newly_finished = await read_newly_finished(db, request.id, known)
    finished = {**known, **newly_finished}
    processing -= finished.keys()
    in_outcome = {i for i, letter in enumerate(request.outcome or "") if letter in "df"}
    if status is None or not in_outcome <= finished.keys():
        return None
    missing: list[int] = []
    if request.on_missing == "source" and request.separators is not None:
        statuses = segment_statuses(request, finished, processing)
        missing = [i for i, status in enumerate(statuses) if status != "done"]
    sources = await read_sources(db, request.id, missing)
    if len(sources) != len(missing):
        return None
    return build_answer(request, finished, processing, sources)


SegmentStatus = Literal["pending", "processing", "done", "failed", "timed_out", "cancelled"]


def segment_statuses(
    request: Request, finished: Mapping[int, Finished], processing: Collection[int]
) -> list[SegmentStatus]:
    """The status of each segment in the answer, in document order.

    For a completed request only the outcome counts. A segment that was running when its request was
    cancelled or abandoned can still become done; then it is answered and metered.
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
    """The answer that these rows give; the same rows always give the same bytes.

    `sources` holds the sources of the segments that are not done, if on_missing is `source`.
    """
    statuses = segment_statuses(request, finished, processing)
    done = [finished[i] for i, status in enumerate(statuses) if status == "done"]
    parts: list[str | None] = [
        finished[i].result
        if status == "done"
        else ""
        if request.on_missing == "omit"
        else sources.get(i)
        for i, status in enumerate(statuses)
    ]
    in_flight = [
        i for i, letter in enumerate(request.outcome or "") if letter == "r" and i in processing
    ]
    return Answer(
        id=request.public_id,
        status=answer_status(request, statuses),
        created_at=request.created_at.replace(tzinfo=UTC),
        deadline_at=request.deadline.replace(tzinfo=UTC),
        finished_at=request.closed_at and request.closed_at.replace(tzinfo=UTC),
        counts=Counts(
            total=request.segments,
            done=len(done),
            failed=statuses.count("failed"),
            timed_out=statuses.count("timed_out"),
            cancelled=statuses.count("cancelled"),
        ),
        usage=Usage(
            segments=len(done),
            input_characters=sum(segment.input_characters for segment in done),
            output_characters=sum(len(segment.result or "") for segment in done),
            billed=request.status != "abandoned",
            final=request.outcome is not None and (request.status == "completed" or not in_flight),
        ),
        document=join_document(request.separators, parts),
        segments=[
            to_segment_answer(finished[i])
            if status in ("done", "failed")
            else SegmentAnswer(index=i, status=status)
            for i, status in enumerate(statuses)
        ],
    )


def answer_status(
    request: Request, statuses: list[SegmentStatus]
) -> Literal["running", "completed", "partial", "cancelled", "abandoned"]:
    """The status of the answer: `partial` for a completed request with a segment not done."""
    if request.status == "active":
        return "running"
    if request.status == "completed":
        return "completed" if all(status == "done" for status in statuses) else "partial"
    return request.status


def join_document(separators: str | None, parts: list[str | None]) -> str | None:
    """The document with its separators; None when a part is missing or no document was sent."""
    if separators is None or None in parts:
        return None
    first, *rest = json.loads(separators)
    return str(first) + "".join(f"{part}{after}" for part, after in zip(parts, rest, strict=True))
