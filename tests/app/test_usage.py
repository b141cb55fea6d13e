"""What was metered is added up for whoever pays, and nobody sees what others sent."""

import csv
import io
import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import aiomysql
import httpx
import pytest

from partway.app.api import usage
from partway.app.api.usage import EVERYBODY, Period, by_day, by_request
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database, Row
from tests.actions import Client, Programs, bearer, claimed, meter_rows, submitted, written
from tests.app.test_http_api import assert_problem
from tests.batch.test_batch import planted
from tests.system.test_cost import overhead, rows_read

USAGE = "/v1/usage"

NOTHING = {"requests": 0, "segments": 0, "input_characters": 0, "output_characters": 0}
ONE = {"requests": 1, "segments": 2, "input_characters": 20, "output_characters": 30}

MARCH = {"from": "2026-03-01", "to": "2026-04-01"}


@pytest.fixture
async def node(programs: Programs) -> Client:
    """A node as it is shipped."""
    return await programs.app(APP_KEYLESS="off")


async def some_of_each(db: Database) -> None:
    """A small ledger of two tenants."""
    for tenant in ("acme", "beta"):
        for public_id, status, at in (
            ("a", "completed", "2026-02-28 23:59:59.999999"),
            ("b", "completed", "2026-03-01 00:00:00"),
            ("c", "completed", "2026-03-01 12:00:00"),
            ("d", "cancelled", "2026-03-02 12:00:00"),
            ("e", "abandoned", "2026-03-02 12:00:00"),
            ("f", "completed", "2026-03-31 23:59:59.999999"),
            ("g", "completed", "2026-04-01 00:00:00"),
        ):
            await planted(db, public_id, status, at, tenant=tenant)


def times(figures: dict[str, int], n: int) -> dict[str, int]:
    """So many times these figures."""
    return {name: figure * n for name, figure in figures.items()}


def table(response: httpx.Response) -> list[dict[str, str]]:
    """The lines of a CSV."""
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert response.headers["Content-Disposition"].startswith("attachment;")
    return list(csv.DictReader(io.StringIO(response.text, newline="")))


async def test_what_a_tenant_pays_is_added_up_by_how_its_requests_ended(
    db: Database, node: Client
) -> None:
    await some_of_each(db)

    response = await node.get(USAGE, params=MARCH, headers=await bearer(db, "acme"))

    assert response.json() == {
        "tenant": "acme",
        "from": "2026-03-01T00:00:00Z",
        "to": "2026-04-01T00:00:00Z",
        "billed": times(ONE, 4),
        "unbilled": ONE,
        "by_status": [
            {**ONE, "status": "abandoned", "billed": False},
            {**ONE, "status": "cancelled", "billed": True},
            {**times(ONE, 3), "status": "completed", "billed": True},
        ],
    }


async def test_the_usage_of_a_real_request_is_its_answer(db: Database, node: Client) -> None:
    number, public_id = await submitted(db, 3, tenant="acme")
    await written(db, *await claimed(db, number, 2))
    await close(db, number, "completed")
    assert await settle(db, number, 0) == "settled"
    mine = await bearer(db, "acme")

    said = (await node.get(USAGE, headers=mine)).json()
    (line,) = table(await node.get(USAGE, params={"by": "request", "format": "csv"}, headers=mine))

    (record,) = await meter_rows(db, public_id)
    assert said["billed"]["segments"] == record["segments"] == 2
    assert said["from"].endswith("-01T00:00:00Z")
    assert said["from"] <= f"{record['settled_at'].isoformat()}Z" <= said["to"]
    assert line == {
        "settled_at": f"{record['settled_at'].isoformat(timespec='microseconds')}Z",
        "tenant": "acme",
        "id": public_id,
        "status": "completed",
        "billed": "true",
        "segments": "2",
        "input_characters": str(record["input_characters"]),
        "output_characters": str(record["output_characters"]),
    }


