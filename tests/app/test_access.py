"""A call is answered for the tenant whose key it shows, and for nobody else."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiomysql
import httpx
import pytest

from partway.app.api.access import COOKIE, FIND_KEY, digest
from partway.app.api.keys import revoke_key
from partway.app.api.sessions import begin_session
from partway.app.application import build
from partway.app.requests.service import RequestService
from partway.app.settings import AppSettings
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database, Row
from tests.actions import (
    Client,
    Programs,
    bearer,
    claimed,
    raw_call,
    request_row,
    submitted,
    wait_until,
    worked,
    written,
)
from tests.app.test_http_api import JSON, REQUESTS, assert_problem, nothing_is_stored
from tests.store.test_start import endings

# A key is found by one read, whichever server holds the rows.
pytestmark = pytest.mark.one_server

BODY: dict[str, Any] = {"document": "One. Two.", "deadline_ms": 50_000}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}

# Every route that is anybody's, with a body where it takes one.
CALLS = [
    ("POST", REQUESTS),
    ("PUT", f"{REQUESTS}/mine"),
    ("GET", f"{REQUESTS}/mine"),
    ("DELETE", f"{REQUESTS}/mine"),
    ("GET", f"{REQUESTS}/mine/events"),
    ("GET", "/v1/limits"),
    ("GET", "/v1/usage"),
]


@pytest.fixture
async def node(programs: Programs) -> Client:
    """A node as it is shipped: it asks for keys."""
    return await programs.app(APP_KEYLESS="off")


def key_in(headers: Mapping[str, str]) -> str:
    """The key in these headers."""
    return headers["Authorization"].removeprefix("Bearer ")


async def revoked(db: Database, headers: Mapping[str, str]) -> None:
    """Revoke the key in these headers."""
    await revoke_key(db, digest(key_in(headers)).hex())


@pytest.fixture
async def unknown(db: Database) -> list[dict[str, str]]:
    """What a call may show that makes it nobody's."""
    good = await bearer(db, "acme")
    ended = await bearer(db, "acme")
    await revoked(db, ended)
    key = key_in(good)
    shown = (
        *("", "Bearer", "Bearer x", f"Basic {key}", key, f"Bearer {key}x"),
        *(f"Bearer {key[:-1]}", f"Bearer {key.swapcase()}", f"Bearer {digest(key).hex()}"),
        f"Bearer \xe9{key}",
    )
    cookies = (key, "x", "", digest(key).hex())
    return [
        {},
        ended,
        *({"Authorization": one} for one in shown),
        *({"Cookie": f"{COOKIE}={one}"} for one in cookies),
    ]


@pytest.mark.parametrize("method, path", CALLS)
async def test_whoever_is_not_known_starts_nothing_and_reads_nothing(
    db: Database, node: Client, unknown: list[dict[str, str]], method: str, path: str
) -> None:
    standing, _ = await submitted(db, 1, tenant="acme", public_id="mine")
    for headers in unknown:
        # No larger body may be needed to be told so.
        sent = [(k.encode(), v.encode("latin-1")) for k, v in (JSON | headers).items()]
        response = await node.request(method, path, content=b"{", headers=sent)

        said = assert_problem(response, 401)
        assert said["type"] == "urn:partway:problem:unauthorized"
        assert response.headers["WWW-Authenticate"] == "Bearer"
    rows = await db.read("SELECT id, status FROM requests")
    assert rows == [{"id": standing, "status": "active"}]


async def test_health_and_the_contract_need_no_key(node: Client) -> None:
    for path in ("/livez", "/readyz", "/metrics", "/openapi.json"):
        assert (await node.get(path)).status_code == 200


@pytest.mark.parametrize("method, path", CALLS[:6])
async def test_a_key_of_operators_does_not_send_documents(
    db: Database, node: Client, method: str, path: str
) -> None:
    operator = await bearer(db, "acme", "operator")

    response = await node.request(method, path, json=BODY, headers=operator)

    assert assert_problem(response, 403)["type"] == "urn:partway:problem:forbidden"
    assert await nothing_is_stored(db)


