"""The person who pays asks what was metered, and compares it with the answers of the callers."""

import csv
import io
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from pydantic import BaseModel, Field

from partway.app.problems import Problem
from partway.app.requests.submission import PUBLIC_ID
from partway.store.database import Database, Row
from partway.store.times import point_in_time

# How many records are in memory at once.
PAGE = 1000

SUMS = ("segments", "input_characters", "output_characters")
DAY_COLUMNS = ("day", "tenant", "status", "billed", "requests", *SUMS)
REQUEST_COLUMNS = ("settled_at", "tenant", "id", "status", "billed", *SUMS)

EVERYBODY = "*"


@dataclass(frozen=True)
class Period:
    """Whose usage is asked for, and of what time (UTC, as the database keeps it)."""

    tenant: str
    since: datetime
    until: datetime


class Sum(BaseModel):
    """Of so many requests, in Unicode code points."""

    requests: int = 0
    segments: int = 0
    input_characters: int = 0
    output_characters: int = 0


class StatusSum(Sum):
    """Of the requests that ended in this way."""

    status: Literal["completed", "cancelled", "abandoned"]
    billed: bool


class UsageAnswer(BaseModel):
    """What was metered in a period."""

    tenant: str = Field(description=f"Whose; {EVERYBODY} for all.")
    since: datetime = Field(serialization_alias="from", description="Metered then or later.")
    until: datetime = Field(serialization_alias="to", description="Metered before then.")
    billed: Sum = Field(description="What is to be paid.")
    unbilled: Sum = Field(description="What it cost and nobody pays: nobody was answered.")
    by_status: list[StatusSum]


THIS_MONTH = """
SELECT NOW(6) AS now,
       CAST(DATE(NOW(6)) - INTERVAL DAYOFMONTH(NOW(6)) - 1 DAY AS DATETIME(6)) AS began
"""


async def read_period(db: Database, tenant: str, since: str | None, until: str | None) -> Period:
    """What a call asks about, this month where it names no time; Problem 422 for no such period."""
    # To the database, a name with other letters than it keeps is no question but an error.
    if tenant != EVERYBODY and PUBLIC_ID.fullmatch(tenant) is None:
        raise Problem("invalid-request", f"tenant must be the name of one, or {EVERYBODY} for all.")
    month = (await db.read(THIS_MONTH))[0]
    began = month["began"] if since is None else read_time("from", since)
    ended = month["now"] if until is None else read_time("to", until)
    if began > ended:
        # Exchanged by mistake they would look like a month in which nothing is to be paid.
        raise Problem(
            "invalid-request",
            f"from must not be later than to: from is {began}, to is {ended} (UTC).",
        )
    return Period(tenant, began, ended)


def read_time(name: str, text: str) -> datetime:
    """The time of this name as the database keeps it; Problem 422 when it is none."""
    try:
        return point_in_time(text)
    except ValueError:
        raise Problem(
            "invalid-request",
            f"{name} must be a date such as 2026-12-01 or a time such as 2026-12-01T09:30:00Z, "
            "with + as %2B.",
        ) from None


NEXT_TENANT = "SELECT MIN(tenant) AS tenant FROM meter WHERE tenant > %s"


async def tenants(db: Database, period: Period) -> AsyncIterator[str]:
    """Whose usage is asked for, one after the other."""
    if period.tenant != EVERYBODY:
        yield period.tenant
        return
    tenant = ""
    while True:
        tenant = (await db.read(NEXT_TENANT, (tenant,)))[0]["tenant"]
        if tenant is None:
            return
        yield tenant


FIRST_RECORD = """
SELECT MIN(settled_at) AS settled_at
FROM   meter
WHERE  tenant = %s
  AND  settled_at >= %s
  AND  settled_at < %s
"""

ONE_DAY = """
SELECT status, billed,
       COUNT(*) AS requests,
       CAST(SUM(segments) AS UNSIGNED) AS segments,
       CAST(SUM(input_characters) AS UNSIGNED) AS input_characters,
       CAST(SUM(output_characters) AS UNSIGNED) AS output_characters
FROM   meter
WHERE  tenant = %s
  AND  settled_at >= %s
  AND  settled_at < %s
GROUP  BY status, billed
ORDER  BY status
"""


async def by_day(db: Database, period: Period) -> AsyncIterator[list[Row]]:
    """The sums of each day (UTC) that has any, by how the requests ended.

    Day by day, since the database would need longer for a year at once than a call may take.
    """
    async for tenant in tenants(db, period):
        since = period.since
        while True:
            first = (await db.read(FIRST_RECORD, (tenant, since, period.until)))[0]["settled_at"]
            if first is None:
                break
            day = first.date()
            until = min(
                datetime.combine(day + timedelta(days=1), datetime.min.time()), period.until
            )
            rows = await db.read(ONE_DAY, (tenant, since, until))
            yield [
                {"day": day, "tenant": tenant, **row, "billed": bool(row["billed"])} for row in rows
            ]
            since = until


# The place of the last record, since many may be settled at the same time.
RECORDS = """
SELECT settled_at, tenant, public_id AS id, status, billed,
       segments, input_characters, output_characters
FROM   meter
WHERE  tenant = %s
  AND  settled_at >= %s
  AND  settled_at < %s
  AND  (settled_at > %s OR public_id > %s)
ORDER  BY settled_at, public_id
LIMIT  %s
"""


async def by_request(db: Database, period: Period) -> AsyncIterator[list[Row]]:
    """Each record of a period, a page at a time, in the order of settlement."""
    async for tenant in tenants(db, period):
        since, after = period.since, ""
        while True:
            values = (tenant, since, period.until, since, after, PAGE)
            rows = await db.read(RECORDS, values)
            if rows:
                since, after = rows[-1]["settled_at"], rows[-1]["id"]
                yield [row | {"billed": bool(row["billed"])} for row in rows]
            if len(rows) < PAGE:
                break


async def sum_usage(db: Database, period: Period) -> UsageAnswer:
    """The sums of a period, by whether they are billed and by how the requests ended."""
    answer = UsageAnswer(
        tenant=period.tenant,
        since=period.since.replace(tzinfo=UTC),
        until=period.until.replace(tzinfo=UTC),
        billed=Sum(),
        unbilled=Sum(),
        by_status=[],
    )
    endings: dict[str, StatusSum] = {}
    async for rows in by_day(db, period):
        for row in rows:
            ending = StatusSum(status=row["status"], billed=row["billed"])
            add(endings.setdefault(row["status"], ending), row)
            add(answer.billed if row["billed"] else answer.unbilled, row)
    answer.by_status = [endings[status] for status in sorted(endings)]
    return answer


def add(total: Sum, row: Row) -> None:
    """Nothing; afterwards the total holds these figures too."""
    for name in Sum.model_fields:
        setattr(total, name, getattr(total, name) + row[name])


async def as_csv(
    columns: Sequence[str], first: list[Row], more: AsyncIterator[list[Row]]
) -> AsyncIterator[str]:
    """Rows as CSV (RFC 4180), a piece for each page of them; the names of the columns first."""
    yield as_csv_lines([columns, *([written(row[name]) for name in columns] for row in first)])
    async for rows in more:
        yield as_csv_lines([written(row[name]) for name in columns] for row in rows)


def written(value: object) -> str:
    """A value as other programs read it."""
    if isinstance(value, datetime):
        return f"{value.isoformat(timespec='microseconds')}Z"
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_csv_lines(rows: Iterable[Sequence[str]]) -> str:
    """These rows as lines of CSV."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()
