"""The door takes what is right, refuses the rest by name, and always answers in time."""

import asyncio
import gzip
import json
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from local.server import KINDS, Server, find
from partway.app.api import routes
from partway.app.api.body import read_submission
from partway.app.application import build
from partway.app.requests.service import RequestService
from partway.app.requests.submission import Submission
from partway.app.serve import listening
from partway.app.settings import AppSettings
from partway.store.database import Database
from tests.actions import (
    WAIT_SECONDS,
    Client,
    Programs,
    arrived,
    free_port,
    meter_rows,
    raw_call,
    raw_request,
    request_row,
    wait_until,
    worked,
)
from tests.app.test_body import BAD, SECRET, body

# HTTP is the same whichever server holds the rows.
pytestmark = pytest.mark.either_server

REQUESTS = "/v1/requests"
JSON = {"Content-Type": "application/json"}

# Small enough that a test can go beyond it, large enough for every other body here.
LIMIT = 262_144

SMALL: dict[str, Any] = {
    "APP_MAX_BODY_BYTES": LIMIT,
    "APP_MAX_SEGMENTS": 50,
    "APP_MAX_SEGMENT_CHARACTERS": 100,
    "APP_MAX_PARAMS_BYTES": 1000,
    "APP_MAX_DEADLINE_MS": 60_000,
}


@pytest.fixture
async def node(programs: Programs) -> Client:
    """One node of the door, as it is shipped."""
    return await programs.app()


async def nothing_is_stored(db: Database) -> bool:
    """Whether no request and no segment is there."""
    return not await db.read("SELECT id FROM requests") and not await db.read(
        "SELECT index_no FROM segments"
    )


