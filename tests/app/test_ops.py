"""Operators see what waits, who holds it and why it fails, and disturb nothing by looking."""

import logging
import re
from collections.abc import AsyncIterator, Mapping
from html import unescape
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from bench.filling import Kind, filling
from partway.app.api.access import COOKIE
from partway.app.api.sessions import begin_session
from partway.app.application import build
from partway.app.pages import ops_overview, ops_request, ops_summary, ops_today
from partway.app.pages.labels import IN_WORDS, failure_reason, format_duration
from partway.app.pages.ops import FOLLOW_SECONDS
from partway.app.pages.ops_overview import fit_segments, read_overview
from partway.app.pages.ops_summary import RequestSummary, request_path
from partway.app.pages.ops_today import TENANTS_READ
from partway.app.pages.strip import SegmentStrip
from partway.app.requests.service import RequestService
from partway.app.settings import AppSettings
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database
from partway.store.settings import DatabaseSettings
from partway.store.start import open_database
from partway.worker.lease import Lease, Ready, fail
from tests.actions import (
    Programs,
    bearer,
    claimed,
    exchanged,
    frozen,
    pass_time,
    request_row,
    submitted,
    worked,
)
from tests.browser import chromium, visit
from tests.system.test_cost_counted import counted

# HTTP is the same whichever server holds the rows.
pytestmark = pytest.mark.either_server

one_server = pytest.mark.one_server

OWN = "http://localhost"
SURE = {"sure": "yes"}


def node_of(db: Database, keyless: bool) -> httpx.AsyncClient:
    """A node on this database, asked without a socket."""
    api = build(RequestService(db, AppSettings(keyless=keyless)))
    return httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url=OWN)


@pytest.fixture
async def node(db: Database) -> AsyncIterator[httpx.AsyncClient]:
    """A node that takes everybody."""
    async with node_of(db, keyless=True) as client:
        yield client


@pytest.fixture
async def keyed(db: Database) -> AsyncIterator[httpx.AsyncClient]:
    """A node that asks for keys."""
    async with node_of(db, keyless=False) as client:
        yield client


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """A running browser."""
    async with chromium() as running:
        yield running


def text_of(response: httpx.Response) -> str:
    """What a page says, without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.text)).split())


def figures(response: httpx.Response) -> dict[str, str]:
    """The figures at the top of the page, and the facts of a request."""
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", response.text)
    return {unescape(name): re.sub(r"<[^>]+>", "", value) for name, value in pairs}


def strips(response: httpx.Response) -> dict[str, list[str]]:
    """The states of the cells of each strip, by what it says to one who does not see it."""
    found = re.findall(r'class="strip" role="img" aria-label="(.*?)">(.*?)</div>', response.text)
    return {said: re.findall(r'data-state="(\w+)"', cells) for said, cells in found}


def table(response: httpx.Response, title: str) -> list[list[str]]:
    """The rows of the table under this heading, without its head."""
    section = response.text.partition(f">{title}</h2>")[2].partition("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section.partition("<tbody>")[2], re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [
        [" ".join(unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in row] for row in cells
    ]


async def lost(db: Database, lease: Lease, owner: str, seconds: int = 5) -> None:
    """Let a lease be another's, who died, and run out so long ago."""
    await db.write(
        "UPDATE segments SET owner_id = %s, lease_until = NOW(6) - INTERVAL %s SECOND"
        " WHERE request_id = %s AND index_no = %s",
        (owner, seconds, lease.request_id, lease.index_no),
    )


async def in_every_state(db: Database, tenant: str = "acme") -> tuple[int, str]:
    """A request with a segment done, one left by a dead worker, one working, one failed, two not.

    Its deadline is the nearest but those that are overdue.
    """
    number, public_id = await submitted(db, 6, tenant=tenant)
    await worked(db, number, 1)
    dead, _, failing = await claimed(db, number, 3, lease_seconds=100, owner_id="here")
    await lost(db, dead, "gone")
    assert await fail(db, failing, "no_answer: secret words", 0, 0)
    return number, public_id


# Who may look.


async def all_calls(
    client: httpx.AsyncClient, path: str, headers: Mapping[str, str]
) -> list[httpx.Response]:
    """Each page of the operators, asked for with these headers."""
    return [
        await client.get("/ops", headers=headers),
        await client.get("/ops/find", params={"tenant": "acme", "id": "x"}, headers=headers),
        await client.get(path, headers=headers),
        await client.get(path, params={"text": "show"}, headers=headers),
        await client.get(f"{path}/cancel", headers=headers),
        await client.post(f"{path}/cancel", data=SURE, headers=headers),
    ]


