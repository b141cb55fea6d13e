"""Operators look into one request: its row, the history of each segment, its texts on demand."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from partway.app.pages.labels import AT_THE_CLOSE, STATES, failure_reason, format_duration
from partway.app.pages.ops_summary import ActiveRequest
from partway.app.requests.submission import PUBLIC_ID
from partway.store.database import Database, Row

ROW = """
SELECT id, tenant, public_id, segments, status, characters, created_at, deadline, closed_at,
       TIMESTAMPDIFF(MICROSECOND, created_at, NOW(6)) / 1e6 AS waited_seconds,
       TIMESTAMPDIFF(MICROSECOND, NOW(6), deadline) / 1e6 AS left_seconds,
       TIMESTAMPDIFF(MICROSECOND, closed_at, NOW(6)) / 1e6 AS closed_seconds,
       SUBSTRING(outcome, %s + 1, %s) AS letters
FROM   requests
WHERE  tenant = %s
  AND  public_id = %s
"""


@dataclass(frozen=True)
class RequestRow(ActiveRequest):
    """A request as its row says; `letters` is the part of its outcome that is on the page."""

    status: Literal["active", "completed", "cancelled", "abandoned"]
    characters: int
    created_at: datetime
    deadline: datetime
    closed_at: datetime | None
    closed_seconds: float | None
    letters: str | None

    @property
    def late(self) -> str:
        """The letter of a segment that waits: once the request is closed, it never begins."""
        if self.closed_at is None:
            return "p"
        was_early = self.status == "abandoned" and self.closed_at < self.deadline
        return "c" if self.status == "cancelled" or was_early else "t"

    @property
    def sentence(self) -> str:
        """Where it stands, in one sentence."""
        if self.closed_seconds is not None:
            ago = format_duration(max(self.closed_seconds, 0))
            return f"It was closed as {self.status} {ago} ago."
        return f"It is active, {self.left}."


async def read_row(
    db: Database, tenant: str, public_id: str, first: int, most: int
) -> RequestRow | None:
    """The request with so much of its outcome; None when there is none (any more)."""
    # To the database, a name with other letters than it keeps is no question but an error.
    if not (PUBLIC_ID.fullmatch(tenant) and PUBLIC_ID.fullmatch(public_id)):
        return None
    rows = await db.read(ROW, (first, most, tenant, public_id))
    return RequestRow(**rows[0]) if rows else None


SEGMENT_HISTORIES = """
SELECT index_no, status, attempts, owner_id,
       TIMESTAMPDIFF(MICROSECOND, NOW(6), lease_until) / 1e6 AS lease_seconds,
       SUBSTRING_INDEX(error, ':', 1) AS beginning,
       CHAR_LENGTH(source) AS input_characters,
       CHAR_LENGTH(result) AS output_characters
FROM   segments
WHERE  request_id = %s
  AND  index_no >= %s
ORDER  BY index_no
LIMIT  %s
"""


@dataclass(frozen=True)
class SegmentHistory:
    """What a segment has been through; `letter` is that of the outcome, None while there is none.

    `late` is the letter of one that waits, as its request has it.
    """

    index_no: int
    status: Literal["pending", "processing", "done", "failed"]
    attempts: int
    owner_id: str | None
    lease_seconds: float | None
    beginning: str | None
    input_characters: int
    output_characters: int | None
    letter: str | None
    late: str

    @property
    def state(self) -> str:
        """Its state, which may be that its lease ran out, or that it never began."""
        if self.status == "processing" and self.lease_seconds is not None:
            return "expired" if self.lease_seconds < 0 else "processing"
        return STATES[self.late] if self.status == "pending" else self.status

    @property
    def facts(self) -> list[str]:
        """What there is to say of it, each in a few words."""
        said = [f"attempt {self.attempts}" if self.attempts else "no attempt"]
        if self.owner_id is not None:
            said[0] += f" by {self.owner_id}"
        seconds = self.lease_seconds
        if self.status == "processing" and seconds is not None:
            said.append(
                f"lease ran out {format_duration(-seconds)} ago"
                if seconds < 0
                else f"lease ends in {format_duration(seconds)}"
            )
        if self.state == "pending" and seconds is not None and seconds > 0:
            said.append(f"again in {format_duration(seconds)}")
        came = "" if self.output_characters is None else f", {self.output_characters:,} out"
        said.append(f"{self.input_characters:,} characters in{came}")
        if self.letter is not None and STATES.get(self.letter) != self.status:
            said.append(f"at the close: {AT_THE_CLOSE.get(self.letter, '?')}")
        return said

    @property
    def why(self) -> str:
        """Why its last attempt failed, without a word of the text; "" when none has."""
        return failure_reason(self.beginning)


async def read_segment_histories(
    db: Database, request: RequestRow, first: int, most: int
) -> list[SegmentHistory]:
    """Segments of a request from this index on; [] when it is settled and gone."""
    letters = request.letters or ""
    return [
        SegmentHistory(
            **row,
            letter=letters[row["index_no"] - first : row["index_no"] - first + 1] or None,
            late=request.late,
        )
        for row in await db.read(SEGMENT_HISTORIES, (request.id, first, most))
    ]


# What callers sent and got, and errors, which may repeat it: only for who asks to see it.
TEXTS = """
SELECT index_no, source, result, error
FROM   segments
WHERE  request_id = %s
  AND  index_no >= %s
ORDER  BY index_no
LIMIT  %s
"""


async def read_texts(db: Database, request_id: int, first: int, most: int) -> dict[int, Row]:
    """The texts of these segments, by index."""
    rows = await db.read(TEXTS, (request_id, first, most))
    return {row["index_no"]: row for row in rows}
