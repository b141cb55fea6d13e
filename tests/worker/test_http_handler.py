"""The http handler speaks to real servers: Debian's apertium-apy, and one that answers as told."""

import asyncio
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from partway.worker.handler import Context, Reject
from partway.worker.handlers.http import Http, at_pointer, fill, retry_after
from tests.worker.test_compute import computing, said, work

KEY = "sk-very-secret-key"


class Told(BaseHTTPRequestHandler):
    """Gives each request the next of the answers it was told, and remembers the request."""

    answers: list[tuple[int, dict[str, str], bytes]]
    requests: list[tuple[str, str, dict[str, str], bytes]]

    def answer(self) -> None:
        """Take the next answer."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.requests.append((self.command, self.path, dict(self.headers), body))
        status, headers, content = self.answers.pop(0)
        if status == 0:
            # Closed without a word.
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = answer

    def log_message(self, format: str, *args: object) -> None:
        """Keep the output of the tests clean."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Told]]:
    """A server on a free port of the loopback, to which the handler's settings point."""

    class Here(Told):
        """A class of its own, since the server makes an object for each connection."""

    Here.answers, Here.requests = [], []
    with ThreadingHTTPServer(("127.0.0.1", 0), Here) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("PARTWAY_HTTP_URL", f"http://127.0.0.1:{listening.server_port}/v1?a=1")
        monkeypatch.setenv("PARTWAY_HTTP_RESULT", "/choices/0/message/content")
        monkeypatch.setenv("PARTWAY_HTTP_HEADERS", json.dumps({"Authorization": f"Bearer {KEY}"}))
        monkeypatch.setenv(
            "PARTWAY_HTTP_BODY",
            json.dumps(
                {
                    "model": "{{params.model}}",
                    "temperature": "{{params.temperature}}",
                    "messages": [
                        {"role": "system", "content": "Translate to {{params.to}}. Only that."},
                        {"role": "user", "content": "{{text}}"},
                    ],
                }
            ),
        )
        yield Here
        listening.shutdown()
        thread.join()


PARAMS: dict[str, Any] = {"model": "tiny", "temperature": 0.5, "to": "Spanish"}


def ok(content: Any) -> tuple[int, dict[str, str], bytes]:
    """An answer of the shape that OpenAI's interface has."""
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}}]}
    return 200, {"Content-Type": "application/json"}, json.dumps(answer).encode()


async def test_a_model_server_is_called_with_templates_and_a_pointer(told: type[Told]) -> None:
    hostile = 'The "cat" {{params.model}} {{text}}\n\\ 😀 \0'
    told.answers.extend([ok("El gato\0 é"), ok("")])
    async with computing("http", seats=2) as compute:
        first = await compute.run(work(hostile, **PARAMS))
        empty = await compute.run(work("x", **PARAMS))

    assert said(first) == ("done", "El gato\0 é")
    assert said(empty) == ("done", "")
    method, path, headers, body = told.requests[0]
    assert (method, path) == ("POST", "/v1?a=1")
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert json.loads(body) == {
        "model": "tiny",
        "temperature": 0.5,
        "messages": [
            {"role": "system", "content": "Translate to Spanish. Only that."},
            {"role": "user", "content": hostile},
        ],
    }