@one_server
async def test_only_a_key_or_a_session_of_operators_opens_a_page(
    db: Database, keyed: httpx.AsyncClient
) -> None:
    number, public_id = await submitted(db, ["a secret"], tenant="acme")
    path = request_path("acme", public_id)
    for headers in ({}, {"Authorization": "Bearer pw_x"}, {"Cookie": f"{COOKIE}=x"}):
        for response in await all_calls(keyed, path, headers):
            assert response.status_code == 303
            assert response.headers["Location"].startswith("/login?next=%2F")
    assert (await keyed.get("/ops")).headers["Location"] == "/login?next=%2Fops"
    for response in await all_calls(keyed, path, await bearer(db, "acme")):
        assert (response.status_code, "The key does not allow this" in response.text) == (403, True)
        assert 'href="/login"' in response.text, "the way to show another key"
        assert "a secret" not in response.text
    row = await request_row(db, number)
    assert row is not None
    assert row["status"] == "active"

    operator = await bearer(db, "other", "operator")
    token = await begin_session(db, operator["Authorization"].removeprefix("Bearer "))
    for headers in (operator, {"Cookie": f"{COOKIE}={token}"}):
        for where in ("/ops", path, f"{path}/cancel"):
            assert (await keyed.get(where, headers=headers)).status_code == 200


@one_server
async def test_the_pages_stand_in_no_contract_and_in_no_cache(node: httpx.AsyncClient) -> None:
    response = await node.get("/ops")

    assert response.headers["Cache-Control"] == "no-store"
    policy = response.headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "style-src 'self'", "frame-ancestors 'none'"} < set(policy)
    assert "style=" not in response.text
    assert "<script" not in response.text
    assert "/ops" not in (await node.get("/openapi.json")).text


@one_server
async def test_a_page_moves_by_itself_only_for_who_asks_for_it(node: httpx.AsyncClient) -> None:
    still, moving = await node.get("/ops"), await node.get("/ops?follow=yes")

    assert "Refresh" not in still.headers
    assert moving.headers["Refresh"] == str(FOLLOW_SECONDS)
    assert "Stop refreshing" in moving.text
    assert "http-equiv" not in still.text + moving.text


# What there is.


async def test_progress_is_a_cell_for_each_segment_and_the_same_in_words(
    db: Database, node: httpx.AsyncClient
) -> None:
    _, first = await in_every_state(db)
    number, second = await submitted(db, 2, tenant="beta", deadline_ms=50_000)
    await pass_time(db, number, 51)

    response = await node.get("/ops")

    said = "1 of 6 done, 1 working, 1 lease run out, 2 waiting, 1 failed"
    assert strips(response) == {
        "0 of 2 done, 2 waiting": ["pending"] * 2,
        said: ["done", "expired", "processing", "failed", "pending", "pending"],
    }
    text = text_of(response)
    assert text.index(second) < text.index(first), "the nearest deadline comes first"
    assert re.search(rf"{second} of beta overdue for \d\.\d s", text)
    assert re.search(rf"{first} of acme (2\d\.\d|30\.0) s left", text)
    shown = figures(response)
    assert (shown["Active requests"], shown["Segments waiting"]) == ("2", "4")
    assert (shown["Segments working"], shown["Leases run out"]) == ("1", "1")
    assert re.fullmatch(r"5[1-9]\.\d s", shown["Oldest waiting"])
    assert "2 requests are active" in text


@pytest.mark.parametrize(
    "letters, state",
    [
        ("ddd", "done"),
        ("ppp", "pending"),
        ("ddp", "part"),
        ("drp", "processing"),
        ("drx", "expired"),
        ("fxr", "failed"),
        ("", "unread"),
    ],
)
def test_of_many_segments_a_cell_shows_what_needs_an_eye_on_it(letters: str, state: str) -> None:
    progress = SegmentStrip(300, "d" * 150 + letters + "d" * (147 if letters else 0))

    assert progress.size(100) == 3
    assert len(progress.cells(100)) == 100
    assert progress.cells(100)[50] == state
    assert SegmentStrip(301, "p" * 301).cells(100) == ["pending"] * 76
    assert SegmentStrip(0, "").text == "0 of 0 done"
    assert SegmentStrip(5, "dp").text == "at least 1 of 5 done, 1 waiting"


@one_server
async def test_nothing_at_all_is_said_so(node: httpx.AsyncClient) -> None:
    text = text_of(await node.get("/ops"))

    for said in (
        *("Nothing is active", "No request is active.", "Nobody holds a lease.", "Workers 0"),
        *("Nothing has failed", "No closed request waits", "Nothing was settled today."),
    ):
        assert said in text


