"""Those who pay read what was metered, in sums or records, and compare it with their answers."""

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

# How many records are read at once, to limit the memory.
PAGE = 1000

SUMS = ("segments", "input_characters", "output_characters")
DAY_COLUMNS = ("day", "tenant", "status", "billed", "requests", *SUMS)
REQUEST_COLUMNS = ("settled_at", "tenant", "id", "status", "billed", *SUMS)

EVERYBODY = "*"


@dataclass(frozen=True)
class Period:
    """The tenant whose usage is read, or all tenants, and from when until when (UTC)."""

    tenant: str
    since: datetime
    until: datetime


class Sum(BaseModel):
    """The sums over some requests; characters are Unicode code points."""

    requests: int = 0
    segments: int = 0
    input_characters: int = 0
    output_characters: int = 0


class StatusSum(Sum):
    """The sums over the requests that ended in this way."""

    status: Literal["completed", "cancelled", "abandoned"]
    billed: bool


class UsageAnswer(BaseModel):
    """What was metered in a period."""

    tenant: str = Field(description=f"The tenant; {EVERYBODY} for all.")
    since: datetime = Field(
        serialization_alias="from", description="Metered at this time or later."
    )
    until: datetime = Field(serialization_alias="to", description="Metered before this time.")
    billed: Sum = Field(description="What is to be paid.")
    unbilled: Sum = Field(description="What was computed for abandoned requests. It is not billed.")
    by_status: list[StatusSum]


THIS_MONTH = """
SELECT NOW(6) AS now,
       CAST(DATE(NOW(6)) - INTERVAL DAYOFMONTH(NOW(6)) - 1 DAY AS DATETIME(6)) AS began
"""


async def read_period(db: Database, tenant: str, since: str | None, until: str | None) -> Period:
    """The period of a call; without times, this month so far. Problem 422 when it is not valid."""
    # The database fails on characters that its columns cannot hold.
    if tenant != EVERYBODY and PUBLIC_ID.fullmatch(tenant) is None:
        raise Problem(
            "invalid-request", f"tenant must be the name of a tenant, or {EVERYBODY} for all."
        )
    month = (await db.read(THIS_MONTH))[0]
    began = month["began"] if since is None else read_time("from", since)
    ended = month["now"] if until is None else read_time("to", until)
    if began > ended:
        # If both are swapped by mistake, the answer would say that nothing is to be paid.
        raise Problem(
            "invalid-request",
            f"from must not be later than to: from is {began}, to is {ended} (UTC).",
        )
    return Period(tenant, began, ended)


def read_time(name: str, text: str) -> datetime:
    """The time in this parameter, in the form of the database; Problem 422 when it is no time."""
    try:
        return point_in_time(text)
    except ValueError:
        raise Problem(
            "invalid-request",
            f"{name} must be a date such as 2026-12-01, or a time such as 2026-12-01T09:30:00Z. "
            "Write + as %2B.",
        ) from None


NEXT_TENANT = "SELECT MIN(tenant) AS tenant FROM meter WHERE tenant > %s"


async def tenants(db: Database, period: Period) -> AsyncIterator[str]:
    """The tenants of a period, one after the other."""
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
    """The sums of each day (UTC) with records, by how the requests ended.

    Each day is a query of its own: the database would take longer for a year than a call may take.
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


# A page begins after the time and the id of the last record, since many can have the same time.
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
    """The sums of a period: billed, not billed, and by how the requests ended."""
    answer = UsageAnswer(
        tenant=period.tenant,
        since=period.since.replace(tzinfo=UTC),
        until=period.until.replace(tzinfo=UTC),
        billed=Sum(),
        unbilled=Sum(),
        by_status=[],
    )
    by_status: dict[str, StatusSum] = {}
    async for rows in by_day(db, period):
        for row in rows:
            empty = StatusSum(status=row["status"], billed=row["billed"])
            add(by_status.setdefault(row["status"], empty), row)
            add(answer.billed if row["billed"] else answer.unbilled, row)
    answer.by_status = [by_status[status] for status in sorted(by_status)]
    return answer


def add(total: Sum, row: Row) -> None:
    """Add the figures of a row to the total."""
    for name in Sum.model_fields:
        setattr(total, name, getattr(total, name) + row[name])


async def as_csv(
    columns: Sequence[str], first: list[Row], more: AsyncIterator[list[Row]]
) -> AsyncIterator[str]:
    """Rows as CSV (RFC 4180) after a line of column names, one piece for each page of rows."""
    yield as_csv_lines([columns, *([to_text(row[name]) for name in columns] for row in first)])
    async for rows in more:
        yield as_csv_lines([to_text(row[name]) for name in columns] for row in rows)


def to_text(value: object) -> str:
    """A value in the form that other programs read."""
    if isinstance(value, datetime):
        return f"{value.isoformat(timespec='microseconds')}Z"
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_csv_lines(rows: Iterable[Sequence[str]]) -> str:
    """These rows as lines of CSV."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()