async def test_as_csv_there_is_a_line_for_each_day_and_ending(db: Database, node: Client) -> None:
    await some_of_each(db)
    mine = await bearer(db, "acme")

    lines = table(await node.get(USAGE, params=MARCH | {"format": "csv"}, headers=mine))
    accepted = await node.get(USAGE, params=MARCH, headers=mine | {"Accept": "text/csv"})

    assert [*lines[0]] == [
        *("day", "tenant", "status", "billed", "requests"),
        *("segments", "input_characters", "output_characters"),
    ]
    assert [list(line.values())[:5] for line in lines] == [
        ["2026-03-01", "acme", "completed", "true", "2"],
        ["2026-03-02", "acme", "cancelled", "true", "1"],
        ["2026-03-02", "acme", "abandoned", "false", "1"],
        ["2026-03-31", "acme", "completed", "true", "1"],
    ]
    assert table(accepted) == lines
    empty = await node.get(
        USAGE, params=MARCH | {"to": "2026-03-01", "format": "csv"}, headers=mine
    )
    assert table(empty) == []
    assert empty.text.startswith("day,tenant,status,billed,requests,segments,")


async def test_the_lines_of_requests_add_up_to_the_lines_of_days(
    db: Database, node: Client
) -> None:
    await some_of_each(db)
    mine = await bearer(db, "acme")
    asked = {**MARCH, "format": "csv"}

    by_days = table(await node.get(USAGE, params=asked, headers=mine))
    by_requests = table(await node.get(USAGE, params=asked | {"by": "request"}, headers=mine))

    assert [line["id"] for line in by_requests] == ["b", "c", "d", "e", "f"]
    for name in ("segments", "input_characters", "output_characters"):
        assert sum(int(line[name]) for line in by_days) == sum(int(r[name]) for r in by_requests)


async def test_a_tenant_sees_its_own_usage_only_and_an_operator_sees_any(
    db: Database, node: Client
) -> None:
    await some_of_each(db)
    await planted(db, "b", "completed", "2026-03-05", tenant="zeta")
    mine, operator = await bearer(db, "acme"), await bearer(db, "acme", "operator")

    for tenant in ("beta", "zeta", "nobody", EVERYBODY):
        response = await node.get(USAGE, params=MARCH | {"tenant": tenant}, headers=mine)
        assert "operator" in assert_problem(response, 403)["detail"]
    own = await node.get(USAGE, params=MARCH | {"tenant": "acme"}, headers=mine)
    assert own.json()["billed"]["requests"] == 4

    for tenant, requests in (("beta", 4), ("zeta", 1), ("nobody", 0), (EVERYBODY, 9)):
        response = await node.get(USAGE, params=MARCH | {"tenant": tenant}, headers=operator)
        assert (response.json()["tenant"], response.json()["billed"]["requests"]) == (
            tenant,
            requests,
        )
    asked = {**MARCH, "tenant": EVERYBODY, "format": "csv", "by": "request"}
    lines = table(await node.get(USAGE, params=asked, headers=operator))
    assert [line["tenant"] for line in lines] == ["acme"] * 5 + ["beta"] * 5 + ["zeta"]


@pytest.mark.parametrize(
    "since, until, found",
    [
        ("2026-03-02", "2026-03-03", 1),
        ("2026-03-02T12:00:00Z", "2026-03-02T12:00:00.000001Z", 1),
        ("2026-03-02T12:00:00.000001Z", "2026-03-31", 0),
        ("2026-03-02T13:00:00+01:00", "2026-03-02T14:00:00+02:00", 0),
        ("2026-03-02T13:00:00+01:00", "2026-03-02T14:00:01+02:00", 1),
        ("2026-03-02T11:59", "2026-03-02T12:01", 1),
        ("2026-03-02", "2026-03-02", 0),
        ("0001-01-01", "9999-12-31", 5),
    ],
)
async def test_a_period_begins_with_its_first_moment_and_ends_before_its_last(
    db: Database, node: Client, since: str, until: str, found: int
) -> None:
    await some_of_each(db)

    response = await node.get(
        USAGE, params={"from": since, "to": until}, headers=await bearer(db, "acme")
    )

    by_status = {one["status"]: one["requests"] for one in response.json()["by_status"]}
    assert by_status.get("cancelled" if found <= 1 else "completed", 0) == found


async def test_what_is_no_period_is_refused(db: Database, node: Client) -> None:
    operator = await bearer(db, "acme", "operator")
    for name, wrong in (
        ("from", "yesterday"),
        ("from", "2026-13-01"),
        ("to", ""),
        ("to", "2026-03-01T12:00:00 01:00"),
        ("from", "0001-01-01T00:00:00+14:00"),
        ("from", "12-01\N{ARABIC-INDIC DIGIT ONE}"),
        ("format", "xml"),
        ("by", "week"),
        ("tenant", "a/b"),
        ("tenant", "\u65e5\u672c"),
        ("tenant", "**"),
        ("tenant", ""),
    ):
        for form in ({}, {"Accept": "text/csv"}):
            response = await node.get(USAGE, params={name: wrong}, headers=operator | form)
            assert assert_problem(response, 422)["detail"].startswith(name), wrong
    for turned in ({"from": "2026-03-02", "to": "2026-03-01"}, {"from": "2999-01-01"}):
        response = await node.get(USAGE, params=turned, headers=operator)
        assert assert_problem(response, 422)["detail"].startswith("from must not be later than to")