def assert_problem(response: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of a response."""
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    said = response.json()
    assert said["status"] == status
    assert said["type"]
    assert said["title"]
    assert said["detail"]
    assert SECRET not in response.text
    assert isinstance(said, dict)
    return said


async def test_a_post_is_split_computed_and_put_together_again(
    db: Database, node: Client, programs: Programs
) -> None:
    await programs.worker(concurrency=8, SLEEP_SECONDS=0)
    document = "  A title\r\n\r\nOne here. Two there!\tThree?\n\n\u3000第一文です。第二文です。\n"

    response = await node.post(REQUESTS, json={"document": document, "language": "ja"})

    assert response.status_code == 200
    said = response.json()
    assert (said["status"], said["document"]) == ("completed", document)
    assert response.headers["Partway-Outcome"] == "completed"
    assert response.headers["Content-Location"] == f"{REQUESTS}/{said['id']}"
    assert [s["index"] for s in said["segments"]] == list(range(said["counts"]["total"]))
    assert (await node.get(response.headers["Content-Location"])).content == response.content
    assert said["created_at"] <= said["finished_at"] <= said["deadline_at"]


async def test_what_a_real_worker_finished_by_the_deadline_is_the_answer(
    node: Client, programs: Programs
) -> None:
    await programs.worker(concurrency=1, SLEEP_SECONDS=0.5)

    response = await node.post(REQUESTS, json={"document": "Aa. Bb. Cc. Dd.", "deadline_ms": 1400})

    said = response.json()
    assert response.status_code == 200
    assert response.headers["Partway-Outcome"] == said["status"] == "partial"
    assert 1 <= said["counts"]["done"] <= 3
    assert said["counts"]["done"] + said["counts"]["timed_out"] == 4
    for segment, source in zip(said["segments"], ("Aa.", "Bb.", "Cc.", "Dd."), strict=True):
        expected = source if segment["status"] == "done" else None
        assert segment["result"] == expected
    assert said["usage"]["input_characters"] == 3 * said["counts"]["done"]


async def test_a_failed_segment_leaves_the_others_done(node: Client, programs: Programs) -> None:
    await programs.worker(concurrency=2, SLEEP_SECONDS=0)

    response = await node.post(
        REQUESTS, json={"segments": ["a", "", "b"], "params": {"seconds": "soon"}}
    )

    said = response.json()
    assert (response.status_code, said["status"]) == (200, "partial")
    assert [s["status"] for s in said["segments"]] == ["failed", "done", "failed"]
    assert said["segments"][0]["attempts"] == 1
    assert "seconds must be a number" in said["segments"][0]["error"]
    assert said["usage"] == {
        "segments": 1,
        "input_characters": 0,
        "output_characters": 0,
        "billed": True,
        "final": True,
    }


@pytest.mark.parametrize("blank", [" ", "\n\r\n\t\u3000", "\ufeff", "\u200b\u2028\x85"], ids=ascii)
async def test_a_blank_document_is_answered_at_once_and_settled_with_nothing(
    db: Database, node: Client, programs: Programs, blank: str
) -> None:
    """No worker runs here, and the deadline is far."""
    response = await node.post(REQUESTS, json={"document": blank, "deadline_ms": 50_000})

    said = response.json()
    assert (response.status_code, said["status"]) == (200, "completed")
    assert (said["document"], said["segments"], said["counts"]["total"]) == (blank, [], 0)
    await programs.batch()

    async def is_settled() -> bool:
        return bool(await meter_rows(db, said["id"]))

    await wait_until(is_settled, "the settlement")
    (record,) = await meter_rows(db, said["id"])
    assert (record["segments"], record["input_characters"]) == (0, 0)
    assert await nothing_is_stored(db)


async def test_bad_input_is_refused_and_nothing_is_stored(db: Database, programs: Programs) -> None:
    node = await programs.app(**SMALL)
    for name, (content, status, places) in BAD.items():
        for method, path in (("POST", REQUESTS), ("PUT", f"{REQUESTS}/mine")):
            response = await node.request(method, path, content=content, headers=JSON)

            said = assert_problem(response, status)
            named = [fault["pointer"] for fault in said.get("errors", [])]
            assert named == (places or []), name
            assert len(response.content) < 1000, name
    assert await nothing_is_stored(db)
    assert SECRET not in node.program.said()
    assert "Traceback" not in node.program.said()


async def test_another_content_type_is_refused(db: Database, node: Client) -> None:
    for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "multipart/form-data"}):
        assert_problem(await node.post(REQUESTS, content=body(), headers=headers), 415)
    assert await nothing_is_stored(db)


async def test_a_compressed_body_is_refused_for_what_it_is(db: Database, node: Client) -> None:
    compressed = JSON | {"Content-Encoding": "gzip"}
    refused = await node.post(REQUESTS, content=gzip.compress(body()), headers=compressed)
    assert "Content-Encoding" in assert_problem(refused, 415)["detail"]
    assert await nothing_is_stored(db)


async def test_an_id_with_bad_characters_is_refused_before_the_body_is_read(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(**SMALL)
    too_large = b" " * (LIMIT + 1)
    for bad in ("-a", "a%20b", "%C3%A9", "a%00", "x" * 65, "a%0A", "a:b", "a%2525"):
        path = f"{REQUESTS}/{bad}"
        for content in (body(), too_large):
            assert_problem(await node.put(path, content=content, headers=JSON), 422)
        assert_problem(await node.get(path), 422)
        assert_problem(await node.delete(path), 422)
    assert await nothing_is_stored(db)


async def test_what_is_not_there_is_a_problem_too(db: Database, node: Client) -> None:
    for path in ("/v1", f"{REQUESTS}/", f"{REQUESTS}/a%2Fb", f"{REQUESTS}/a/", "/v2/requests"):
        for method in ("GET", "POST", "PUT", "DELETE"):
            response = await node.request(method, path, content=body(), headers=JSON)
            assert_problem(response, 404)
    for method, path in (("GET", REQUESTS), ("PATCH", f"{REQUESTS}/a"), ("POST", "/livez")):
        response = await node.request(method, path, content=body(), headers=JSON)
        assert_problem(response, 405)
        assert response.headers["Allow"]
    assert await nothing_is_stored(db)


async def sent_in_pieces(content: bytes) -> AsyncIterator[bytes]:
    """A body of unknown length, so that it goes out in chunks without a Content-Length."""
    for start in range(0, len(content), 10_000):
        yield content[start : start + 10_000]


async def test_a_body_may_have_the_limit_and_not_a_byte_more_however_it_is_sent(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(**SMALL | {"APP_MAX_SEGMENT_CHARACTERS": LIMIT})
    # One segment and a blank that fills the body up; nothing works here, so the answer is partial.
    start = b'{"deadline_ms": 1, "segments": ["' + SECRET.encode()
    for size in (LIMIT - 1, LIMIT, LIMIT + 1):
        content = start + b"." * (size - len(start) - 3) + b'"]}'
        content = content + b" " * (size - len(content))
        for sent in (content, sent_in_pieces(content)):
            response = await node.post(REQUESTS, content=sent, headers=JSON)
            if size > LIMIT:
                assert str(LIMIT) in assert_problem(response, 413)["detail"]
            else:
                assert (response.status_code, response.json()["status"]) == (200, "partial")
    assert await db.read("SELECT COUNT(*) AS n FROM requests") == [{"n": 4}]
    assert SECRET not in node.program.said()


async def test_a_body_far_beyond_the_limit_is_not_waited_for(programs: Programs) -> None:
    node = await programs.app(**SMALL)
    announced = raw_request("POST", REQUESTS, b"{", "Content-Length: 10000000000")
    endless = raw_request("POST", REQUESTS, b"", "Transfer-Encoding: chunked")
    for content in (announced, endless + b"10000\r\n" + b" " * 65_536 + b"\r\n"):
        async with raw_call(node, content) as (reader, writer):
            if content is not announced:
                for _ in range(LIMIT // 65_536):
                    writer.write(b"10000\r\n" + b" " * 65_536 + b"\r\n")

            assert b" 413 " in await asyncio.wait_for(reader.readline(), 30)


@pytest.mark.parametrize(
    "content",
    [
        raw_request("POST", REQUESTS, b"2\r\n{}XX0\r\n\r\n", "Transfer-Encoding: chunked"),
        raw_request(
            "POST", REQUESTS, b"0\r\n\r\n", "Transfer-Encoding: gzip, chunked", "Content-Length: 5"
        ),
        raw_request("POST", REQUESTS, b"{}", "Content-Length: 2", "Content-Length: 3"),
        raw_request("POST", REQUESTS, b"{}", "Content-Length: +2"),
        raw_request("POST", REQUESTS, b"{}", "Content-Length: -2"),
        raw_request("POST", REQUESTS, b"x\r\n{}\r\n", "Transfer-Encoding: chunked"),
        raw_request("POST", REQUESTS, b"{}", "Content-Length : 2"),
        b"POST / HTTP/1.1\r\nHost: a\r\nFolded: b\r\n c: d\r\nContent-Length: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00 hello over TLS \r\n\r\n",
    ],
    ids=[
        "a chunk ended by XX",
        "both lengths, another coding",
        "two lengths",
        "a length with a plus",
        "a length below 0",
        "a chunk of x bytes",
        "a space before the colon",
        "a length that is none",
        "not HTTP",
    ],
)
async def test_http_that_two_servers_could_read_differently_is_refused_and_closed(
    db: Database, node: Client, content: bytes
) -> None:
    """What one server takes for a body another takes for a request of its own."""
    smuggled = raw_request("DELETE", f"{REQUESTS}/mine", b"")
    async with raw_call(node, content + smuggled) as (reader, _):
        answer = await asyncio.wait_for(reader.read(), 30)

    assert b" 400 " in answer.split(b"\r\n")[0]
    assert b"application/problem+json" in answer
    assert answer.count(b"HTTP/1.1") == 1
    assert await nothing_is_stored(db)


async def test_a_node_of_one_connection_serves_every_call(db: Database, programs: Programs) -> None:
    """A call that took a second connection while it held the first would wait for itself."""
    node = await programs.app(POOL_SIZE=1)
    puts = [
        asyncio.create_task(
            node.put(f"{REQUESTS}/r{n}", json={"document": "One.", "deadline_ms": 50_000})
        )
        for n in range(5)
    ]
    numbers = [(await arrived(db, f"r{n}")).id for n in range(5)]

    for path in ("/livez", "/readyz", f"{REQUESTS}/r0"):
        assert (await node.get(path)).status_code == 200
    assert (await node.delete(f"{REQUESTS}/r0")).json()["status"] == "cancelled"
    for number in numbers[1:]:
        await worked(db, number, 1)
    assert {(await put).json()["status"] for put in puts} == {"cancelled", "completed"}
    blank = await node.post(REQUESTS, json={"document": " "})
    assert blank.json()["status"] == "completed"


async def test_fifty_waiting_calls_share_five_connections(db: Database, programs: Programs) -> None:
    """Nothing is held while a call waits, so health is answered too."""
    node = await programs.app(POOL_SIZE=5)
    posts = [
        asyncio.create_task(
            node.post(REQUESTS, json={"document": f"Number {n}.", "deadline_ms": 50_000})
        )
        for n in range(50)
    ]

    async def all_are_there() -> list[Any]:
        rows = await db.read("SELECT id FROM requests")
        return rows if len(rows) == 50 else []

    rows = await wait_until(all_are_there, "fifty requests")
    assert (await node.get("/livez")).status_code == 200
    assert (await node.get("/readyz")).status_code == 200
    for row in rows:
        await worked(db, row["id"], 1)

    answers = [(await post).json() for post in posts]

    assert {answer["status"] for answer in answers} == {"completed"}
    assert {answer["document"] for answer in answers} == {f"Number {n}." for n in range(50)}


async def test_a_document_that_takes_long_to_split_keeps_no_other_call_waiting(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(*told: Any) -> Submission:
        begun.set()
        assert may_end.wait(WAIT_SECONDS)
        return read_submission(*told)

    monkeypatch.setattr(routes, "read_submission", slow)
    api = httpx.ASGITransport(build(RequestService(db, AppSettings(keyless=True))))
    async with httpx.AsyncClient(transport=api, base_url="http://localhost") as node:
        post = asyncio.create_task(node.post(REQUESTS, json={"document": " "}))

        async def is_splitting() -> bool:
            return begun.is_set()

        await wait_until(is_splitting, "the splitting")
        assert not post.done()
        assert (await node.get("/livez")).status_code == 200
        assert not post.done()
        may_end.set()

        assert (await post).json()["status"] == "completed"


async def test_a_node_that_splits_the_largest_documents_still_answers(
    db: Database, node: Client
) -> None:
    line = "A sentence of a few words, and another one. "
    largest = json.dumps({"document": line * (2_000_000 // len(line)), "deadline_ms": 1}).encode()
    probes = 0

    async def probe() -> None:
        nonlocal probes
        while True:
            assert (await node.get("/livez")).status_code == 200
            probes += 1

    probing = asyncio.create_task(probe())
    answers = await asyncio.gather(
        *(node.post(REQUESTS, content=largest, headers=JSON) for _ in range(8))
    )
    probing.cancel()

    assert {response.status_code for response in answers} == {200}
    assert probes >= 8, "a probe for each document, if the loop is not held"


# Each is as large as a body may be, and becomes larger on its way in one way or another.
LARGEST = {
    "line ends": "a" + "\n" * 1_045_000,
    "one run": "x" * 2_096_000,
    "quotes and backslashes": "\\\"'" * 400_000,
    "four bytes each": "𠮷" * 520_000,
    "sentences": "It is one. " * 190_000,
    "gaps": "a\u2028\n" * 230_000,
}


@pytest.mark.parametrize("kind", LARGEST)
async def test_the_largest_body_is_stored_and_answered_on_a_server_as_it_comes(
    db: Database, node: Client, kind: str
) -> None:
    document = LARGEST[kind]
    content = json.dumps(
        {"document": document, "deadline_ms": 55_000, "on_missing": "source"}, ensure_ascii=False
    ).encode()
    assert 1_000_000 < len(content) <= 2_097_152

    put = asyncio.create_task(node.put(f"{REQUESTS}/large", content=content, headers=JSON))
    request = await arrived(db, "large")
    await worked(db, request.id, request.segments)
    response = await put

    assert (response.status_code, response.json()["status"]) == (200, "completed")
    assert response.json()["document"] == document


async def test_the_largest_body_that_can_be_allowed_fits_into_a_packet(
    db: Database, programs: Programs
) -> None:
    """MariaDB takes 16 MiB at once, and the white space of a document is one value."""
    node = await programs.app(APP_MAX_BODY_BYTES=8_388_608)
    document = "a" + "\n" * 4_194_000

    response = await node.post(REQUESTS, json={"document": document, "deadline_ms": 1})

    assert (response.status_code, response.json()["status"]) == (200, "partial")


async def test_sigterm_answers_open_calls_with_what_is_there_and_ends(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_DRAIN_SECONDS=1)
    put = asyncio.create_task(
        node.put(f"{REQUESTS}/mine", json={"document": "One. Two.", "deadline_ms": 55_000})
    )
    request = await arrived(db, "mine")
    await worked(db, request.id, 1)

    node.program.send(signal.SIGTERM)

    async def is_refused() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((node.base_url.host, node.base_url.port)) != 0

    await wait_until(is_refused, "new connections to be refused")
    assert not put.done()
    response = await put
    assert (response.status_code, response.json()["status"]) == (200, "partial")
    assert response.json()["segments"][0]["result"] == "One."
    assert await node.program.ended() == 0
    row = await request_row(db, request.id)
    assert row is not None
    assert row["status"] == "completed"
    assert "Traceback" not in node.program.said()


async def test_sigterm_lets_open_calls_end_by_themselves_first(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_DRAIN_SECONDS=25)
    put = asyncio.create_task(
        node.put(f"{REQUESTS}/mine", json={"document": "One. Two.", "deadline_ms": 55_000})
    )
    request = await arrived(db, "mine")

    node.program.send(signal.SIGTERM)
    await worked(db, request.id, 2)

    assert (await put).json()["status"] == "completed"
    assert await node.program.ended() == 0


async def test_sigterm_does_not_wait_for_a_body_that_never_comes(programs: Programs) -> None:
    node = await programs.app(APP_DRAIN_SECONDS=0)
    async with raw_call(node, raw_request("POST", REQUESTS, b"{", "Content-Length: 100")):
        node.program.send(signal.SIGTERM)

        assert await node.program.ended() == 0


async def test_an_idle_node_ends_at_once(node: Client) -> None:
    node.program.send(signal.SIGTERM)

    assert await node.program.ended() == 0


async def test_a_port_in_use_is_named_and_the_status_is_1(programs: Programs, node: Client) -> None:
    second = programs.start("app", "--port", str(node.base_url.port))

    assert await second.ended() == 1
    assert str(node.base_url.port) in second.said()
    assert "Traceback" not in second.said()


@pytest.fixture(params=KINDS)
def private(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, to be stopped and started."""
    program = find(request.param)
    if program is None:
        pytest.skip(f"there is no {request.param} server here")
    server = Server(program, tmp_path / "db")
    server.start()
    server.execute("CREATE DATABASE partway")
    yield server
    server.stop()


@pytest.fixture
async def own_programs(private: Server, tmp_path: Path) -> AsyncIterator[Programs]:
    """Programs on the server of the test's own."""
    started = Programs(private.url("partway"), tmp_path)
    yield started
    await started.end()


@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_a_database_away_at_the_deadline_is_a_503_and_the_same_put_answers_later(
    private: Server, own_programs: Programs, ending: str
) -> None:
    node = await own_programs.app()
    mine = f"{REQUESTS}/mine"
    sent = {"document": "One. Two.", "deadline_ms": 1500}
    put = asyncio.create_task(node.put(mine, json=sent))

    async def is_stored() -> bool:
        return bool(private.execute("SELECT id FROM partway.requests"))

    await wait_until(is_stored, "the request to be stored")
    private.execute(
        "UPDATE partway.segments SET status = 'done', result = 'uno' WHERE index_no = 0"
    )
    (private.stop if ending == "stop" else private.kill)()

    refused = await put
    assert_problem(refused, 503)
    assert int(refused.headers["Retry-After"]) >= 1
    assert (await node.get("/livez")).status_code == 200
    others = await asyncio.gather(
        node.get("/readyz"),
        node.put(f"{REQUESTS}/another", json=sent),
        node.get(mine),
        node.delete(mine),
    )
    for response in others:
        assert_problem(response, 503)

    private.start()
    answer = await node.put(mine, json=sent)

    assert (answer.status_code, answer.json()["status"]) == (200, "partial")
    assert [s["result"] for s in answer.json()["segments"]] == ["uno", None]
    assert (await node.get("/readyz")).status_code == 200
    assert (await node.get(f"{REQUESTS}/another")).status_code == 404
    said = node.program.said()
    assert said.count("database unavailable") == 1
    assert said.count("database available again") == 1
    assert "Traceback" not in said


def test_a_nodes_socket_is_one_from_which_asyncio_sends_at_once() -> None:
    """asyncio switches Nagle's delay off only where a socket says that it is TCP."""
    with listening(AppSettings(port=free_port())) as listener:
        assert listener.proto == socket.IPPROTO_TCP