async def test_leases_are_counted_by_owner_beside_what_is_known_of_it(
    db: Database, node: httpx.AsyncClient
) -> None:
    number, _ = await submitted(db, 6)
    first, second, *_ = await claimed(db, number, 5, lease_seconds=70, owner_id="here")
    await lost(db, first, "gone")
    await lost(db, second, "nobody-knows")
    ended, _ = await submitted(db, 2)
    await claimed(db, ended, 2, owner_id="straggler")
    await close(db, ended, "completed")
    for name, slots, seen_seconds in (("here", 8, 3), ("gone", 1, 50), ("idle", 4, 10)):
        await db.write(
            "INSERT INTO workers VALUES (%s, %s, NOW(6) - INTERVAL %s SECOND)",
            (name, slots, seen_seconds),
        )

    response = await node.get("/ops")

    here, gone, unknown = table(response, "Leases by owner")
    assert re.fullmatch(r"here 8 slots, seen [3-9]\.\d s ago", here[0])
    assert here[1] == "3"
    assert re.fullmatch(r"in (1 min \d+ s|\d\d\.\d s)", here[2])
    assert re.fullmatch(r"gone 1 slot, not seen for 5\d\.\d s", gone[0])
    assert gone[1] == "1 1 run out"
    assert re.fullmatch(r"[5-9]\.\d s ago", gone[2])
    assert unknown[0] == "nobody-knows not among the workers"
    assert figures(response)["Workers"] == "2 12 slots"


async def test_failures_are_counted_by_reason_without_a_word_of_a_document(
    db: Database, node: httpx.AsyncClient
) -> None:
    number, mine = await submitted(db, 6)
    leases = await claimed(db, number, 5)
    for lease, error, attempts in zip(
        leases,
        (
            *("no_answer: Dear Anna,", "no_answer: yours, Bob", "KeyError: 'Carol'"),
            *("Dear Dora, nothing came", "time limit of 3 s reached"),
        ),
        (0, 0, 3, 0, 0),
        strict=True,
    ):
        await fail(db, lease, error, 60, attempts)
    for status in ("completed", "cancelled"):
        ended, theirs = await submitted(db, 2)
        (lease, _) = await claimed(db, ended, 2)
        await fail(db, lease, "no_answer: Eve", 0, 0)
        assert await close(db, ended, status)
    late, _ = await submitted(db, 2)
    lease, _ = await claimed(db, late, 2)
    await fail(db, lease, "too_late_to_matter: Finn", 0, 3)
    await close(db, late, "completed")

    response = await node.get("/ops")

    assert [
        [row[0].split(" such as ")[0], *row[1:]] for row in table(response, "Failures by reason")
    ] == [
        ["no_answer", "4", "0"],
        [IN_WORDS, "1", "0"],
        ["time limit reached", "1", "0"],
        ["KeyError", "0", "1"],
    ]
    for name in ("Anna", "Bob", "Carol", "Dora", "Eve", "Finn"):
        assert name not in response.text
    examples = re.findall(r'<a href="(/ops/requests/default/[^"]+)" aria-label', response.text)
    assert examples[0] == request_path("default", theirs), "the newest"
    assert set(examples[1:]) == {request_path("default", mine)}


def test_a_reason_is_a_word_of_ours_or_of_the_handler_and_never_a_sentence() -> None:
    assert failure_reason(None) == ""
    assert failure_reason("failed after 3 attempts") == "no worker reported an error"
    assert (
        failure_reason("the handler's process ended with exit status 9")
        == "the handler's process ended"
    )
    assert failure_reason("TimeoutError") == "TimeoutError"
    for text in ("", "Dear Anna", "Grüße", "a" * 41, "7 of 9", "<b>", "no_answer "):
        assert failure_reason(text) == IN_WORDS


@one_server
async def test_of_more_segments_than_are_read_those_that_fit_in_are_read() -> None:
    standing = [
        RequestSummary(n, "t", "i", segments) for n, segments in enumerate((5, 100, 3, 0, 2, 1))
    ]

    assert fit_segments(standing, 10) == [0, 2, 3, 4]


