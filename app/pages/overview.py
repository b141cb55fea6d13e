"""Operators must see what waits, who holds it and why it fails, and may not slow it by looking."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from urllib.parse import quote

from partway.app.api.body import PUBLIC_ID
from partway.app.pages.page import STATUS_LABELS
from partway.store.database import Database, Row, expand_lists

# However many rows there are, opening the page reads so many: each statement below has its LIMIT.
# In an index alone a row is cheap, and beyond this nobody cares for the number.
COUNTED = 10_000
# As many requests as may be active by default, and a hundred of the usual size with their segments.
REQUESTS_READ = 1_000
SEGMENTS_READ = 10_000
# More than these nobody reads at a glance.
REQUESTS_SHOWN = 50
OWNERS_SHOWN = 50
REASONS_SHOWN = 20
# Handlers write errors as they like: so many beginnings are looked at.
REASONS_READ = 200
# Of each ending: those that failed lately are among them, and so is the one that waits longest.
ENDED_READ = 100
# A page of tenants, and what they settled today: of one of them, and of all together.
TENANTS_READ = 50
DAY_READ = 2_000
DAYS_READ = 20_000

# A strip is one line on a desk.
CELLS = 100

# A worker that says nothing for longer is not there (worker/fleet.py).
MISSED_SECONDS = 40.0

# The letters of an outcome, one more for a lease that ran out, and two for what never began.
STATES = {
    "d": "done",
    "r": "processing",
    "x": "expired",
    "p": "pending",
    "f": "failed",
    "t": "timed_out",
    "c": "cancelled",
}

OPS_LABELS = STATUS_LABELS | {
    "expired": "lease run out",
    "part": "partly done",
    "unread": "not read",
}

# How a closed request knew a segment that has become something else since, or nothing.
AT_THE_CLOSE = {"d": "done", "f": "failed", "p": "waiting", "r": "working"}

# A handler's word for what went wrong, or the type of its exception; what follows may be the text.
CODE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,39}")

# Of our own reasons, which hold no text, the ends differ.
OWN_REASONS = {
    "time limit of ": "time limit reached",
    "failed after ": "no worker reported an error",
    "the handler's process ended ": "the handler's process ended",
    "the handler returned ": "the handler returned no text",
    "the result is not UTF-8": "the result is not UTF-8",
}
IN_WORDS = "in the handler's own words"

SECONDS_OF = {"d": 86_400, "h": 3_600, "min": 60}


def format_duration(seconds: float) -> str:
    """A length of time as a person says it, in its two largest units."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    left = round(seconds)
    parts: list[str] = []
    for unit, of_unit in (SECONDS_OF | {"s": 1}).items():
        count, left = divmod(left, of_unit)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def failure_reason(beginning: str | None) -> str:
    """Why an attempt failed, as far as it can be said without a word of a document; "" for None."""
    if beginning is None:
        return ""
    for own, said in OWN_REASONS.items():
        if beginning.startswith(own):
            return said
    return beginning if CODE.fullmatch(beginning) else IN_WORDS


def request_path(tenant: str, public_id: str) -> str:
    """Where operators see a request."""
    return f"/ops/requests/{quote(tenant, safe='')}/{quote(public_id, safe='')}"


@dataclass(frozen=True)
class Count:
    """How many there are, as far as was counted."""

    number: int
    is_all: bool = True

    def __str__(self) -> str:
        return f"{self.number:,}" if self.is_all else f"{self.number:,} or more"


