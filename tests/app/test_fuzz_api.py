"""Whatever is sent, the door answers as its OpenAPI document says, and keeps nothing it refused."""

import asyncio
import functools
import http.client
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from partway.app.api.contract import EXAMPLE_ANSWER, EXAMPLE_BODIES
from partway.app.application import build
from partway.app.problems import KINDS
from partway.app.requests.answer import Answer
from partway.app.requests.service import RequestService
from partway.app.requests.submission import PUBLIC_ID
from partway.app.settings import AppSettings
from partway.store.database import Database
from tests.actions import ROOT, Client, Programs, arrived, bearer, segment_rows, worked
from tests.app.test_body import JSON as ANY_JSON
from tests.app.test_body import SECRET
from tests.app.test_http_api import JSON, REQUESTS
from tests.store.test_start import endings
from tests.sweeps import sampled

# HTTP is the same whichever server holds the rows.
pytestmark = pytest.mark.either_server

# Calls end soon, and the largest body that the document allows is one that the test can send.
SHORT: dict[str, Any] = {
    "APP_MAX_DEADLINE_MS": 150,
    "APP_POLL_SECONDS": 0.05,
    "APP_MAX_BODY_BYTES": 262_144,
    "APP_MAX_SEGMENTS": 50,
    "APP_MAX_SEGMENT_CHARACTERS": 1000,
}

# The same examples at every run of the same code.
SAME = settings(
    max_examples=sampled(150, sample=40),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.one_server
@pytest.mark.sweep
async def test_the_door_keeps_its_openapi_document(
    db: Database, programs: Programs, tmp_path: Path
) -> None:
    """Schemathesis asks, with all its checks; the exceptions stand in its settings."""
    node = await programs.app(APP_KEYLESS="off", **SHORT)
    key = await bearer(db, "acme", "requests", "operator")
    await programs.worker(concurrency=4, SLEEP_SECONDS=0, WORKER_IDLE_SECONDS=0.05)
    await programs.batch(BATCH_RETENTION_SECONDS=1, BATCH_IDLE_SECONDS=0.2)

    words = [
        *(str(Path(sys.executable).with_name("st")), "--config-file"),
        *(str(ROOT / "tests" / "schemathesis.toml"), "run", f"{node.base_url}/openapi.json"),
        *(
            "--phases",
            "examples,coverage,fuzzing,stateful",
            "--max-examples",
            sampled("20", sample="4"),
        ),
        *("--no-shrink", "--no-color", "--header", f"Authorization:{key['Authorization']}"),
    ]
    asked = await asyncio.to_thread(
        subprocess.run,
        words,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=240,
    )

    assert asked.returncode == 0, asked.stdout[-5000:] + asked.stderr[-2000:]
    assert "Selected: 10/10" in asked.stdout
    assert "Traceback" not in node.program.said()
    assert "ERROR" not in node.program.said()


def document(**limits: Any) -> dict[str, Any]:
    """The OpenAPI document of a node with these limits."""
    # Building the door touches no database.
    return build(RequestService(None, AppSettings(**limits))).openapi()  # type: ignore[arg-type]


OPERATIONS = (
    *("post_request", "put_request", "get_request", "cancel_request", "get_events"),
    *("get_limits", "get_usage", "livez", "readyz", "metrics"),
)

# Before any operation: they are answered to browsers only, and stand in no contract.
OF_BROWSERS = {"foreign-origin", "misdirected"}


def test_the_openapi_document_names_every_answer_and_every_problem() -> None:
    said = document()

    operations = {
        operation["operationId"]: operation
        for path in said["paths"].values()
        for operation in path.values()
    }
    assert tuple(operations) == OPERATIONS
    exemplified = set()
    for name, operation in operations.items():
        for status, response in operation["responses"].items():
            if int(status) < 400:
                continue
            (content,) = response["content"].items()
            assert content[0] == "application/problem+json", (name, status)
            schema = content[1]["schema"]["$ref"].rpartition("/")[2]
            assert schema == ("SettledProblem" if status == "410" else "Problem")
            headers = response.get("headers", {})
            assert ("Retry-After" in headers) == (status in ("429", "503"))
            assert ("WWW-Authenticate" in headers) == (status == "401")
            for kind, example_of_it in content[1]["examples"].items():
                assert example_of_it["value"]["status"] == int(status)
                exemplified.add(kind)
    assert exemplified == set(KINDS) - OF_BROWSERS
    assert "metered" in said["components"]["schemas"]["SettledProblem"]["required"]
    assert set(operations["put_request"]["responses"]) == {
        *("200", "202", "400", "401", "403", "410", "413", "415", "422", "429", "500", "503"),
    }
    open_to_all = {
        name for name, operation in operations.items() if operation.get("security") == []
    }
    assert open_to_all == {"livez", "readyz", "metrics"}
    assert said["security"] == [{"key": []}]
    for name, operation in operations.items():
        assert ("401" in operation["responses"]) == (name not in open_to_all)


def test_the_openapi_document_in_the_repository_is_that_of_the_program() -> None:
    kept = (ROOT / "openapi.json").read_text(encoding="utf-8")

    ((status, printed, said),) = endings(None, [("openapi",)])

    assert (status, said) == (0, "")
    assert kept == printed, "partway openapi > openapi.json"


def references(value: Any) -> set[str]:
    """Every place of the document that some part of it points to."""
    if isinstance(value, list):
        return set().union(*map(references, value))
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*map(references, value.values()))
    return set()