@pytest.mark.parametrize(
    "seconds, said",
    [
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (61, "1 min 1 s"),
        (3600, "1 h 0 min"),
        (90_061, "1 d 1 h"),
    ],
)
def test_a_length_of_time_is_said_in_its_two_largest_units(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


async def metered(db: Database, tenant: str, name: str, billed: bool, seconds_ago: str) -> None:
    """A record of 10 characters in and 20 out, as old as the SQL says."""
    await db.write(
        "INSERT INTO meter VALUES (%s, %s, %s, 1, 10, 20, %s, " + seconds_ago + ")",
        (tenant, name, "completed" if billed else "abandoned", billed),
    )


async def test_what_was_settled_today_is_added_up_by_tenant(
    db: Database, node: httpx.AsyncClient
) -> None:
    today, yesterday = "CAST(DATE(NOW(6)) AS DATETIME(6))", "DATE(NOW(6)) - INTERVAL 1 MICROSECOND"
    await metered(db, "acme", "a", True, today)
    await metered(db, "acme", "b", True, "NOW(6)")
    await metered(db, "acme", "c", False, "NOW(6)")
    await metered(db, "acme", "old", True, yesterday)
    await metered(db, "beta", "old", True, yesterday)
    await metered(db, "gamma", "a", True, today)

    response = await node.get("/ops")

    assert table(response, "Settled today") == [
        ["acme", "3 1 not billed", "20", "40"],
        ["gamma", "1", "10", "20"],
    ]
    assert "Tenants after" not in response.text
    assert re.search(r"the last settlement was \d\.\d s ago", text_of(response))
    later = await node.get("/ops", params={"after": "acme"})
    assert table(later, "Settled today") == [["gamma", "1", "10", "20"]]
    assert table(await node.get("/ops?after=%C3%A9"), "Settled today")[0][0] == "acme"


@one_server
async def test_a_busy_tenant_is_at_least_so_much_and_many_tenants_are_pages(
    db: Database, node: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant in ("a", "b", "c", "d", "e"):
        for n in range(3):
            await metered(db, tenant, str(n), True, "NOW(6)")
    monkeypatch.setattr(ops_today, "DAY_READ", 2)
    monkeypatch.setattr(ops_today, "TENANTS_READ", 2)

    first = await node.get("/ops")
    assert [row[:2] for row in table(first, "Settled today")] == [
        ["a at least; all of it", "2"],
        ["b at least; all of it", "2"],
    ]
    assert 'href="/ops?after=b#today-title"' in first.text
    last = await node.get("/ops?after=d")
    assert [row[0] for row in table(last, "Settled today")] == ["e at least; all of it"]
    assert "Tenants after" not in last.text
    # What one page reads of all tenants together ends it too.
    monkeypatch.setattr(ops_today, "DAYS_READ", 3)
    ended = await node.get("/ops")
    assert [row[1] for row in table(ended, "Settled today")] == ["2", "1"]
    assert 'href="/ops?after=b#today-title"' in ended.text


async def test_what_is_closed_and_not_settled_is_counted_with_the_age_of_its_oldest(
    db: Database, node: httpx.AsyncClient
) -> None:
    for seconds, status in ((100, "completed"), (400, "cancelled"), (20, "abandoned")):
        number, _ = await submitted(db, 1)
        assert await close(db, number, status)  # type: ignore[arg-type]  # one of the three
        await pass_time(db, number, seconds)
    await submitted(db, 1)

    shown = figures(await node.get("/ops"))

    assert shown["Closed, not settled"] == "3"
    assert shown["Oldest closed"].startswith(("6 min 4", "6 min 5"))


@one_server
async def test_of_what_ended_the_latest_failures_are_read_and_the_longest_wait(
    db: Database, node: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops_overview, "ENDED_READ", 1)
    for seconds in (100, 400, 50, 200):
        number, _ = await submitted(db, 1)
        (lease,) = await claimed(db, number)
        await fail(db, lease, f"after_{seconds}: x", 0, 0)
        await close(db, number, "completed")
        await pass_time(db, number, seconds)

    response = await node.get("/ops")

    assert [row[1] for row in table(response, "Failures by reason")] == ["1"]
    assert "after_50" in response.text
    assert figures(response)["Oldest closed"].startswith(("6 min 4", "6 min 5"))


# One request.


async def test_each_segment_of_a_request_tells_its_life(
    db: Database, node: httpx.AsyncClient
) -> None:
    number, public_id = await in_every_state(db)
    await db.write(
        "UPDATE segments SET error = 'busy: x', lease_until = NOW(6) + INTERVAL 70 SECOND"
        " WHERE request_id = %s AND index_no = 4",
        (number,),
    )

    response = await node.get(request_path("acme", public_id))

    lives = re.findall(r'<li id="s\d" data-state="(\w+)">(.*?)</li>', response.text, re.DOTALL)
    words = [" ".join(unescape(re.sub(r"<[^>]+>", " ", life)).split()) for _, life in lives]
    assert [state for state, _ in lives] == [
        *("done", "expired", "processing", "failed", "pending", "pending"),
    ]
    assert words[0] == "1 done attempt 1 by tester · 2 characters in, 2 out"
    assert re.fullmatch(
        r"2 lease run out attempt 1 by gone · lease ran out [5-9]\.\d s ago · 2 characters in",
        words[1],
    )
    assert re.search(r"working attempt 1 by here · lease ends in 1 min \d+ s · 2", words[2])
    assert words[3] == "4 failed attempt 1 by here · 2 characters in no_answer"
    assert re.search(
        r"waiting no attempt · again in (1 min \d+|\d\d\.\d) s · 2 .* in busy$", words[4]
    )
    assert words[5] == "6 waiting no attempt · 2 characters in"
    facts = figures(response)
    assert (facts["Status"], facts["Number in the rows and logs"]) == ("active", str(number))
    assert "1 of 6 done, 1 working, 1 lease run out, 2 waiting, 1 failed" in strips(response)


async def test_after_the_close_it_tells_what_the_answer_knew_of_each_segment(
    db: Database, node: httpx.AsyncClient
) -> None:
    number, public_id = await submitted(db, 4)
    await worked(db, number, 1)
    late, _ = await claimed(db, number, 2)
    assert await close(db, number, "cancelled")
    await exchanged(db, [Ready(late, "late")])
    due, theirs = await submitted(db, 1)
    await close(db, due, "completed")

    response = await node.get(request_path("default", public_id))

    assert "It was closed as cancelled" in response.text
    assert strips(response) == {
        "2 of 4 done, 1 working, 1 cancelled": ["done", "done", "processing", "cancelled"]
    }
    text = text_of(response)
    assert "2 characters in, 4 out · at the close: working" in text
    assert "4 cancelled no attempt · 2 characters in" in text
    assert text.count("at the close") == 1
    assert "Cancel this request" not in text
    other = await node.get(request_path("default", theirs))
    assert strips(other) == {"0 of 1 done, 1 timed out": ["timed_out"]}


@one_server
async def test_texts_and_errors_are_shown_only_to_who_asks_for_them(
    db: Database, node: httpx.AsyncClient
) -> None:
    number, public_id = await submitted(db, ["My source.", "My other."], params='{"my": "param"}')
    first, second = await claimed(db, number, 2)
    await exchanged(db, [Ready(first, "My result.")])
    await fail(db, second, "odd: My error.", 0, 0)
    path = request_path("default", public_id)

    hidden = (await node.get("/ops")).text + (await node.get(path)).text
    hidden += (await node.get(f"{path}/cancel")).text + (await node.get(f"{path}?text=yes")).text
    shown = (await node.get(path, params={"text": "show"})).text

    assert "My" not in hidden
    assert "They are the caller&#39;s own" in hidden or "They are the caller's own" in hidden
    for text in ("My source.", "My other.", "My result.", "odd: My error."):
        assert text in shown
    assert "my" not in re.sub(r"<[^>]+>", "", shown).split()


def test_a_statement_names_no_text_but_the_one_that_is_asked_for_texts() -> None:
    statements = {
        name: value
        for module in (ops_overview, ops_request, ops_summary, ops_today)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and value.lstrip().startswith("SELECT")
    }
    assert len(statements) > 10
    measured = re.compile(
        r"CHAR_LENGTH\((source|result)\)|SUBSTRING_INDEX\(error, ':', 1\)|error IS NOT NULL"
    )
    texts = re.compile(r"\b(source|result|error|params|gaps|\*)\b")
    named = [name for name, sql in statements.items() if texts.search(measured.sub("", sql))]

    assert named == ["TEXTS"]
    one_request = [name for name, sql in statements.items() if "public_id = %s" in sql]
    assert all("tenant = %s" in statements[name] for name in one_request)


@one_server
async def test_a_long_request_comes_in_pages(db: Database, node: httpx.AsyncClient) -> None:
    number, public_id = await submitted(db, 1001)
    await worked(db, number, 2)
    path = request_path("default", public_id)

    def indexes(page: httpx.Response) -> list[int]:
        return [int(index) for index in re.findall(r'<li id="s(\d+)"', page.text)]

    first = await node.get(path)
    assert indexes(first) == list(range(1000))
    assert "Segments 1 to 1,000 of 1,001" in text_of(first)
    assert len(strips(first)["2 of 1,001 done, 999 waiting"]) == 334
    assert f'href="{path}?first=1000"' in first.text
    rest = await node.get(path, params={"first": 1000})
    assert indexes(rest) == [1000]
    assert f'href="{path}?first=0"' in rest.text
    texts = await node.get(path, params={"first": 900, "text": "show"})
    assert indexes(texts) == list(range(900, 1000))
    assert f'href="{path}?first=1000&amp;text=show"' in texts.text
    for none in ("5000", "999999999"):
        assert "There is none from here on" in (await node.get(path, params={"first": none})).text
    for odd in ("-1", "x", "²", "9" * 30):
        assert indexes(await node.get(path, params={"first": odd}))[0] == 0


async def test_a_settled_request_shows_what_was_metered(
    db: Database, node: httpx.AsyncClient
) -> None:
    number, public_id = await submitted(db, ["One.", "Two."], tenant="acme")
    await worked(db, number, 1)
    await close(db, number, "completed")
    assert await settle(db, number, 0) == "settled"

    response = await node.get(request_path("acme", public_id))

    assert response.status_code == 200
    assert "This request is settled" in response.text
    facts = figures(response)
    assert (facts["Segments"], facts["Characters in"], facts["Billed"]) == ("1", "4", "yes")
    for method in ("GET", "POST"):
        again = await node.request(
            method, f"{request_path('acme', public_id)}/cancel", data=SURE, follow_redirects=True
        )
        assert "This request is settled" in again.text


@one_server
async def test_a_request_is_found_by_its_tenant_and_id_and_is_nobody_elses(
    db: Database, node: httpx.AsyncClient
) -> None:
    await submitted(db, 1, tenant="acme", public_id="mine")
    found = await node.get("/ops/find", params={"tenant": " acme ", "id": "mine\t"})
    assert (found.status_code, found.headers["Location"]) == (303, "/ops/requests/acme/mine")

    for tenant, public_id in (("beta", "mine"), ("acme", "other"), ("acme", "Mine"), ("é", "mine")):
        response = await node.get(request_path(tenant, public_id))
        assert (response.status_code, "no such request" in response.text) == (404, True)
    for path in ("/ops/find", "/ops/find?tenant=acme", "/ops/find?tenant=%C3%A9&id=%00"):
        response = await node.get(path)
        assert response.status_code == 404
        assert 'action="/ops/find"' in response.text
    assert (await node.get("/ops/requests/acme/mine%00/cancel")).status_code == 404


# Cancelling.


@one_server
async def test_a_cancel_needs_a_form_that_was_sent_from_here_by_one_who_was_asked(
    db: Database, node: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "partway.app")
    number, public_id = await submitted(db, 3, tenant="acme")
    await worked(db, number, 1)
    path = f"{request_path('acme', public_id)}/cancel"

    async def status() -> str:
        row = await request_row(db, number)
        assert row is not None
        return str(row["status"])

    question = await node.get(path)
    assert "What is done stays in the answer and is billed." in question.text
    assert "1 of 3 done, 2 waiting" in question.text
    assert f'<form class="actions" method="post" action="{path}">' in question.text
    for content in ({}, {"sure": "no"}, {"sure": ["yes", "yes"]}):
        response = await node.post(path, data=content)
        assert (response.status_code, response.headers["Location"]) == (303, path)
    assert (await node.post(path, json=SURE)).status_code == 303
    for headers, refused in (
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ({"Host": "evil.example"}, 421),
    ):
        assert (await node.post(path, data=SURE, headers=headers)).status_code == refused
    assert await status() == "active"
    assert "cancelled by" not in caplog.text

    response = await node.post(path, data=SURE, headers={"Origin": OWN})

    assert (response.status_code, response.headers["Location"]) == (303, path[: -len("/cancel")])
    assert await status() == "cancelled"
    (said,) = [r for r in caplog.records if r.message == "request cancelled by an operator"]
    named = {"request_id": public_id, "tenant": "acme", "request_no": number, "segments": 3}
    assert named.items() <= vars(said).items()
    again = await node.post(path, data=SURE)
    assert again.status_code == 303
    assert caplog.text.count("cancelled by an operator") == 1


@one_server
async def test_the_form_of_a_session_is_guarded_too(db: Database, keyed: httpx.AsyncClient) -> None:
    number, public_id = await submitted(db, 1, tenant="acme")
    operator = await bearer(db, "other", "operator")
    token = await begin_session(db, operator["Authorization"].removeprefix("Bearer "))
    session = {"Cookie": f"{COOKIE}={token}"}
    path = f"{request_path('acme', public_id)}/cancel"

    foreign = await keyed.post(path, data=SURE, headers=session | {"Origin": "http://evil.example"})
    own = await keyed.post(path, data=SURE, headers=session | {"Origin": OWN})

    assert (foreign.status_code, own.status_code) == (403, 303)
    row = await request_row(db, number)
    assert row is not None
    assert row["status"] == "cancelled"


async def test_what_is_final_is_not_cancelled_and_nobody_waits_for_its_settlement(
    db: Database, url: str, node: httpx.AsyncClient
) -> None:
    number, public_id = await submitted(db, 1)
    await worked(db, number, 1)
    await close(db, number, "completed")
    path = request_path("default", public_id)
    before = await request_row(db, number)

    async with frozen(url, ("SELECT id FROM requests WHERE id = %s FOR UPDATE", (number,))):
        question = await node.get(f"{path}/cancel")
        response = await node.post(f"{path}/cancel", data=SURE)

    assert (question.status_code, question.headers["Location"]) == (303, path)
    assert (response.status_code, response.headers["Location"]) == (303, path)
    assert await request_row(db, number) == before


# What it costs.


@pytest.fixture
async def one(url: str) -> AsyncIterator[Database]:
    """A fresh database behind a single connection, which counts all that is done with it."""
    async with open_database(DatabaseSettings(database_url=url, pool_size=1)) as db:
        yield db


async def grown(one: Database, requests: int, segments: int) -> None:
    """So many requests more of each kind, of fifty tenants."""
    kinds: tuple[Kind, ...] = ("waiting", "done", "cancelled")
    for kind in kinds:
        for together in filling(kind, requests, segments, tenants=50, characters=40):
            for statement, values in together:
                await one.write(statement, values)


async def held(one: Database) -> None:
    """Each active segment is worked on again after it has failed, by one of many workers."""
    await one.write(
        "UPDATE segments s JOIN requests r ON r.id = s.request_id"
        " SET s.status = 'processing', s.error = CONCAT('odd', s.index_no),"
        "     s.owner_id = CONCAT('worker-', MOD(s.index_no, 97)),"
        "     s.lease_until = NOW(6) + INTERVAL 1 HOUR"
        " WHERE r.status = 'active' AND s.status = 'pending'"
    )
    for name in ("worker", "idle"):
        await one.write(
            "INSERT INTO workers SELECT CONCAT(%s, '-', n), 4, NOW(6) FROM numbers"
            " ON DUPLICATE KEY UPDATE slots = 4",
            (name,),
        )


async def metered_today(one: Database, records: int) -> None:
    """So many records of today, of sixty tenants."""
    await one.write(
        "INSERT INTO meter SELECT CONCAT('tenant-', MOD(n, 60)), CONCAT(%s, '-', n), 'completed',"
        " 1, 1, 1, 1, NOW(6) FROM numbers WHERE n <= %s",
        (str(records), records),
    )


# With every cap reached: two counts of requests, the segments of the active ones three times, the
# workers, and what was settled today. What the servers put aside or sort they read once or twice
# more. A third as much again is in the table: to read it once from end to end would show.
MOST_ROWS = 200_000
# A tenant of the page for each of its own, and the rest.
MOST_STATEMENTS = TENANTS_READ + 12


@pytest.mark.fresh_tables
async def test_however_many_rows_there_are_the_page_reads_no_more_than_so_many(
    one: Database,
) -> None:
    found = {}
    for requests, segments, records in ((7, 100, 500), (127, 100, 5_000), (10_000, 1, 9_999)):
        await grown(one, requests, segments)
        await held(one)
        await metered_today(one, records)
        count = (await one.read("SELECT COUNT(*) AS n FROM segments"))[0]["n"]
        # Twice, for a server that knows more of its tables may choose another plan.
        found[count, "as it grew"] = await counted(one, read_overview(one, ""))
        await one.read("ANALYZE TABLE requests, segments, meter, workers")
        found[count, "analysed"] = await counted(one, read_overview(one, ""))
    assert [count for count, when in found if when == "analysed"] == [2_100, 40_200, 70_200]
    assert {cost: rows for cost, (rows, _) in found.items() if rows > MOST_ROWS} == {}
    assert {statements for _, statements in found.values()} == {MOST_STATEMENTS}

    seen = await read_overview(one, "")
    assert seen.headline == "10,000 or more requests are active"
    assert (str(seen.closed), str(seen.segments["processing"])) == (
        *("10,000 or more", "10,000 or more"),
    )
    assert (len(seen.shown), seen.read, len(seen.owners)) == (50, 100, 50)


@one_server
async def test_of_a_request_that_is_too_long_to_be_read_the_beginning_is_read(
    one: Database,
) -> None:
    number, public_id = await submitted(one, 12_000)
    await worked(one, number, 1)
    await submitted(one, 2)
    async with node_of(one, keyless=True) as node:
        page, overview = await node.get(request_path("default", public_id)), await node.get("/ops")

    ((said, cells),) = strips(page).items()
    assert said == "at least 1 of 12,000 done, 9,999 waiting"
    assert (cells[0], cells[415], cells[-1], len(cells)) == ("part", "pending", "unread", 500)
    assert "Its 12,000 segments are too many to be read here." in overview.text
    assert strips(overview) == {"0 of 2 done, 2 waiting": ["pending"] * 2}
    assert figures(overview)["Segments waiting"] == "2 or more"
    assert figures(overview)["Oldest waiting"].endswith(" s or more")


# How it is used, in a real browser.


EVIL = "<img src=x onerror='window.ran = 1'>\"'</script><script>window.ran = 1</script>{{ 7 * 7 }}"
# Such a name cannot be given to anything, save by hand; a path has no room for its slashes.
ODD = EVIL.partition("/")[0]


@pytest.fixture
async def paths(db: Database) -> dict[str, str]:
    """The path of a page of each kind, with what strangers may have put into the rows."""
    _, everything = await in_every_state(db)
    number, evil = await submitted(db, [EVIL, EVIL], tenant="e" * 64, public_id="x" * 64)
    first, second = await claimed(db, number, 2, owner_id="w" * 64)
    await exchanged(db, [Ready(first, EVIL)])
    await fail(db, second, EVIL, 0, 0)
    number, _ = await submitted(db, 1, tenant="odd", public_id="odd")
    await claimed(db, number, owner_id="odd")
    await db.write("UPDATE segments SET owner_id = %s WHERE owner_id = 'odd'", (ODD,))
    await db.write(
        "UPDATE requests SET tenant = %s, public_id = %s WHERE id = %s",
        (ODD, ODD, number),
    )
    await submitted(db, 130, public_id="long")
    ended, _ = await submitted(db, 2, public_id="ended")
    await worked(db, ended, 1)
    await close(db, ended, "cancelled")
    settled, _ = await submitted(db, 1, public_id="settled")
    await worked(db, settled, 1)
    await close(db, settled, "completed")
    await settle(db, settled, 0)
    await metered(db, ODD, ODD, True, "NOW(6)")
    await db.write("INSERT INTO workers VALUES ('here', 4, NOW(6) - INTERVAL 1 MINUTE)")
    texts = request_path("e" * 64, evil)
    return {
        "overview": "/ops",
        "states": request_path("acme", everything),
        "texts": f"{texts}?text=show",
        "ended": request_path("default", "ended"),
        "settled": request_path("default", "settled"),
        "unknown": request_path(ODD, ODD),
        "find": f"/ops/find?tenant={quote(EVIL)}&id={quote(EVIL)}",
        "cancel": f"{request_path('acme', everything)}/cancel",
    }


@one_server
async def test_no_page_has_a_fault_that_axe_finds_nor_goes_beyond_320_pixels(
    programs: Programs, browser: Browser, paths: dict[str, str]
) -> None:
    node = await programs.app()
    found = {}
    for scheme, width, names in (
        ("light", 320, tuple(paths)),
        # Other colours, of which these have all.
        ("dark", 1100, ("overview", "states", "texts", "cancel")),
    ):
        look: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 640}}
        async with visit(browser, str(node.base_url), expected=("404",), **look) as page:
            for name in names:
                await page.goto(paths[name])
                violations = (await Axe().run(page)).response["violations"]
                faults = [(fault["id"], fault["nodes"][0]["html"]) for fault in violations]
                wide = await page.evaluate("document.documentElement.scrollWidth")
                if faults or wide != width:
                    found[name, scheme] = faults, wide
    assert found == {}