async def test_a_query_is_added_to_the_url(
    told: type[Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTWAY_HTTP_METHOD", "GET")
    monkeypatch.delenv("PARTWAY_HTTP_BODY")
    monkeypatch.delenv("PARTWAY_HTTP_RESULT")
    monkeypatch.setenv("PARTWAY_HTTP_QUERY", '{"q": "{{text}}", "n": "{{params.n}}", "b": true}')
    told.answers.append((200, {}, b'"whole"'))
    async with computing("http") as compute:
        ending = await compute.run(work("a&b=c é", n=3))

    assert said(ending) == ("done", "whole")
    method, path, _, body = told.requests[0]
    assert (method, path, body) == ("GET", "/v1?a=1&q=a%26b%3Dc+%C3%A9&n=3&b=true", b"")


@pytest.mark.parametrize(
    "answer, kind, after, error",
    [
        ((429, {"Retry-After": "7"}, b""), "retry", 7.0, "the server answered 429"),
        ((503, {}, b""), "retry", 1.0, "the server answered 503"),
        ((429, {"Retry-After": "soon"}, b""), "retry", 1.0, "the server answered 429"),
        ((500, {}, b"oops"), "failed", None, "UnusableAnswer: the server answered 500: oops"),
        ((400, {}, b"no model"), "rejected", None, "http_400: the server answered 400: no model"),
        ((302, {"Location": "/x"}, b""), "rejected", None, "http_302: the server answered 302:"),
        (
            (401, {}, f"Bad key {KEY}, 'Bearer {KEY}'".encode()),
            "rejected",
            None,
            "http_401: the server answered 401: Bad key …, '…'",
        ),
        (
            (200, {}, b"<html>"),
            "failed",
            None,
            "UnusableAnswer: the answer is not JSON: the server answered 200: <html>",
        ),
        (
            (200, {}, b'{"choices": []}'),
            "failed",
            None,
            "UnusableAnswer: the answer has no text at '/choices/0/message/content'",
        ),
        (
            ok(None),
            "failed",
            None,
            "UnusableAnswer: the answer has no text at '/choices/0/message/content'",
        ),
        ((0, {}, b""), "failed", None, "RemoteProtocolError: "),
    ],
)
async def test_what_the_server_says_decides_about_another_attempt(
    told: type[Told],
    answer: tuple[int, dict[str, str], bytes],
    kind: str,
    after: float | None,
    error: str,
) -> None:
    told.answers.append(answer)
    async with computing("http") as compute:
        ending = await compute.run(work(**PARAMS))

    assert (ending.kind, ending.after_seconds) == (kind, after)
    assert (ending.error or "").startswith(error)
    assert KEY not in (ending.error or "")


async def test_a_param_that_is_missing_rejects(told: type[Told]) -> None:
    async with computing("http") as compute:
        ending = await compute.run(work(model="tiny", temperature=1))

    assert ending.kind == "rejected"
    assert ending.error == "missing_param: the handler needs params.to"
    assert told.requests == []


async def test_a_server_that_is_not_there_is_a_failed_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARTWAY_HTTP_URL", f"http://127.0.0.1:{free_port()}/")
    async with computing("http") as compute:
        ending = await compute.run(work())

    assert ending.kind == "failed"
    assert (ending.error or "").startswith("ConnectError: ")


async def test_a_server_that_says_nothing_is_left_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PARTWAY_HTTP_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        http = Http()
        http.setup()
        async with asyncio.timeout(4):
            with pytest.raises(httpx.TimeoutException):
                await http("text", Context({}, 0, 1, time.monotonic() + 0.2))
        await http.close()


@pytest.mark.parametrize(
    "name, value, error",
    [
        ("URL", "ftp://x", "PARTWAY_HTTP_URL: URL scheme should be 'http' or 'https'"),
        ("BODY", '{"q": ', "PARTWAY_HTTP_BODY: Invalid JSON: "),
        ("QUERY", "[1]", "PARTWAY_HTTP_QUERY: Input should be a valid dictionary"),
        ("HEADERS", f'{{"X-Key": "{KEY}\\n"}}', "PARTWAY_HTTP_HEADERS (X-Key): String should"),
        ("HEADERS", f'{{"X-Key": "{KEY}"', "PARTWAY_HTTP_HEADERS: Invalid JSON: "),
        ("METHOD", "BREW", "PARTWAY_HTTP_METHOD: Input should be 'GET', "),
        ("RESULT", "choices", "PARTWAY_HTTP_RESULT: String should match pattern"),
    ],
)
def test_a_wrong_setting_is_named_and_its_value_is_not_shown(
    told: type[Told], name: str, value: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"PARTWAY_HTTP_{name}", value)
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 # what it says is looked at below
        Http().setup()

    assert str(refusal.value).startswith(error)
    assert KEY not in str(refusal.value)


def test_a_header_is_not_shown_when_the_settings_are(told: type[Told]) -> None:
    http = Http()
    http.setup()

    assert http.settings.headers == {"Authorization": f"Bearer {KEY}"}
    assert KEY not in repr(http.settings)


def test_a_placeholder_keeps_the_type_of_a_param_that_stands_alone() -> None:
    context = Context({"n": 3, "list": [1, "a"], "odd name": None}, 0, 1, 0)
    template = ["{{params.n}}", "n={{params.n}}", "{{params.list}}", "l={{params.list}}", 5, None]

    assert fill(template, "t", context) == [3, "n=3", [1, "a"], 'l=[1, "a"]', 5, None]
    assert fill("{{params.odd name}}", "t", context) is None
    assert fill("{{ text }} {text} {{texts}}", "t", context) == "{{ text }} {text} {{texts}}"
    with pytest.raises(Reject, match="missing_param"):
        fill({"a": "{{params.none}}"}, "t", context)


def test_a_pointer_is_read_as_rfc_6901_says() -> None:
    answer = {"a/b": {"~": ["x", {"": "y"}]}}

    assert at_pointer(answer, "/a~1b/~0/0") == "x"
    assert at_pointer(answer, "/a~1b/~0/1/") == "y"
    assert at_pointer("all", "") == "all"
    for nowhere in ("/b", "/a~1b/~0/2", "/a~1b/~0/-1", "/a~1b/~0/x", "/a~1b/~0/0/0"):
        assert at_pointer(answer, nowhere) is None


def test_retry_after_is_seconds_or_a_date() -> None:
    now = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)

    assert retry_after(None, now) == 1.0
    assert retry_after("0", now) == 0.0
    assert retry_after("120", now) == 120.0
    assert retry_after(format_datetime(now + timedelta(seconds=9), usegmt=True), now) == 9.0
    assert retry_after("Mon, 30 Nov 2026 12:00:05 -0000", now) == 5.0
    assert retry_after(format_datetime(now - timedelta(days=9)), now) == 0.0
    assert retry_after("9" * 400, now) == 86_400.0
    for nothing in ("", "-5", "1.5", "tomorrow"):
        assert retry_after(nothing, now) == 1.0


def free_port() -> int:
    """A port of the loopback on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


# The server has no option for the address it listens on, and a test stays on the loopback.
APY = """
import runpy, sys, tornado.tcpserver
bind = tornado.tcpserver.bind_sockets
tornado.tcpserver.bind_sockets = lambda port, **more: bind(port, **{**more, "address": "127.0.0.1"})
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def apy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a running apertium-apy, with the pairs that are installed."""
    program = shutil.which("apertium-apy")
    assert program is not None, "apertium-apy is not installed"
    port = free_port()
    log = tmp_path_factory.mktemp("apy") / "log"
    python = Path(program).read_text().partition("\n")[0].removeprefix("#!").strip()
    code = APY.replace("sys.argv[0]", repr(program))
    command = [python, "-c", code, "-p", str(port), "-j", "1", "/usr/share/apertium"]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 30
        while True:
            try:
                httpx.get(f"{url}/listPairs").raise_for_status()
                break
            except httpx.TransportError:
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.05)
        yield url
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_real_translation_server_is_called_without_code(
    apy: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = {
        "langpair": "{{params.source}}|{{params.target}}",
        "q": "{{text}}",
        "markUnknown": "no",
    }
    monkeypatch.setenv("PARTWAY_HTTP_URL", f"{apy}/translate")
    monkeypatch.setenv("PARTWAY_HTTP_METHOD", method)
    monkeypatch.setenv("PARTWAY_HTTP_QUERY", json.dumps(query))
    monkeypatch.setenv("PARTWAY_HTTP_RESULT", "/responseData/translatedText")
    async with computing("http", seats=4) as compute:
        pair: dict[str, Any] = {"source": "eng", "target": "spa"}
        endings = [await compute.run(work("The red house & the cat.", **pair)) for _ in range(3)]
        unknown = await compute.run(work("The cat.", source="eng", target="xxx"))

    assert [said(ending) for ending in endings] == [("done", "La casa roja & el gato.")] * 3
    assert unknown.kind == "rejected"
    assert "That pair is not installed" in (unknown.error or "")
