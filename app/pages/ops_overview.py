"""Operators must see what waits, who holds it and why it fails, at a cost that does not grow."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from partway.app.pages.labels import STATES, failure_reason, format_duration
from partway.app.pages.ops_summary import (
    SEGMENTS_READ,
    ActiveRequest,
    Count,
    RequestSummary,
    read_letters,
)
from partway.app.pages.ops_today import Today, read_today
from partway.app.pages.strip import SegmentStrip
from partway.store.database import Database, expand_lists
from partway.store.fleet import MISSED_SECONDS, FleetSize, read_fleet

# However many rows there are, opening the page reads so many: each statement below has its LIMIT.
# In an index alone a row is cheap, and beyond this nobody cares for the number.
COUNTED = 10_000

# As many requests as may be active by default, and a hundred of the usual size with their segments.
REQUESTS_READ = 1_000

# More than these nobody reads at a glance.
REQUESTS_SHOWN = 50

OWNERS_SHOWN = 50

REASONS_SHOWN = 20

# Handlers write errors as they like: so many beginnings are looked at.
REASONS_READ = 200

# Of each ending: those that failed lately are among them, and so is the one that waits longest.
ENDED_READ = 100


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


@dataclass(frozen=True)
class Overview:
    """All that the page shows: what is active, by whom it is held, why it fails, what is billed."""

    fleet: FleetSize
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
    fleet = await read_fleet(db, COUNTED)
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