@dataclass(frozen=True)
class SegmentStrip:
    """How far a request is: a letter for each of its segments that was read, in order."""

    segments: int
    letters: str

    @property
    def counts(self) -> dict[str, int]:
        """How many segments are in each state that there is."""
        found = {state: self.letters.count(letter) for letter, state in STATES.items()}
        return {state: count for state, count in found.items() if count or state == "done"}

    @property
    def text(self) -> str:
        """What the strip shows, for one who does not see it."""
        counts = self.counts
        most = "" if len(self.letters) == self.segments else "at least "
        words = [f"{most}{counts.pop('done'):,} of {self.segments:,} done"]
        return ", ".join(words + [f"{n:,} {OPS_LABELS[state]}" for state, n in counts.items()])

    def size(self, most: int) -> int:
        """How many segments a cell stands for, where there are at most so many cells."""
        return max(-(-self.segments // most), 1)

    def cells(self, most: int = CELLS) -> list[str]:
        """The state of each cell of the strip."""
        size = self.size(most)
        return [cell_state(self.letters[i : i + size]) for i in range(0, self.segments, size)]


def cell_state(letters: str) -> str:
    """The state of a cell: what needs an eye on it before what does not."""
    kinds = set(letters)
    if not kinds:
        return "unread"
    if len(kinds) == 1:
        return STATES[letters[0]]
    return next((STATES[letter] for letter in "fxr" if letter in kinds), "part")


@dataclass(frozen=True)
class RequestSummary:
    """A request that was read without its segments."""

    id: int
    tenant: str
    public_id: str
    segments: int

    @property
    def path(self) -> str:
        """Where operators see it."""
        return request_path(self.tenant, self.public_id)


@dataclass(frozen=True)
class ActiveRequest(RequestSummary):
    """A request that is worked on."""

    waited_seconds: float
    left_seconds: float

    @property
    def left(self) -> str:
        """What is left until its deadline."""
        if self.left_seconds < 0:
            return f"overdue for {format_duration(-self.left_seconds)}"
        return f"{format_duration(self.left_seconds)} left"


def fit_segments(standing: Iterable[RequestSummary], most: int) -> list[int]:
    """The numbers of the requests whose segments are read: in order, those that still fit in."""
    numbers = []
    for request in standing:
        if request.segments <= most:
            numbers.append(request.id)
            most -= request.segments
    return numbers


COUNT_REQUESTS = """
SELECT COUNT(*) AS requests
FROM   (SELECT id
        FROM   requests FORCE INDEX (by_status)
        WHERE  status IN (...)
        LIMIT  %s) AS counted
"""


async def count_requests(db: Database, *statuses: str) -> Count:
    """How many requests there are in these states."""
    rows = await db.read(expand_lists(COUNT_REQUESTS, len(statuses)), (*statuses, COUNTED))
    return Count(rows[0]["requests"], rows[0]["requests"] < COUNTED)


ACTIVE = """
SELECT id, tenant, public_id, segments,
       TIMESTAMPDIFF(MICROSECOND, created_at, NOW(6)) / 1e6 AS waited_seconds,
       TIMESTAMPDIFF(MICROSECOND, NOW(6), deadline) / 1e6 AS left_seconds
FROM   requests FORCE INDEX (by_status)
WHERE  status = 'active'
ORDER  BY deadline
LIMIT  %s
"""


async def read_active(db: Database) -> list[ActiveRequest]:
    """The active requests whose deadlines are nearest, those that are overdue first."""
    return [ActiveRequest(**row) for row in await db.read(ACTIVE, (REQUESTS_READ,))]


# In the order of the primary key, so that a limit cuts the end of a request and no middle.
LETTERS = """
SELECT request_id, GROUP_CONCAT(letter ORDER BY index_no SEPARATOR '') AS letters
FROM   (SELECT request_id, index_no,
               CASE status
                 WHEN 'done' THEN 'd'
                 WHEN 'failed' THEN 'f'
                 WHEN 'processing' THEN IF(lease_until < NOW(6), 'x', 'r')
                 ELSE 'p'
               END AS letter
        FROM   segments FORCE INDEX (PRIMARY)
        WHERE  request_id IN (...)
        ORDER  BY request_id, index_no
        LIMIT  %s) AS seen
GROUP  BY request_id
"""


async def read_letters(db: Database, numbers: Sequence[int]) -> dict[int, str]:
    """A letter for each segment of these requests, by their numbers; none of one that is gone."""
    if not numbers:
        return {}
    rows = await db.read(expand_lists(LETTERS, len(numbers)), (*numbers, SEGMENTS_READ))
    return {row["request_id"]: row["letters"] for row in rows}


# The rows of workers are looked up by the names of those that hold something.
LEASES = """
SELECT o.owner_id AS owner, o.leases, o.expired, o.ends_in_seconds, w.slots,
       TIMESTAMPDIFF(MICROSECOND, w.seen_at, NOW(6)) / 1e6 AS seen_seconds
FROM   (SELECT owner_id, COUNT(*) AS leases,
               CAST(SUM(lease_until < NOW(6)) AS UNSIGNED) AS expired,
               TIMESTAMPDIFF(MICROSECOND, NOW(6), MIN(lease_until)) / 1e6 AS ends_in_seconds
        FROM   (SELECT owner_id, lease_until
                FROM   segments FORCE INDEX (PRIMARY)
                WHERE  request_id IN (...)
                  AND  status = 'processing'
                LIMIT  %s) AS held
        GROUP  BY owner_id
        ORDER  BY leases DESC, owner_id
        LIMIT  %s) AS o
LEFT   JOIN workers w FORCE INDEX (PRIMARY) ON w.name = o.owner_id
ORDER  BY o.leases DESC, o.owner_id
"""


@dataclass(frozen=True)
class Owner:
    """A worker with what it holds; slots and seen_seconds are None where it said goodbye."""

    owner: str | None
    leases: int
    expired: int
    ends_in_seconds: float | None
    slots: int | None
    seen_seconds: float | None

    @property
    def ends(self) -> str:
        """When the first of its leases ends."""
        if self.ends_in_seconds is None:
            return ""
        if self.ends_in_seconds < 0:
            return f"{format_duration(-self.ends_in_seconds)} ago"
        return f"in {format_duration(self.ends_in_seconds)}"

    @property
    def seen(self) -> str:
        """When it was last heard of."""
        if self.seen_seconds is None or self.slots is None:
            return "not among the workers"
        slots = f"{self.slots:,} slot" + ("s" if self.slots != 1 else "")
        ago = format_duration(max(self.seen_seconds, 0))
        return f"{slots}, " + (f"not seen for {ago}" if self.is_missed else f"seen {ago} ago")

    @property
    def is_missed(self) -> bool:
        """Whether it should have been heard of since."""
        return self.seen_seconds is None or self.seen_seconds > MISSED_SECONDS


async def read_leases(db: Database, numbers: Sequence[int]) -> list[Owner]:
    """Who holds segments of these requests; [] when nobody does."""
    if not numbers:
        return []
    values = (*numbers, SEGMENTS_READ, OWNERS_SHOWN)
    return [Owner(**row) for row in await db.read(expand_lists(LEASES, len(numbers)), values)]


# Whether anything of it failed stands in its outcome, whose segments are then worth reading.
ENDED = """
SELECT id, tenant, public_id, segments,
       outcome LIKE '%%f%%' AS has_failed
FROM   requests FORCE INDEX (by_status)
WHERE  status = %s
ORDER  BY deadline DESC
LIMIT  %s
"""


async def read_ended_with_failures(db: Database) -> list[RequestSummary]:
    """Requests that ended lately, are not settled yet, and of which something failed."""
    rows = [
        row
        for status in ("completed", "cancelled", "abandoned")
        for row in await db.read(ENDED, (status, ENDED_READ))
    ]
    return [RequestSummary(**row) for row in rows if row.pop("has_failed")]


FAILURES = """
SELECT beginning,
       CAST(SUM(status = 'failed') AS UNSIGNED) AS failed,
       CAST(SUM(status <> 'failed') AS UNSIGNED) AS attempts,
       MAX(request_id) AS example
FROM   (SELECT request_id, status, SUBSTRING_INDEX(error, ':', 1) AS beginning
        FROM   segments FORCE INDEX (PRIMARY)
        WHERE  request_id IN (...)
          AND  error IS NOT NULL
        LIMIT  %s) AS failures
GROUP  BY beginning
ORDER  BY failed DESC, attempts DESC
LIMIT  %s
"""


@dataclass(frozen=True)
class FailureReason:
    """A reason with a request in which it was given.

    It ended `failed` segments, and the last of the `attempts` at others.
    """

    reason: str
    failed: int
    attempts: int
    example: RequestSummary


async def read_failures(db: Database, standing: Sequence[RequestSummary]) -> list[FailureReason]:
    """Why segments of these requests failed, or an attempt at them; the most frequent first."""
    by_number = {request.id: request for request in standing}
    numbers = fit_segments(standing, SEGMENTS_READ)
    if not numbers:
        return []
    values = (*numbers, SEGMENTS_READ, REASONS_READ)
    found: dict[str, FailureReason] = {}
    for row in await db.read(expand_lists(FAILURES, len(numbers)), values):
        word = failure_reason(row["beginning"])
        before = found.get(word) or FailureReason(word, 0, 0, by_number[row["example"]])
        found[word] = FailureReason(
            word,
            before.failed + row["failed"],
            before.attempts + row["attempts"],
            before.example,
        )
    often = sorted(found.values(), key=lambda one: (-one.failed, -one.attempts, one.reason))
    return often[:REASONS_SHOWN]


FLEET = """
SELECT NOW(6) AS now,
       COUNT(*) AS workers,
       CAST(COALESCE(SUM(slots), 0) AS UNSIGNED) AS slots
FROM   (SELECT slots, seen_at
        FROM   workers
        LIMIT  %s) AS known
WHERE  seen_at > NOW(6) - INTERVAL %s SECOND
"""


@dataclass(frozen=True)
class Fleet:
    """What there is to work with, and the time by the database when it was read."""

    now: datetime
    workers: int
    slots: int


async def read_fleet(db: Database) -> Fleet:
    """The workers that say that they are there."""
    return Fleet(**(await db.read(FLEET, (COUNTED, MISSED_SECONDS)))[0])


# By the order of deadlines, since no index has the order of closes: a request closes at its
# deadline or before, so the one that waits longest is among the first.
OLDEST_CLOSED = """
SELECT TIMESTAMPDIFF(MICROSECOND, MIN(closed_at), NOW(6)) / 1e6 AS seconds
FROM   ((SELECT closed_at
         FROM   requests FORCE INDEX (by_status)
         WHERE  status = 'completed'
         ORDER  BY deadline
         LIMIT  %s)
        UNION ALL
        (SELECT closed_at
         FROM   requests FORCE INDEX (by_status)
         WHERE  status = 'cancelled'
         ORDER  BY deadline
         LIMIT  %s)
        UNION ALL
        (SELECT closed_at
         FROM   requests FORCE INDEX (by_status)
         WHERE  status = 'abandoned'
         ORDER  BY deadline
         LIMIT  %s)) AS ended
"""


async def read_oldest_closed(db: Database) -> float | None:
    """For how many seconds a request has been closed and not settled; None when none is."""
    seconds: float | None = (await db.read(OLDEST_CLOSED, (ENDED_READ,) * 3))[0]["seconds"]
    return seconds


FIRST_TENANT = "SELECT MIN(tenant) AS tenant FROM meter WHERE tenant > %s"

# With the tenant that comes next, so that each costs one round trip.
TENANT_TODAY = """
SELECT COUNT(*) AS requests,
       CAST(COALESCE(SUM(billed = 0), 0) AS UNSIGNED) AS unbilled,
       CAST(COALESCE(SUM(IF(billed, input_characters, 0)), 0) AS UNSIGNED) AS input_characters,
       CAST(COALESCE(SUM(IF(billed, output_characters, 0)), 0) AS UNSIGNED) AS output_characters,
       (SELECT TIMESTAMPDIFF(MICROSECOND, MAX(settled_at), NOW(6)) / 1e6
        FROM   meter
        WHERE  tenant = %s) AS settled_seconds,
       (SELECT MIN(tenant) FROM meter WHERE tenant > %s) AS next_tenant
FROM   (SELECT billed, input_characters, output_characters
        FROM   meter FORCE INDEX (by_day)
        WHERE  tenant = %s
          AND  settled_at >= CAST(DATE(NOW(6)) AS DATETIME(6))
        LIMIT  %s) AS today
"""


@dataclass(frozen=True)
class TenantToday:
    """What was settled for a tenant since midnight (UTC), as far as was read."""

    tenant: str
    requests: int
    is_all: bool
    unbilled: int
    input_characters: int
    output_characters: int


@dataclass(frozen=True)
class Today:
    """A page of tenants; `after` is None where no more come, else where the next page begins.

    `settled_seconds` is how long ago the last settlement for any of them was; None without any.
    """

    tenants: list[TenantToday]
    after: str | None
    settled_seconds: float | None


async def read_today(db: Database, after: str) -> Today:
    """What was settled today for the tenants whose names come after this one."""
    found: list[TenantToday] = []
    settled: list[float] = []
    left = DAYS_READ
    tenant = (await db.read(FIRST_TENANT, (after,)))[0]["tenant"]
    for _ in range(TENANTS_READ):
        most = min(DAY_READ, left)
        if tenant is None or not most:
            break
        row = (await db.read(TENANT_TODAY, (tenant, tenant, tenant, most)))[0]
        settled.append(row.pop("settled_seconds"))
        next_tenant = row.pop("next_tenant")
        if row["requests"]:
            found.append(TenantToday(tenant=tenant, is_all=row["requests"] < most, **row))
        left -= row["requests"]
        after, tenant = tenant, next_tenant
    return Today(found, after if tenant is not None else None, min(settled, default=None))


@dataclass(frozen=True)
class Overview:
    """All that the page shows: what is active, by whom it is held, why it fails, what is billed."""

    fleet: Fleet
    active: Count
    shown: list[tuple[ActiveRequest, SegmentStrip | None]]
    read: int
    segments: dict[str, Count]
    oldest_pending_seconds: float | None
    owners: list[Owner]
    failures: list[FailureReason]
    closed: Count
    oldest_closed_seconds: float | None
    today: Today

    @property
    def headline(self) -> str:
        """How much is active, in a sentence."""
        if not self.active.number:
            return "Nothing is active"
        if self.active.number == 1:
            return "1 request is active"
        return f"{self.active} requests are active"

    @property
    def tenants(self) -> list[str]:
        """Names that somebody may look for."""
        active = {request.tenant for request, _ in self.shown}
        return sorted(active | {one.tenant for one in self.today.tenants})


async def read_overview(db: Database, after: str) -> Overview:
    """What there is now, as far as the caps of this module."""
    fleet = await read_fleet(db)
    active = await count_requests(db, "active")
    standing = await read_active(db)
    numbers = fit_segments(standing, SEGMENTS_READ)
    letters = await read_letters(db, numbers)
    # What has no letter and has segments was closed and settled since.
    progress = {
        one.id: SegmentStrip(one.segments, letters.get(one.id, ""))
        for one in standing
        if one.id in letters or not one.segments
    }
    whole = "".join(letters.values())
    is_all = active.number <= len(numbers)
    pending = [one.waited_seconds for one in standing if "p" in letters.get(one.id, "")]
    ended = await read_ended_with_failures(db)
    return Overview(
        fleet,
        active,
        [(one, progress.get(one.id)) for one in standing[:REQUESTS_SHOWN]],
        len(numbers),
        {STATES[letter]: Count(whole.count(letter), is_all) for letter in "prxdf"},
        max(pending, default=None),
        await read_leases(db, numbers),
        await read_failures(db, [*standing, *ended]),
        await count_requests(db, "completed", "cancelled", "abandoned"),
        await read_oldest_closed(db),
        await read_today(db, after),
    )


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
