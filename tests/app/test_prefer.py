"""A caller may come back for its answer, or wait where it reads; each request has its end."""

import asyncio
import contextlib
import signal
import time
from typing import Any

import httpx
import pytest

from partway.app.api.prefer import Preferences, read_prefer, read_quality
from partway.store.database import Database
from tests.actions import (
    WAIT_SECONDS,
    Client,
    Programs,
    arrived,
    claimed,
    pass_time,
    raw_call,
    raw_request,
    request_row,
    submitted,
    wait_until,
    worked,
)
from tests.app.test_disconnect import final, other_callers_come_and_go
from tests.app.test_http_api import REQUESTS

# How long a call waits is the door's own, whichever server holds the rows.
pytestmark = pytest.mark.one_server

MINE = f"{REQUESTS}/mine"
FAR_MS = 50_000
BODY: dict[str, Any] = {"document": "One. Two. Three.", "deadline_ms": FAR_MS}


@pytest.fixture
async def node(programs: Programs) -> Client:
    """One node of the door, as it is shipped but for a shorter poll."""
    return await programs.app(APP_POLL_SECONDS=0.05)


@pytest.mark.parametrize(
    "lines, preferences",
    [
        ([], Preferences()),
        (["respond-async"], Preferences(True)),
        (["Respond-Async, Wait=10"], Preferences(True, 10)),
        (["wait=10", "respond-async"], Preferences(True, 10)),
        (['wait = "10" ;x=1 , respond-async; foo="bar"'], Preferences(True, 10)),
        (["wait=10, wait=20"], Preferences(False, 10)),
        (["wait=0"], Preferences(False, 0)),
        (['return=minimal, foo="a, respond-async", handling'], Preferences()),
        (["foo, , ,respond-async=,"], Preferences(True)),
        (["wait=-1", "wait"], Preferences()),
        (["wait=1.5, respond-async"], Preferences(True)),
        (["wait=99999999999999999999"], Preferences()),
        (["wait=ten; respond-async"], Preferences()),
        (['"respond-async", =, ;, wait'], Preferences()),
        (["respond-asynchronously, not-wait=3"], Preferences()),
    ],
)
def test_what_is_preferred_is_read_and_the_rest_left_out(
    lines: list[str], preferences: Preferences
) -> None:
    assert read_prefer(lines) == preferences