def test_the_openapi_document_points_to_nothing_that_is_not_there() -> None:
    said = document()

    for reference in references(said):
        inner: Any = said
        for part in reference.removeprefix("#/").split("/"):
            inner = inner[part]


def test_the_openapi_document_has_the_limits_of_its_node() -> None:
    said = document(max_deadline_ms=2000, max_segments=7, max_segment_characters=10)

    takes = said["paths"]["/v1/requests"]["post"]["requestBody"]["content"]["application/json"]
    fields = takes["schema"]["properties"]
    assert (fields["deadline_ms"]["maximum"], fields["deadline_ms"]["default"]) == (2000, 2000)
    assert fields["segments"]["anyOf"][0]["maxItems"] == 7
    assert fields["segments"]["anyOf"][0]["items"]["maxLength"] == 10
    assert fields["document"]["anyOf"][0]["maxLength"] == 70
    assert takes["examples"] == EXAMPLE_BODIES


async def test_the_examples_of_the_document_are_true(db: Database, programs: Programs) -> None:
    node = await programs.app()
    shown = document()["components"]["schemas"]["Answer"]["examples"][0]
    assert Answer.model_validate(shown) == EXAMPLE_ANSWER
    for name, body in EXAMPLE_BODIES.items():
        call = asyncio.create_task(node.put(f"{REQUESTS}/{name}", json=body["value"]))
        await worked(db, (await arrived(db, name)).id, 2)
        answer = (await call).json()
        assert answer["status"] == "completed"
        assert answer.keys() == shown.keys()


@pytest.mark.parametrize(
    "path, allowed",
    [
        (REQUESTS, "POST"),
        (f"{REQUESTS}/mine", "DELETE, GET, PUT"),
        ("/livez", "GET"),
    ],
)
async def test_a_method_that_is_not_there_is_answered_with_those_that_are(
    programs: Programs, path: str, allowed: str
) -> None:
    node = await programs.app()
    for method in ("PATCH", "TRACE", "OPTIONS", "BREW"):
        response = await node.request(method, path)

        assert (response.status_code, response.headers["Allow"]) == (405, allowed)
        assert response.headers["Content-Type"] == "application/problem+json"


def asked(node: Client, method: str, path: str, content: bytes | None = None) -> tuple[int, bytes]:
    """The status and the body of an answer; the path goes out as it is."""
    host = f"{node.base_url.host}:{node.base_url.port}"
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request(method, path, content, JSON)
        response = connection.getresponse()
        said = response.read()
        if response.status >= 400:
            assert response.headers["Content-Type"] == "application/problem+json"
            assert json.loads(said)["status"] == response.status
        return response.status, said
    finally:
        connection.close()


async def in_a_thread(property_of_it: Callable[[], None]) -> None:
    """Let Hypothesis ask from a thread, so that this one can serve."""
    await asyncio.to_thread(property_of_it)