async def many(db: Database, tenant: str, count: int, day: str = "2026-03-05") -> None:
    """So many records of one tenant, all but a few settled at the same moment."""
    await db.write(
        "INSERT INTO meter SELECT %s, CONCAT('r', a.n, '-', b.n, '-', c.n), 'completed', 1, 2, 3,"
        " TRUE, CAST(%s AS DATETIME(6)) + INTERVAL (a.n = 7) SECOND"
        f" FROM ({DIGITS}) a JOIN ({DIGITS}) b JOIN ({DIGITS}) c ORDER BY 1, 2 LIMIT %s",
        (tenant, day, count),
    )


DIGITS = " UNION ALL ".join(f"SELECT {n} AS n" for n in range(10))


async def test_a_page_begins_behind_the_last_record_also_among_those_of_one_moment(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await many(db, "acme", 1000)
    await many(db, "beta", 10)
    monkeypatch.setattr(usage, "PAGE", 7)
    period = Period(EVERYBODY, datetime(2026, 3, 1), datetime(2026, 4, 1))

    pages = [rows async for rows in by_request(db, period)]

    assert max(len(rows) for rows in pages) == 7
    ids = [(row["tenant"], row["id"]) for rows in pages for row in rows]
    assert len(ids) == len(set(ids)) == 1010


class Watched(Database):
    """The same database, which notes the most rows that one read gave."""

    def __init__(self, db: Database) -> None:
        vars(self).update(vars(db))
        self.most = 0

    async def read(self, statement: str, values: Any = ()) -> list[Row]:
        """The rows of one plain read."""
        rows = await super().read(statement, values)
        self.most = max(self.most, len(rows))
        return rows


async def test_however_much_was_metered_little_of_it_is_in_memory(db: Database) -> None:
    for tenant in ("acme", "beta", "gamma"):
        await many(db, tenant, 1000)
    await planted(db, "one-more", "completed", "2026-03-05", tenant="acme")
    watched = Watched(db)
    period = Period(EVERYBODY, datetime(1, 1, 1), datetime(9999, 1, 1))

    async def count(pages: AsyncIterator[list[Row]]) -> int:
        return sum([len(rows) async for rows in pages])

    assert await count(by_request(watched, period)) == 3001
    assert watched.most == usage.PAGE
    watched.most = 0
    assert await count(by_day(watched, period)) == 3
    assert watched.most == 1


@pytest.mark.fresh_tables
async def test_a_month_costs_what_it_holds_and_nothing_of_other_tenants_and_months(
    db: Database,
) -> None:
    for tenant, day in (("acme", "2026-03-05"), ("beta", "2026-01-05"), ("gamma", "2026-03-05")):
        await many(db, tenant, 1000, day)
    await planted(db, "only", "completed", "2026-03-05", tenant="beta")
    await db.read("ANALYZE TABLE meter")
    values = ("beta", "2026-03-01", "2026-04-01")

    async def cost(cursor: aiomysql.DictCursor, statement: str, *more: object) -> int:
        asking = await overhead(cursor)
        before = await rows_read(cursor)
        await cursor.execute(statement, (*values, *more))
        await cursor.fetchall()
        return await rows_read(cursor) - before - asking

    async with db.transaction() as cursor:
        assert await cost(cursor, usage.FIRST_RECORD) <= 5
        assert await cost(cursor, usage.ONE_DAY) <= 10
        assert await cost(cursor, usage.RECORDS, values[1], "", 1000) <= 10
        await cursor.execute(usage.NEXT_TENANT, ("acme",))
        asking = await overhead(cursor)
        before = await rows_read(cursor)
        await cursor.execute(usage.NEXT_TENANT, ("acme",))
        assert await rows_read(cursor) - before - asking <= 5


async def test_usage_needs_a_key(db: Database, node: Client) -> None:
    response = await node.get(USAGE)

    assert_problem(response, 401)
    assert re.search("Bearer pw_", response.json()["detail"])