@pytest.mark.parametrize("first", ["", "a", "a=", 'a="', "a;", 'a="\\'])
@pytest.mark.parametrize("piece", [" ", ",", "a ", "a=", '"', ";", ",a ", "\\"])
def test_a_long_header_is_read_in_no_time(first: str, piece: str) -> None:
    """The time grows with the length, not with its square: that would be minutes."""
    header = first + piece * (60_000 // len(piece)) + "("
    began = time.process_time()

    read_prefer([header])
    read_quality(header, "text/event-stream")

    assert time.process_time() - began < 5


# 202.


async def test_who_would_rather_come_back_is_answered_at_once(db: Database, node: Client) -> None:
    response = await node.post(REQUESTS, json=BODY, headers={"Prefer": "respond-async"})

    said = response.json()
    assert (response.status_code, said["status"]) == (202, "running")
    assert response.headers["Location"] == f"{REQUESTS}/{said['id']}"
    assert response.headers["Preference-Applied"] == "respond-async"
    assert response.headers["Partway-Outcome"] == "running"
    assert said["counts"]["total"] == 3
    request = await arrived(db, said["id"])
    await other_callers_come_and_go(db, node)
    await worked(db, request.id, 3)
    assert await final(db, request.id) == "completed"
    answer = await node.get(response.headers["Location"])
    assert (answer.status_code, answer.json()["document"]) == (200, BODY["document"])


async def test_nobody_asks_and_yet_it_is_closed_at_its_deadline_and_billed(
    db: Database, node: Client, programs: Programs
) -> None:
    """The batch would call it abandoned: it was computed, and its caller comes back for it."""
    await programs.batch(BATCH_GRACE_SECONDS=30, BATCH_RETENTION_SECONDS=60)
    sent = {**BODY, "deadline_ms": 700}
    response = await node.put(MINE, json=sent, headers={"Prefer": "respond-async"})
    assert response.status_code == 202
    request = await arrived(db, "mine")
    await worked(db, request.id, 1)

    assert await final(db, request.id) == "completed"
    assert (await node.get(MINE)).json()["usage"]["billed"] is True


async def test_with_a_wait_it_is_answered_after_that_or_when_it_is_done(
    db: Database, node: Client
) -> None:
    prefer = {"Prefer": "respond-async, wait=1"}
    early = await node.put(MINE, json=BODY, headers=prefer)
    request = await arrived(db, "mine")
    await worked(db, request.id, 3)
    await final(db, request.id)
    done = await node.put(MINE, json=BODY, headers=prefer)

    assert early.status_code == 202
    assert early.headers["Preference-Applied"] == "respond-async, wait=1"
    assert done.status_code == 200
    assert done.headers["Preference-Applied"] == "wait=1"
    assert "Location" not in done.headers
    assert done.json()["status"] == "completed"


async def test_a_wait_ends_with_the_request(db: Database, node: Client) -> None:
    prefer = {"Prefer": f"respond-async, wait={WAIT_SECONDS * 2:.0f}"}
    call = asyncio.create_task(node.put(MINE, json=BODY, headers=prefer))
    await worked(db, (await arrived(db, "mine")).id, 3)

    response = await asyncio.wait_for(call, WAIT_SECONDS)

    assert (response.status_code, response.json()["status"]) == (200, "completed")


async def test_without_it_a_wait_does_not_shorten_the_call(db: Database, node: Client) -> None:
    """Who cannot come back would lose its answer."""
    sent = {**BODY, "deadline_ms": 1500}

    response = await node.post(REQUESTS, json=sent, headers={"Prefer": "wait=0, unheard-of"})

    assert (response.status_code, response.json()["status"]) == (200, "partial")
    assert "Preference-Applied" not in response.headers


async def test_a_second_put_of_it_joins_and_waits(db: Database, node: Client) -> None:
    await node.put(MINE, json=BODY, headers={"Prefer": "respond-async"})
    call = asyncio.create_task(node.put(MINE, json=BODY))
    await worked(db, (await arrived(db, "mine")).id, 3)

    assert (await call).json()["document"] == BODY["document"]


async def test_events_are_worth_more_than_an_early_answer(db: Database, node: Client) -> None:
    headers = {"Prefer": "respond-async", "Accept": "text/event-stream"}

    response = await node.post(REQUESTS, json={"document": " "}, headers=headers)

    assert response.status_code == 200
    assert "event: end" in response.text


async def test_a_node_that_stops_drains_and_hands_over_what_goes_on_without_its_caller(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_POLL_SECONDS=0.05, APP_DRAIN_SECONDS=1.5)
    other = await programs.app(APP_POLL_SECONDS=0.05)
    await node.put(MINE, json=BODY, headers={"Prefer": "respond-async"})
    request = await arrived(db, "mine")

    told_at = time.monotonic()
    node.program.send(signal.SIGTERM)
    assert await node.program.ended() == 0
    assert time.monotonic() - told_at >= 1.5

    row = await request_row(db, request.id)
    assert row is not None
    assert row["status"] == "active"
    await worked(db, request.id, 3)
    assert (await other.get(MINE)).json()["status"] == "completed"
    assert "Traceback" not in node.program.said()


async def test_a_node_that_stops_still_closes_what_is_done_while_it_drains(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_POLL_SECONDS=0.05, APP_DRAIN_SECONDS=WAIT_SECONDS)
    await node.put(MINE, json=BODY, headers={"Prefer": "respond-async"})
    request = await arrived(db, "mine")

    node.program.send(signal.SIGTERM)

    async def takes_no_calls() -> bool:
        with contextlib.suppress(httpx.TransportError):
            await node.get("/livez")
            return False
        return True

    await wait_until(takes_no_calls, "the node to take no more calls")
    await worked(db, request.id, 3)

    assert await node.program.ended() == 0
    assert await final(db, request.id) == "completed"


# GET.


async def test_a_get_waits_for_the_end_as_long_as_it_likes(db: Database, node: Client) -> None:
    request_id, _ = await submitted(db, 2, public_id="mine", deadline_ms=FAR_MS)
    running = await node.get(MINE, headers={"Prefer": "wait=1"})
    call = asyncio.create_task(node.get(MINE, headers={"Prefer": f"wait={WAIT_SECONDS * 2:.0f}"}))
    await worked(db, request_id, 2)
    done = await asyncio.wait_for(call, WAIT_SECONDS)

    assert (running.status_code, running.json()["status"]) == (200, "running")
    assert running.headers["Preference-Applied"] == "wait=1"
    assert (done.status_code, done.json()["status"]) == (200, "completed")


async def test_a_get_waits_no_longer_than_to_the_deadline_and_closes_it_then(
    db: Database, node: Client
) -> None:
    request_id, _ = await submitted(db, 2, public_id="mine", deadline_ms=800)
    await worked(db, request_id, 1)

    response = await asyncio.wait_for(node.get(MINE, headers={"Prefer": "wait=3600"}), WAIT_SECONDS)

    assert response.json()["status"] == "partial"
    assert await final(db, request_id) == "completed"


async def test_a_get_that_waits_is_answered_when_its_node_stops(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_POLL_SECONDS=0.05, APP_DRAIN_SECONDS=0)
    request_id, _ = await submitted(db, 2, public_id="mine", deadline_ms=FAR_MS)
    call = raw_request("GET", MINE, b"", "Prefer: wait=3600")
    async with raw_call(node, call) as (reader, _):
        await other_callers_come_and_go(db, node)
        node.program.send(signal.SIGTERM)
        said = await asyncio.wait_for(reader.read(), WAIT_SECONDS)

    assert b"200 OK" in said.splitlines()[0]
    assert b'"status":"running"' in said
    row = await request_row(db, request_id)
    assert row is not None
    assert row["status"] == "active"


async def test_a_get_that_waits_and_leaves_cancels_nothing(db: Database, node: Client) -> None:
    request_id, _ = await submitted(db, 2, public_id="mine", deadline_ms=FAR_MS)
    async with raw_call(node, raw_request("GET", MINE, b"", "Prefer: wait=3600")):
        await other_callers_come_and_go(db, node)
    await other_callers_come_and_go(db, node)

    row = await request_row(db, request_id)
    assert row is not None
    assert row["status"] == "active"


async def test_a_get_closes_what_is_overdue_since_its_node_has_died(
    db: Database, node: Client
) -> None:
    """Law 7: the caller is there, so it is neither running on nor abandoned."""
    request_id, _ = await submitted(db, 2, public_id="mine")
    await worked(db, request_id, 1)
    await pass_time(db, request_id, 60)

    response = await node.get(MINE)

    assert response.json()["status"] == "partial"
    assert response.json()["usage"]["final"] is True
    assert await claimed(db, request_id, 2) == []
    assert await final(db, request_id) == "completed"


async def test_a_get_closes_what_has_nothing_left_to_wait_for(db: Database, node: Client) -> None:
    request_id, _ = await submitted(db, 2, public_id="mine")
    await worked(db, request_id, 2)

    assert (await node.get(MINE)).json()["status"] == "completed"
    assert await final(db, request_id) == "completed"


async def test_an_unknown_request_is_not_waited_for(node: Client) -> None:
    response: httpx.Response = await asyncio.wait_for(
        node.get(MINE, headers={"Prefer": "wait=3600"}), WAIT_SECONDS
    )

    assert response.status_code == 404