@one_server
async def test_what_anybody_wrote_is_text(
    programs: Programs, browser: Browser, paths: dict[str, str]
) -> None:
    node = await programs.app()
    async with visit(browser, str(node.base_url), expected=("404",)) as page:
        for path in paths.values():
            await page.goto(path)
            assert await page.locator("img, script").count() == 0
            assert await page.evaluate("window.ran") is None
        await page.goto(paths["texts"])
        for part in (".source", ".result", ".why"):
            assert EVIL in await page.locator(part).all_text_contents()
        await page.goto("/ops")
        for title in ("Leases by owner", "Settled today"):
            shown = page.get_by_role("region", name=title).locator("tbody th code")
            assert ODD in await shown.all_text_contents()
        await page.get_by_role("link", name=ODD).first.click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("There is no such request")


async def focused(page: Page) -> str:
    """The name of what has the focus, which must be seen to have it."""
    outline = "e => [getComputedStyle(e).outlineStyle, getComputedStyle(e).outlineWidth]"
    holder = await page.evaluate_handle("document.activeElement")
    assert await holder.evaluate(outline) == ["solid", "3px"]
    return str(await holder.evaluate("e => e.labels?.[0]?.innerText ?? e.innerText")).strip()


async def tabbed_to(page: Page, name: str) -> list[str]:
    """What the focus has passed on its way to this, which has it then."""
    met: list[str] = []
    while name not in met:
        assert len(met) < 30, met
        await page.keyboard.press("Tab")
        met.append(await focused(page))
    return met


