"""A page of another site starts nothing and reads nothing, though its reader could."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from partway.app.api.access import COOKIE
from partway.app.settings import AppSettings
from partway.store.database import Database
from tests.actions import Client, Programs, bearer, raw_call, raw_request, submitted
from tests.app.test_access import cookie_of, logged_in
from tests.app.test_http_api import REQUESTS, assert_problem, nothing_is_stored
from tests.store.test_start import endings

# A call is refused before any row is asked for.
pytestmark = pytest.mark.one_server

BODY: dict[str, Any] = {"document": " ", "deadline_ms": 1}

CALLS = [
    *(("POST", REQUESTS), ("PUT", f"{REQUESTS}/new"), ("DELETE", f"{REQUESTS}/mine")),
    *(("GET", f"{REQUESTS}/mine"), ("GET", "/v1/limits"), ("GET", "/v1/usage")),
    *(("GET", f"{REQUESTS}/mine/events"), ("GET", "/"), ("GET", "/login")),
    *(("GET", "/livez"), ("GET", "/readyz"), ("GET", "/metrics"), ("GET", "/openapi.json")),
    *(("POST", "/login"), ("POST", "/logout"), ("GET", "/nowhere"), ("OPTIONS", REQUESTS)),
]

# What a name that somebody points at this machine looks like, or is made to look like.
FOREIGN_HOSTS = [
    *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example:80"),
    *("localhost:80:evil.example", "localhost@evil.example", "[::1].evil.example", "[", "", ":80"),
    *("127.0.0.1, evil.example", "localhost.", "0x7f.1", "127.1"),
]

OWN_HOSTS = ["localhost", "LocalHost:1234", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000"]

FOREIGN_ORIGINS = [
    *("http://evil.example", "null", "", "http://localhost:1", "https://localhost"),
    *("http://localhost.evil.example", "file://"),
]


@pytest.fixture
async def keyless(programs: Programs) -> Client:
    """A node that takes everybody."""
    return await programs.app(APP_KEYLESS="on")


@pytest.fixture
async def keyed(programs: Programs) -> Client:
    """A node as it is shipped, which calls itself by one name more."""
    return await programs.app(APP_KEYLESS="off", APP_HOSTS="partway.example, other.example")


async def nothing_came_of_it(db: Database, number: int) -> bool:
    """Whether the one request of the test is as it was, and alone."""
    rows = await db.read("SELECT id, status FROM requests")
    return rows == [{"id": number, "status": "active"}]


def allows_no_other_origin(response: httpx.Response) -> bool:
    """Whether no header tells a browser to let a foreign page read this."""
    return not [name for name in response.headers if name.startswith("access-control-")]


async def test_a_foreign_name_for_this_machine_reads_nothing_and_starts_nothing(
    db: Database, keyless: Client
) -> None:
    """DNS rebinding: to the browser it is the page's own site, whatever answers there."""
    number, _ = await submitted(db, 1, public_id="mine")
    for host in FOREIGN_HOSTS:
        for method, path in CALLS:
            response = await keyless.request(method, path, json=BODY, headers={"Host": host})

            said = assert_problem(response, 421)
            assert said["type"] == "urn:partway:problem:misdirected"
            assert allows_no_other_origin(response)
    assert await nothing_came_of_it(db, number)


async def test_a_call_without_any_host_is_refused(db: Database, keyless: Client) -> None:
    call = b"GET /v1/requests/mine HTTP/1.0\r\n\r\n"
    async with raw_call(keyless, call) as (reader, _):
        assert b" 421 " in await asyncio.wait_for(reader.readline(), 30)


async def test_its_own_names_are_taken(keyless: Client) -> None:
    for host in OWN_HOSTS:
        response = await keyless.post(REQUESTS, json=BODY, headers={"Host": host})
        assert response.status_code == 200, host


async def test_a_page_of_another_origin_starts_nothing_and_reads_nothing(
    db: Database, keyless: Client
) -> None:
    number, _ = await submitted(db, 1, public_id="mine")
    for origin in FOREIGN_ORIGINS:
        for method, path in CALLS:
            response = await keyless.request(method, path, json=BODY, headers={"Origin": origin})

            said = assert_problem(response, 403)
            assert said["type"] == "urn:partway:problem:foreign-origin"
            assert allows_no_other_origin(response)
    assert await nothing_came_of_it(db, number)


async def test_a_form_or_script_of_another_site_is_told_by_the_browser(
    db: Database, keyless: Client
) -> None:
    """Also where no Origin is sent, and from another port of this machine, which is `same-site`."""
    number, _ = await submitted(db, 1, public_id="mine")
    for site in ("cross-site", "same-site"):
        for method, path in CALLS:
            for mode in ("no-cors", "cors", "navigate", "websocket", None):
                if mode == "navigate" and method in ("GET", "OPTIONS"):
                    continue
                headers = {"Sec-Fetch-Site": site} | ({"Sec-Fetch-Mode": mode} if mode else {})
                response = await keyless.request(method, path, json=BODY, headers=headers)
                assert_problem(response, 403)
                assert allows_no_other_origin(response)
    assert await nothing_came_of_it(db, number)


