"""A tenant that sends more than it may is told so before anything is stored, on whichever node."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from partway.app.problems import Problem
from partway.app.requests.admission import AdmissionControl
from partway.app.requests.allowance import charge, rate_headers, read_tat_microseconds, refund
from partway.app.settings import AppSettings
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database
from tests.actions import (
    Client,
    Programs,
    arrived,
    bearer,
    frozen,
    pass_time,
    submission,
    submitted,
    worked,
)
from tests.app.test_http_api import REQUESTS, assert_problem
from tests.app.test_overload import put, stored

# Ten characters, none of them white space, which is not counted.
TEN = "Say-again."


async def passed(db: Database, seconds: float) -> None:
    """Let so much time pass for every allowance."""
    await db.write(
        "UPDATE allowances SET full_at = full_at - INTERVAL %s MICROSECOND",
        (int(seconds * 1_000_000),),
    )


def rate(response: httpx.Response) -> tuple[int, int]:
    """What the answer says is left, and in how many seconds all of it is there."""
    said = re.fullmatch(r'"characters";r=(\d+);t=(\d+)', response.headers["RateLimit"])
    assert said is not None
    return int(said[1]), int(said[2])


def too_many(response: httpx.Response) -> dict[str, Any]:
    """The problem of one who has sent too much."""
    said = assert_problem(response, 429)
    assert said["type"] == "urn:partway:problem:too-many-requests"
    assert int(response.headers["Retry-After"]) >= 1
    return said


async def sent(node: Client, text: str, **headers: str) -> httpx.Response:
    """The answer to a document that nobody works on."""
    body = {"document": text, "deadline_ms": 1}
    return await node.post(REQUESTS, json=body, headers=headers)


async def test_characters_are_allowed_by_the_minute_on_all_nodes_together(
    db: Database, programs: Programs
) -> None:
    nodes = [await programs.app(APP_TENANT_CHARACTERS_PER_MINUTE=60) for _ in range(2)]
    for node in nodes:
        assert (await sent(node, TEN * 3)).status_code == 200

    for node in nodes:
        response = await sent(node, TEN * 3)
        # All is spent, one character comes back a second, and what has passed is on our side.
        assert 1 <= int(response.headers["Retry-After"]) <= 30
        assert "of 60 a minute are left" in too_many(response)["detail"]
        assert response.headers["RateLimit-Policy"] == '"characters";q=60;qu="characters";w=60'
        assert rate(response)[0] < 30
    assert await stored(db) == 2

    await passed(db, 30)
    assert (await sent(nodes[0], TEN * 3)).status_code == 200
    too_many(await sent(nodes[1], TEN * 3))


async def test_of_many_at_once_exactly_as_many_come_in_as_fit(
    db: Database, programs: Programs
) -> None:
    nodes = [await programs.app(APP_TENANT_CHARACTERS_PER_MINUTE=60) for _ in range(2)]
    # So much that what comes back while the test runs changes nothing.
    text = TEN * 3

    answers = await asyncio.gather(*(sent(nodes[n % 2], text) for n in range(40)))

    statuses = [answer.status_code for answer in answers]
    assert (statuses.count(200), statuses.count(429)) == (2, 38)
    assert await stored(db) == 2


async def test_an_answer_says_what_is_left(db: Database, programs: Programs) -> None:
    node = await programs.app(APP_TENANT_CHARACTERS_PER_MINUTE=6000)

    first, second = await sent(node, TEN), await sent(node, TEN)

    assert first.headers["RateLimit-Policy"] == '"characters";q=6000;qu="characters";w=60'
    for response in (first, second):
        left, seconds = rate(response)
        assert 5980 <= left <= 6000
        assert seconds <= 1
    assert "RateLimit" not in (await node.get(f"{REQUESTS}/none")).headers


async def test_retry_after_says_when_it_fits(db: Database, programs: Programs) -> None:
    node = await programs.app(APP_TENANT_CHARACTERS_PER_MINUTE=60)
    assert (await sent(node, TEN * 6)).status_code == 200
    response = await sent(node, TEN * 3)
    wait = int(response.headers["Retry-After"])
    assert 20 <= wait <= 30

    await passed(db, wait)

    assert (await sent(node, TEN * 3)).status_code == 200


async def test_a_document_larger_than_a_minutes_allowance_waits_for_all_of_it_and_pays_later(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_TENANT_CHARACTERS_PER_MINUTE=60)
    assert (await sent(node, TEN)).status_code == 200
    refused = await sent(node, TEN * 12)
    too_many(refused)
    assert int(refused.headers["Retry-After"]) <= 10
    await passed(db, 10)

    assert (await sent(node, TEN * 12)).status_code == 200

    response = await sent(node, ".")
    too_many(response)
    assert 50 <= int(response.headers["Retry-After"]) <= 61
    assert rate(response)[0] == 0
    await passed(db, 61)
    assert (await sent(node, ".")).status_code == 200


async def test_no_tenant_pays_for_another(db: Database, programs: Programs) -> None:
    node = await programs.app(
        APP_KEYLESS="off", APP_TENANT_CHARACTERS_PER_MINUTE=60, APP_TENANT_ACTIVE_REQUESTS=1
    )
    acme, beta = await bearer(db, "acme"), await bearer(db, "beta")
    assert (await sent(node, TEN * 6, **acme)).status_code == 200
    too_many(await sent(node, TEN * 6, **acme))
    await submitted(db, 1, tenant="acme")

    assert (await sent(node, TEN * 6, **beta)).status_code == 200


async def test_who_joins_or_comes_back_is_never_refused_and_never_charged(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_TENANT_CHARACTERS_PER_MINUTE=1200, APP_TENANT_ACTIVE_REQUESTS=1)
    first = put(node, "a", TEN * 60)
    request = await arrived(db, "a")
    owed = await read_tat_microseconds(db, "default")
    assert owed is not None

    joined = put(node, "a", TEN * 60)
    too_many(await put(node, "new", TEN))
    other_body = await put(node, "a", "Another.")
    await worked(db, request.id, request.segments)
    answers = [await first, await joined, await put(node, "a", TEN * 60)]

    assert_problem(other_body, 422)
    assert {answer.content for answer in answers} == {answers[0].content}
    assert answers[0].json()["status"] == "completed"
    assert (await read_tat_microseconds(db, "default") or 0) <= owed
    await db.write("DELETE FROM segments")
    await db.write("DELETE FROM requests")
    await db.write("INSERT INTO meter VALUES ('default', 'a', 'completed', 1, 1, 1, TRUE, NOW(6))")
    assert_problem(await put(node, "a", TEN * 60), 410)
    assert (await read_tat_microseconds(db, "default") or 0) <= owed


@pytest.mark.parametrize("where", ["requests", "meter"])
async def test_an_id_that_is_there_is_not_charged_even_for_a_moment(
    db: Database, where: str
) -> None:
    """Or somebody else of the tenant's would be refused in that moment."""
    number, _ = await submitted(db, 1, tenant="acme", public_id="mine")
    if where == "meter":
        await close(db, number, "completed")
        assert await settle(db, number, 0) == "settled"

    with pytest.raises(Problem):
        await charge(db, "acme", "mine", 30, 60)

    assert await read_tat_microseconds(db, "acme") == 0