NEARLY_MINE = st.sampled_from(
    ["Mine", "MINE", "mine ", " mine", "mine\n", "mine\0", "mi\u0307ne", "ｍine", "mine.", "./mine"]
)


async def test_any_text_as_an_id_is_refused_or_unknown_and_never_anothers(
    db: Database, programs: Programs
) -> None:
    node = await programs.app()
    body = json.dumps({"document": SECRET, "deadline_ms": 50_000}).encode()
    waiting = asyncio.create_task(node.put(f"{REQUESTS}/mine", content=body, headers=JSON))
    mine = await arrived(db, "mine")

    @SAME
    @given(st.text() | NEARLY_MINE | st.from_regex(PUBLIC_ID, fullmatch=True))
    @example("")
    @example(".")
    @example("..")
    @example("mine/")
    @example("x" * 10_000)
    @example("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"))
    def ask(public_id: str) -> None:
        if public_id == "mine":
            return
        path = f"{REQUESTS}/{quote(public_id, safe='')}"
        for method in ("GET", "DELETE", "PUT"):
            # A PUT of nothing: an id that could be one is told what is wrong with the body.
            status, said = asked(node, method, path, b"" if method == "PUT" else None)
            allowed = {400} if method == "PUT" and PUBLIC_ID.fullmatch(public_id) else {404, 422}
            assert status in allowed, (method, public_id)
            assert SECRET.encode() not in said

    await in_a_thread(ask)

    await worked(db, mine.id, 1)
    assert (await waiting).json()["document"] == SECRET
    assert len(await db.read("SELECT id FROM requests")) == 1
    assert "Traceback" not in node.program.said()


# Like a request, with anything at all in one place or another.
ALMOST_BODIES = st.fixed_dictionaries(
    {},
    optional={
        "document": st.text(max_size=20) | ANY_JSON,
        "segments": st.lists(st.text(max_size=5) | ANY_JSON, max_size=4) | st.none(),
        "language": st.sampled_from(["en", "de-AT", "", "x"]) | ANY_JSON,
        "params": st.dictionaries(st.text(max_size=3), ANY_JSON, max_size=2) | ANY_JSON,
        "deadline_ms": st.integers(-1, 3) | st.floats(0, 5) | ANY_JSON,
        "on_missing": st.sampled_from(["null", "source", "omit"]) | ANY_JSON,
        "on_disconnect": st.sampled_from(["continue", "cancel"]) | ANY_JSON,
        "more": ANY_JSON,
    },
)


async def test_any_json_as_a_body_is_answered_or_refused_and_what_is_refused_is_not_stored(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_MAX_DEADLINE_MS=5)
    taken: set[str] = set()
    statuses: set[int] = set()

    @SAME
    @given(ANY_JSON | ALMOST_BODIES, st.booleans())
    @example({"document": "a", "deadline_ms": 2.0}, True)
    @example({"document": "a\0b"}, True)
    @example({"segments": ["\0", "\ufffe", "\U0010ffff"]}, False)
    def ask(body: Any, ascii_only: bool) -> None:
        content = json.dumps(body, ensure_ascii=ascii_only).encode()
        status, said = asked(node, "POST", REQUESTS, content)
        statuses.add(status)
        assert status in (200, 400, 422), body
        if status == 200:
            taken.add(json.loads(said)["id"])

    await in_a_thread(ask)

    assert statuses >= {200, 422}
    stored = await db.read("SELECT id, public_id, segments, characters FROM requests")
    assert {row["public_id"] for row in stored} == taken
    for row in stored:
        segments = await segment_rows(db, row["id"])
        sources = [segment["source"] for segment in segments]
        assert (len(sources), sum(map(len, sources))) == (row["segments"], row["characters"])
    assert "Traceback" not in node.program.said()


async def test_any_bytes_as_a_body_are_refused(db: Database, programs: Programs) -> None:
    node = await programs.app()
    post = functools.partial(asked, node, "POST", REQUESTS)

    @SAME
    @given(st.binary(max_size=200))
    def ask(content: bytes) -> None:
        assert post(content)[0] in (400, 422), content

    await in_a_thread(ask)

    assert await db.read("SELECT id FROM requests") == []
    assert "Traceback" not in node.program.said()