async def test_a_form_that_needs_no_leave_of_ours_is_refused(db: Database, keyless: Client) -> None:
    """A browser sends text/plain to anybody without asking, and a form could write JSON in it."""
    host = f"{keyless.base_url.host}:{keyless.base_url.port}"
    for kind in ("text/plain", "application/json", "application/x-www-form-urlencoded"):
        headers = {"Content-Type": kind, "Origin": "http://evil.example", "Host": host}
        response = await keyless.post(REQUESTS, content=b'{"document": "a"}', headers=headers)
        assert_problem(response, 403)
    assert await nothing_is_stored(db)


async def test_a_browser_is_never_told_that_it_may(keyless: Client) -> None:
    ask = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "content-type"}
    own = f"http://{keyless.base_url.host}:{keyless.base_url.port}"
    for origin, status in (("http://evil.example", 403), (own, 405)):
        response = await keyless.options(f"{REQUESTS}/a", headers=ask | {"Origin": origin})
        assert_problem(response, status)
        assert allows_no_other_origin(response)


async def test_its_own_pages_programs_and_links_to_it_are_taken(keyless: Client) -> None:
    own = f"http://{keyless.base_url.host}:{keyless.base_url.port}"
    for headers in (
        {},
        {"Origin": own},
        {"Origin": own, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
    ):
        response = await keyless.post(REQUESTS, json=BODY, headers=headers)
        assert response.status_code == 200, headers
        assert allows_no_other_origin(response)
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert (await keyless.get("/v1/limits", headers=link)).status_code == 200


async def test_a_session_is_guarded_and_a_key_that_is_shown_is_not(
    db: Database, keyed: Client
) -> None:
    """What a browser sends by itself can be misused; a key must be known to be sent."""
    mine = await bearer(db, "acme")
    session = cookie_of(await logged_in(keyed, mine))
    for headers, status in (
        ({"Host": "evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
    ):
        for method, path in CALLS:
            response = await keyed.request(method, path, json=BODY, headers=headers | session)
            assert_problem(response, status)
        assert (await keyed.post(REQUESTS, json=BODY, headers=headers | mine)).status_code == 200
        probe = await keyed.get("/readyz", headers=headers)
        assert probe.status_code == 200


async def test_another_site_logs_nobody_in_or_out(db: Database, keyed: Client) -> None:
    """Or a user would send documents into an account of somebody else's."""
    mine = await bearer(db, "acme")
    key = mine["Authorization"].removeprefix("Bearer ")
    session = cookie_of(await logged_in(keyed, mine))
    for headers, status in (
        ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
    ):
        response = await keyed.post("/login", data={"key": key}, headers=headers)
        assert_problem(response, status)
        assert "Set-Cookie" not in response.headers
        assert_problem(await keyed.post("/logout", headers=headers | session), status)
    assert (await keyed.get("/v1/limits", headers=session)).status_code == 200


async def test_a_deployment_has_the_names_that_it_is_told(db: Database, keyed: Client) -> None:
    session = cookie_of(await logged_in(keyed, await bearer(db, "acme")))
    for host, origin in (
        ("partway.example", "https://partway.example"),
        ("Other.example:8443", "https://Other.example:8443"),
        ("partway.example", "http://partway.example"),
    ):
        headers = session | {"Host": host, "Origin": origin}
        assert (await keyed.post(REQUESTS, json=BODY, headers=headers)).status_code == 200


def test_a_name_with_more_than_a_name_is_refused_at_the_start() -> None:
    good = "mysql://me@127.0.0.1/partway"
    for wrong in ("https://partway.example", "partway.example:443", "a b", "*.example", "a/b"):
        ((status, _, said),) = endings(good, [("app",)], APP_HOSTS=wrong)
        assert status == 2
        assert said.startswith("app: PARTWAY_APP_HOSTS: must be names such as partway.example")
    assert AppSettings(hosts=" a.example,,[::1] ").host_names() == {"a.example", "[::1]"}


async def test_a_cookie_of_another_name_is_no_session(db: Database, keyed: Client) -> None:
    headers = {"Cookie": f"other{COOKIE}=x", "Host": "anything.example"}

    assert_problem(await keyed.get("/v1/limits", headers=headers), 401)


async def test_what_is_no_http_is_a_problem_too(keyless: Client) -> None:
    async with raw_call(keyless, b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n") as (reader, _):
        head, _, body = (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nContent-Type: application/problem+json\r\n" in head
    assert b"\r\nConnection: close" in head
    assert json.loads(body)["status"] == 400


async def test_what_turns_unreadable_after_its_answer_ends_the_connection(
    keyless: Client,
) -> None:
    call = raw_request("POST", REQUESTS, b"", "Transfer-Encoding: chunked", "Origin: http://evil")
    async with raw_call(keyless, call) as (reader, writer):
        assert b" 403 " in await asyncio.wait_for(reader.readline(), 30)
        writer.write(b"no chunk\r\n")

        rest = await asyncio.wait_for(reader.read(), 30)

    assert b"HTTP/1.1" not in rest
    assert "Traceback" not in keyless.program.said()