async def test_a_request_belongs_to_the_tenant_of_its_key(
    db: Database, node: Client, programs: Programs
) -> None:
    await programs.worker(SLEEP_SECONDS=0)
    both = await bearer(db, "acme", "requests", "operator")
    for headers in (await bearer(db, "acme"), both, {"authorization": f"BEARER  {key_in(both)}"}):
        response = await node.post(REQUESTS, json=BODY, headers=headers)
        assert response.json()["status"] == "completed"

    assert {row["tenant"] for row in await db.read("SELECT tenant FROM requests")} == {"acme"}


async def test_a_key_that_is_revoked_ends_at_once_on_every_node(
    db: Database, node: Client, programs: Programs
) -> None:
    other = await programs.app(APP_KEYLESS="off")
    mine = await bearer(db, "acme")
    assert (await node.get("/v1/limits", headers=mine)).status_code == 200
    assert (await other.get("/v1/limits", headers=mine)).status_code == 200

    await revoked(db, mine)

    for one in (node, other):
        assert_problem(await one.get("/v1/limits", headers=mine), 401)


async def test_a_key_is_stored_nowhere_and_said_nowhere(
    db: Database, node: Client, programs: Programs
) -> None:
    await programs.worker(SLEEP_SECONDS=0)
    mine = await bearer(db, "acme")
    key = key_in(mine)
    texts = []
    for headers in (mine, {"Authorization": f"Bearer {key}x"}, {"Authorization": key}):
        texts.append((await node.post(REQUESTS, json=BODY, headers=headers)).text)
    for form in (f"key={key}", f"key={key}x"):
        response = await node.post("/login", content=form, headers=FORM)
        texts.append(response.text + str(response.headers))
    unreadable = f"GET {key} HTTP/1.1\r\nAuthorization {key}\r\n\r\n"
    async with raw_call(node, unreadable.encode()) as (reader, _):
        texts.append((await reader.read()).decode())

    for table in ("access_keys", "sessions", "requests", "segments", "allowances"):
        texts.append(str(await db.read(f"SELECT * FROM {table}")))
    texts += [program.said() for program in programs.all]
    assert key[3:20] not in "".join(texts)


# Sessions of a browser.


async def logged_in(node: Client, headers: Mapping[str, str], **more: str) -> httpx.Response:
    """The answer to a key in the form; its cookie is not kept by the client."""
    response = await node.post("/login", data={"key": key_in(headers), **more}, headers=FORM)
    node.cookies.clear()
    return response


def cookie_of(response: httpx.Response) -> dict[str, str]:
    """The header with which a browser sends back what it was given."""
    return {"Cookie": response.headers["Set-Cookie"].split(";")[0]}


async def test_a_key_becomes_a_session_that_no_script_reads_and_no_other_site_sends(
    db: Database, node: Client
) -> None:
    response = await logged_in(node, await bearer(db, "acme"))

    assert (response.status_code, response.headers["Location"]) == (303, "/")
    name, *attributes = response.headers["Set-Cookie"].split("; ")
    assert re.fullmatch(f"{COOKIE}=[A-Za-z0-9_-]{{43}}", name)
    assert {word.lower() for word in attributes} == {
        *("httponly", "samesite=strict", "path=/", "max-age=43200"),
    }
    shown = await node.get("/v1/limits", headers=cookie_of(response))
    assert shown.status_code == 200


async def test_behind_tls_a_session_is_for_tls_only(db: Database, node: Client) -> None:
    mine = await bearer(db, "acme")
    host = f"{node.base_url.host}:{node.base_url.port}"

    response = await node.post(
        "/login", data={"key": key_in(mine)}, headers={"Origin": f"https://{host}"}
    )

    assert "; Secure" in response.headers["Set-Cookie"]


@pytest.mark.parametrize("how", ["logout", "revoked", "old"])
async def test_a_session_ends(db: Database, node: Client, how: str) -> None:
    mine = await bearer(db, "acme")
    first, second = await logged_in(node, mine), await logged_in(node, mine)
    for one in (first, second):
        assert (await node.get("/v1/limits", headers=cookie_of(one))).status_code == 200

    if how == "logout":
        ended = await node.post("/logout", headers=cookie_of(first))
        assert (ended.status_code, ended.headers["Location"]) == (303, "/")
        assert f'{COOKIE}=""' in ended.headers["Set-Cookie"]
    elif how == "revoked":
        await revoked(db, mine)
    else:
        await db.write(
            "UPDATE sessions SET created_at = NOW(6) - INTERVAL 12 HOUR WHERE hash = %s",
            (digest(cookie_of(first)["Cookie"].partition("=")[2]),),
        )

    assert_problem(await node.get("/v1/limits", headers=cookie_of(first)), 401)
    other = await node.get("/v1/limits", headers=cookie_of(second))
    assert other.status_code == (401 if how == "revoked" else 200)