async def test_what_nobody_used_is_not_saved_up(db: Database) -> None:
    await charge(db, "acme", "a", 60, 60)
    await passed(db, 3600)

    await charge(db, "acme", "b", 60, 60)

    with pytest.raises(Problem):
        await charge(db, "acme", "c", 60, 60)


async def test_two_puts_of_a_new_id_at_once_are_charged_once(
    db: Database, programs: Programs
) -> None:
    nodes = [await programs.app(APP_TENANT_CHARACTERS_PER_MINUTE=600_000) for _ in range(2)]
    for turn in range(5):
        name = f"twin-{turn}"
        calls = [put(nodes[n % 2], name, TEN * 600) for n in range(6)]
        request = await arrived(db, name)
        await worked(db, request.id, request.segments)
        assert {(await call).status_code for call in calls} == {200}

    owed = await read_tat_microseconds(db, "default")
    # 6,000 characters are 0.6 s; what came back meanwhile is on our side.
    assert (owed or 0) <= 5 * 600_000
    assert await stored(db) == 5


async def test_what_was_charged_in_vain_is_given_back(db: Database) -> None:
    await charge(db, "acme", "a", 30, 60)
    before = await read_tat_microseconds(db, "acme") or 0

    await charge(db, "acme", "b", 20, 60)
    await refund(db, "acme", 20, 60)

    after = await read_tat_microseconds(db, "acme") or 0
    assert before - 5_000_000 <= after <= before


async def test_a_charge_waits_for_nobody_who_stores_the_same_id(db: Database, url: str) -> None:
    """Law 10: it looks for the id without a lock, whoever holds its row."""
    new = submission(["a"], "mine")
    insert = (
        "INSERT INTO requests (tenant, public_id, body_hash, segments, characters, params,"
        " on_missing, created_at, deadline) VALUES ('acme', 'mine', %s, 1, 1, '{}', 'null',"
        " NOW(6), NOW(6))"
    )
    async with frozen(url, (insert, (new.body_hash,))):
        await asyncio.wait_for(charge(db, "acme", "mine", 1, 60), 0.9)