@one_server
async def test_an_operator_logs_in_finds_a_request_and_cancels_it_by_the_keyboard(
    db: Database, programs: Programs, browser: Browser
) -> None:
    node = await programs.app(APP_KEYLESS="off")
    number, public_id = await submitted(db, 3, tenant="acme", deadline_ms=50_000)
    await worked(db, number, 1)
    key = (await bearer(db, "other", "operator"))["Authorization"].removeprefix("Bearer ")
    async with visit(browser, str(node.base_url)) as page:
        await page.goto("/ops")
        await tabbed_to(page, "Key")
        await page.keyboard.type(f"{key}\n")
        await expect(page.get_by_role("heading", level=1)).to_have_text("1 request is active")
        assert await tabbed_to(page, "Tenant") == [
            *("Skip to the content", "Partway", "Log out", "Refresh", "Refresh every 5 s"),
            "Tenant",
        ]
        assert await page.get_by_label("Tenant").input_value() == "acme", "the only one"
        await page.keyboard.press("Tab")
        await page.keyboard.type(f"{public_id}\n")
        said = "1 of 3 done, 2 waiting"
        await expect(page.get_by_role("heading", level=1)).to_have_text(said)
        await tabbed_to(page, "Cancel this request …")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Cancel this request?")
        await tabbed_to(page, "Cancel the request")
        await page.keyboard.press("Space")
        await expect(page.get_by_role("heading", level=1)).to_have_text("1 of 3 done, 2 cancelled")
        await expect(page.get_by_role("link", name="Cancel this request")).to_have_count(0)

    row = await request_row(db, number)
    assert row is not None
    assert row["status"] == "cancelled"
    assert "request cancelled by an operator" in node.program.said()