async def test_a_key_that_is_shown_counts_more_than_a_session(db: Database, node: Client) -> None:
    session = cookie_of(await logged_in(node, await bearer(db, "acme", "operator")))

    both = await node.get("/v1/limits", headers=session | await bearer(db, "beta"))
    wrong = await node.get("/v1/limits", headers=session | {"Authorization": "Bearer pw_x"})

    assert both.status_code == 200
    assert_problem(wrong, 401)
    assert_problem(await node.get("/v1/limits", headers=session), 403)


async def test_a_wrong_key_begins_no_session(db: Database, node: Client) -> None:
    ended = await bearer(db, "acme")
    await revoked(db, ended)
    for headers in (ended, {"Authorization": "Bearer pw_x"}, {"Authorization": "Bearer "}):
        response = await logged_in(node, headers)
        assert_problem(response, 401)
        assert "Set-Cookie" not in response.headers

        page = await node.post(
            "/login",
            data={"key": key_in(headers), "next": "/ops"},
            headers={"Accept": "text/html,application/xhtml+xml"},
        )
        assert (page.status_code, page.headers["Location"]) == (303, "/login?wrong=1&next=%2Fops")
        assert "Set-Cookie" not in page.headers
    assert await db.read("SELECT * FROM sessions") == []


async def test_only_a_form_of_a_login_is_taken(node: Client) -> None:
    assert_problem(await node.post("/login", json={"key": "x"}), 415)
    assert_problem(await node.post("/login", content="key=" + "x" * 9000, headers=FORM), 413)
    assert_problem(await node.post("/login", content=b"\xff=%FF&&key=%ff", headers=FORM), 401)