async def test_zero_is_no_limit(db: Database, programs: Programs) -> None:
    node = await programs.app(APP_TENANT_CHARACTERS_PER_MINUTE=0, APP_TENANT_ACTIVE_REQUESTS=0)

    response = await sent(node, TEN)

    assert response.status_code == 200
    assert "RateLimit" not in response.headers
    assert await db.read("SELECT * FROM allowances") == []
    said = (await node.get("/v1/limits")).json()
    assert said["active_requests"] == {"allowed": None, "active": 0, "left": None}
    assert said["characters_per_minute"] == {"allowed": None, "left": None, "full_in_seconds": 0}


async def test_so_many_requests_of_a_tenant_may_be_active_on_all_nodes(
    db: Database, programs: Programs
) -> None:
    nodes = [await programs.app(APP_TENANT_ACTIVE_REQUESTS=2) for _ in range(2)]
    calls = [put(nodes[0], "a"), put(nodes[1], "b")]
    first = await arrived(db, "a")
    await arrived(db, "b")
    owed = await read_tat_microseconds(db, "default")

    for node in nodes:
        for response in (await put(node, "c"), await sent(node, "Three.")):
            assert (
                "2 requests of this tenant are active; 2 are allowed"
                in too_many(response)["detail"]
            )
            # The deadline of the first of them is the latest.
            assert 1 <= int(response.headers["Retry-After"]) <= 50
    assert await stored(db) == 2
    assert (await read_tat_microseconds(db, "default") or 0) <= (owed or 0)

    await worked(db, first.id, 2)
    assert (await calls[0]).status_code == 200
    assert (await sent(nodes[0], "Three.")).status_code == 200
    await nodes[0].delete(f"{REQUESTS}/b")
    await calls[1]


async def test_what_a_node_is_about_to_store_for_a_tenant_counts_before_it_is_there(
    db: Database,
) -> None:
    room = AdmissionControl(AppSettings(tenant_active_requests=2))
    await submitted(db, 1, tenant="acme")
    await room.check(db, "acme")

    with room.storing("acme", 1):
        with pytest.raises(Problem) as refused:
            await room.check(db, "acme")
        assert refused.value.status == 429
    await room.check(db, "acme")

    await submitted(db, 1, tenant="acme")
    with pytest.raises(Problem):
        await room.check(db, "acme")
    for other in ("abba", "beta"):
        await room.check(db, other)


async def test_a_full_tenant_hears_when_its_first_request_ends(db: Database) -> None:
    room = AdmissionControl(AppSettings(tenant_active_requests=2))
    await submitted(db, 1, tenant="beta", deadline_ms=1000)
    number, _ = await submitted(db, 1, tenant="acme", deadline_ms=40_000)
    await submitted(db, 1, tenant="acme", deadline_ms=50_000)
    await pass_time(db, number, 20)

    with pytest.raises(Problem) as refused:
        await room.check(db, "acme")

    wait = refused.value.retry_after_seconds
    assert wait is not None
    assert 10 <= wait <= 20


async def test_limits_are_said_and_what_is_left_of_them(db: Database, programs: Programs) -> None:
    node = await programs.app(
        APP_TENANT_ACTIVE_REQUESTS=3,
        APP_TENANT_CHARACTERS_PER_MINUTE=60,
        APP_MAX_BODY_BYTES=5000,
        APP_MAX_SEGMENTS=50,
    )
    fresh = (await node.get("/v1/limits")).json()
    call = put(node, "a", TEN * 3)
    await arrived(db, "a")

    said = (await node.get("/v1/limits")).json()

    assert fresh["active_requests"] == {"allowed": 3, "active": 0, "left": 3}
    assert fresh["characters_per_minute"] == {"allowed": 60, "left": 60, "full_in_seconds": 0}
    assert fresh["request"] == {
        "body_bytes": 5000,
        "segments": 50,
        "segment_characters": 5000,
        "params_bytes": 16_384,
        "deadline_ms": 55_000,
    }
    assert said["active_requests"] == {"allowed": 3, "active": 1, "left": 2}
    assert 30 <= said["characters_per_minute"]["left"] <= 60
    assert said["characters_per_minute"]["full_in_seconds"] <= 30
    await node.delete(f"{REQUESTS}/a")
    await call


async def test_a_document_of_nothing_costs_nothing(db: Database, programs: Programs) -> None:
    node = await programs.app(APP_TENANT_CHARACTERS_PER_MINUTE=1)
    assert (await sent(node, "One.")).status_code == 200
    too_many(await sent(node, "One."))

    assert (await sent(node, " \n")).status_code == 200


def test_what_is_left_is_never_more_or_less_than_there_is() -> None:
    for owed, per_minute, left, seconds in (
        (0, 60, 60, 0),
        (1, 60, 59, 1),
        (59_999_999, 60, 0, 60),
        (120_000_000, 60, 0, 120),
    ):
        said: Mapping[str, str] = rate_headers(owed, per_minute)
        assert said["RateLimit"] == f'"characters";r={left};t={seconds}'