@pytest.mark.parametrize(
    "asked, goes",
    [
        ("/ops", "/ops"),
        ("/requests/a?b=c#d", "/requests/a?b=c#d"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("\\/evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\t/evil.example", "/"),
        ("/a\r\nSet-Cookie: a=b", "/"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
    ],
)
async def test_after_a_login_a_browser_stays_on_this_site(
    db: Database, node: Client, asked: str, goes: str
) -> None:
    response = await logged_in(node, await bearer(db, "acme"), next=asked)

    assert (response.status_code, response.headers["Location"]) == (303, goes)


async def test_sessions_that_are_over_are_deleted_by_the_next_login(db: Database) -> None:
    mine = key_in(await bearer(db, "acme"))
    for _ in range(3):
        assert await begin_session(db, mine)
    await db.write("UPDATE sessions SET created_at = NOW(6) - INTERVAL 13 HOUR LIMIT 2")

    assert await begin_session(db, mine)

    assert len(await db.read("SELECT * FROM sessions")) == 2


# Two tenants.


class Counting(Database):
    """The same database, which counts the statements that it is asked for."""

    def __init__(self, db: Database) -> None:
        vars(self).update(vars(db))
        self.statements: list[str] = []

    async def read(
        self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[Row]:
        """The rows of one plain read."""
        self.statements.append(statement)
        return await super().read(statement, values)

    async def write(self, statement: str, values: Sequence[Any] = ()) -> int:
        """How many rows one statement found to change."""
        self.statements.append(statement)
        return await super().write(statement, values)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[aiomysql.DictCursor]:
        """One transaction, counted as it begins."""
        self.statements.append("BEGIN")
        async with super().transaction() as cursor:
            yield cursor


async def in_every_state(db: Database, tenant: str) -> dict[str, int]:
    """Requests of this tenant's in every state, by id; 0 for one that is settled."""
    numbers = {}
    for state in ("active", "completed", "cancelled", "abandoned", "settled"):
        number, _ = await submitted(db, 2, tenant=tenant, public_id=state)
        await written(db, *await claimed(db, number, 1))
        if state in ("completed", "cancelled", "abandoned"):
            await close(db, number, state)  # type: ignore[arg-type]  # one of the three
        elif state == "settled":
            await close(db, number, "completed")
            assert await settle(db, number, 0) == "settled"
            number = 0
        numbers[state] = number
    return numbers


async def test_anothers_request_is_answered_like_an_id_that_never_was_at_the_same_cost(
    db: Database,
) -> None:
    """Neither the status nor the words nor the work that it takes tells one from the other."""
    theirs = await in_every_state(db, "acme")
    counting = Counting(db)
    api = httpx.ASGITransport(build(RequestService(counting, AppSettings())))
    mine = await bearer(db, "beta")
    async with httpx.AsyncClient(transport=api, base_url="http://node", headers=mine) as node:

        async def asked(method: str, path: str, public_id: str) -> tuple[Any, ...]:
            counting.statements.clear()
            response = await node.request(method, path.format(id=public_id))
            said = response.text.replace(public_id, "ID")
            return response.status_code, dict(response.headers), said, list(counting.statements)

        for method, path in (
            ("GET", "/v1/requests/{id}"),
            ("DELETE", "/v1/requests/{id}"),
            ("GET", "/v1/requests/{id}/events"),
            ("GET", "/requests/{id}"),
            ("GET", "/requests/{id}/text"),
            ("POST", "/requests/{id}/cancel"),
            ("POST", "/requests/{id}/again"),
        ):
            never = await asked(method, path, "never")
            assert (never[0], never[3][0]) == (404, FIND_KEY)
            for public_id in theirs:
                assert await asked(method, path, public_id) == never

        async def put(public_id: str) -> tuple[Any, ...]:
            counting.statements.clear()
            response = await node.put(f"{REQUESTS}/{public_id}", json=BODY | {"deadline_ms": 1})
            answer = response.json()
            alike = {k: v for k, v in answer.items() if not k.endswith("_at") and k != "id"}
            kinds = [s for s in counting.statements if "AS finished" not in s]
            return response.status_code, alike, kinds

        # The first document opens the allowance; each after it costs the same.
        await put("first")
        fresh = await put("never")
        assert (fresh[0], fresh[1]["status"]) == (200, "partial")
        for public_id in theirs:
            assert await put(public_id) == fresh

    for state, number in theirs.items():
        row = await request_row(db, number) if number else None
        status = {"settled": None}.get(state, state)
        assert (row and row["status"]) == status


async def test_the_same_id_of_two_tenants_is_two_requests(db: Database, node: Client) -> None:
    mine, theirs = await bearer(db, "acme"), await bearer(db, "beta")
    path = f"{REQUESTS}/same"
    calls = [
        asyncio.create_task(node.put(path, json={**BODY, "document": text}, headers=headers))
        for text, headers in (("Mine.", mine), ("Theirs.", theirs))
    ]

    async def both_are_there() -> list[Row]:
        rows = await db.read("SELECT id, tenant FROM requests ORDER BY tenant")
        return rows if len(rows) == 2 else []

    first, _ = await wait_until(both_are_there, "two requests")
    assert (await node.delete(path, headers=theirs)).json()["status"] == "cancelled"
    await worked(db, first["id"], 1)

    one, two = [(await call).json() for call in calls]
    assert (one["status"], one["document"]) == ("completed", "Mine.")
    assert (two["status"], two["document"]) == ("cancelled", None)


async def test_where_no_key_is_asked_everybody_is_one_tenant(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_KEYLESS="on")
    blank = {"document": " "}

    assert (await node.post(REQUESTS, json=blank)).status_code == 200
    strange = await node.post(REQUESTS, json=blank, headers={"Authorization": "Bearer pw_x"})
    assert strange.status_code == 200
    assert (await node.get("/v1/usage", params={"tenant": "*"})).status_code == 200

    assert {row["tenant"] for row in await db.read("SELECT tenant FROM requests")} == {"default"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "partway.example", ""])
async def test_without_keys_a_node_listens_to_this_machine_only(url: str, host: str) -> None:
    ((status, out, said),) = endings(url, [("app", "--host", host, "--keyless", "on")])

    assert (status, out, said.count("\n")) == (2, "", 1)
    assert said.startswith(
        "app: PARTWAY_APP_KEYLESS is on, which PARTWAY_APP_HOST allows on a loop"
    )


async def test_a_node_without_any_key_says_how_one_is_made(
    db: Database, node: Client, programs: Programs
) -> None:
    assert "partway keys create" in node.program.said()
    await bearer(db, "acme")

    again = await programs.app(APP_KEYLESS="off")

    assert "keys create" not in again.program.said()
