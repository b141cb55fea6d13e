"""A program that calls through the client gets its answer once, whatever happens on the way."""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from partway.app.api.keys import create_key
from partway.client import (
    Accepted,
    Answer,
    AsyncPartway,
    End,
    Event,
    FieldError,
    NotPartway,
    Partway,
    Problem,
    Segment,
    ServerUnavailable,
    Working,
)
from partway.client.answer import ANSWER
from partway.client.call import RetryPolicy
from partway.client.problems import ProblemDocument
from partway.store.database import Database
from tests.actions import Programs, arrived, claimed, segment_rows, wait_until, worked, written
from tests.proxy import proxied
from tests.scripted import (
    ACCEPTED,
    CUT,
    DONE,
    END,
    OK,
    PING,
    WORKING,
    events,
    message,
    problem,
    reply,
    scripted,
)
from tests.scripted import ANSWER as SAID

# What a client hears is the door's own, whichever server holds the rows.
pytestmark = pytest.mark.one_server

ANSWERED = ANSWER.validate_python(SAID)


TEXT = "One. Two.\n\nThree."


class Caller:
    """One of the two clients; each test is told to both."""

    def __init__(self, kind: str) -> None:
        self._is_async = kind == "async"

    async def call(self, url: str, name: str, *words: Any, **options: Any) -> Answer:
        """What one of the methods of a client returns."""
        more = {name: options.pop(name) for name in ("key", "retry_seconds") if name in options}
        if self._is_async:
            async with AsyncPartway(url, **more) as client:
                answer: Answer = await getattr(client, name)(*words, **options)
                return answer
        with Partway(url, **more) as waiting:
            return await asyncio.to_thread(getattr(waiting, name), *words, **options)

    async def events(
        self,
        url: str,
        document: str,
        seen: Callable[[Event], None] = lambda event: None,
        **options: Any,
    ) -> list[Event]:
        """All the events of a request; `seen` is told of each as it comes."""
        found: list[Event] = []
        if self._is_async:
            async with AsyncPartway(url) as client:
                async for event in client.stream(document, **options):
                    found.append(event)
                    seen(event)
            return found

        def collect() -> None:
            with Partway(url) as client:
                for event in client.stream(document, **options):
                    found.append(event)
                    seen(event)

        await asyncio.to_thread(collect)
        return found


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest) -> Caller:
    return Caller(request.param)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARTWAY_URL", raising=False)
    monkeypatch.delenv("PARTWAY_KEY", raising=False)


HTML = reply(502, "text/html", "<html>the proxy is unhappy</html>")


@pytest.mark.parametrize(
    "passing",
    [problem(503), problem(429), HTML, reply(504, "text/plain", ""), CUT],
    ids=["503", "429", "502", "504", "cut"],
)
async def test_what_fails_for_a_moment_is_sent_again_under_the_same_id(
    caller: Caller, passing: bytes
) -> None:
    async with scripted(passing, OK) as server:
        answer = await caller.call(server.url, "submit", "One. Two.", deadline_ms=2500)

    assert answer == ANSWERED
    (first, _, body), (again, _, same) = server.asked
    assert first.startswith("PUT /v1/requests/")
    assert first == again
    assert body == same == {"document": "One. Two.", "deadline_ms": 2500}


async def test_two_requests_have_two_ids(caller: Caller) -> None:
    async with scripted(OK, OK) as server:
        for _ in range(2):
            await caller.call(server.url, "submit", "One.")

    assert len(set(server.lines)) == 2


@pytest.mark.parametrize("name", ["get", "cancel"])
async def test_asking_and_cancelling_are_tried_again_too(caller: Caller, name: str) -> None:
    async with scripted(CUT, problem(503), OK) as server:
        answer = await caller.call(server.url, name, "mine")

    assert answer.id == "mine"
    method = {"get": "GET", "cancel": "DELETE"}[name]
    assert server.lines == [f"{method} /v1/requests/mine"] * 3


@pytest.mark.parametrize("status", [400, 401, 404, 410, 413, 422, 500])
async def test_a_refusal_that_will_not_pass_is_told_at_once_and_whole(
    caller: Caller, status: int
) -> None:
    wrong = {"pointer": "/deadline_ms", "detail": "must be at most 55000"}
    refused = problem(status, type="urn:partway:problem:some", errors=[wrong], newer="member")
    async with scripted(refused) as server:
        with pytest.raises(Problem) as raised:
            await caller.call(server.url, "submit", "One.")

    said = raised.value
    assert (said.status, said.type, said.title) == (status, "urn:partway:problem:some", "No")
    assert (said.detail, said.errors) == ("It is not to be.", (FieldError(**wrong),))
    assert str(said) == "/deadline_ms must be at most 55000"


async def test_a_settled_request_says_what_was_metered(caller: Caller) -> None:
    metered = {
        "status": "completed",
        "segments": 1,
        "input_characters": 4,
        "output_characters": 5,
        "billed": True,
        "settled_at": "2026-11-30T19:48:06Z",
    }
    async with scripted(problem(410, metered=metered)) as server:
        with pytest.raises(Problem) as raised:
            await caller.call(server.url, "get", "mine")

    assert raised.value.metered is not None
    assert raised.value.metered.output_characters == 5


async def test_a_problem_that_is_garbled_or_a_proxys_still_has_its_status(caller: Caller) -> None:
    garbled = reply(500, "application/problem+json", "[]")
    for broken in (garbled, reply(500, "text/html", "<h1>Oh</h1>")):
        async with scripted(broken) as server:
            with pytest.raises(Problem, match="Internal Server Error") as raised:
                await caller.call(server.url, "get", "mine")
        assert (raised.value.status, raised.value.type) == (500, "about:blank")


@pytest.mark.parametrize(
    "strange, said",
    [
        (reply(200, "text/html", "<h1>It works!</h1>"), "did not answer as Partway does"),
        (reply(200, "application/json", '{"status": "ok"}'), "did not answer as Partway does"),
        (reply(301, "text/html", "", "Location: https://elsewhere.example/"), "Moved Permanently"),
    ],
    ids=["page", "json", "elsewhere"],
)
async def test_another_server_is_not_taken_for_partway(
    caller: Caller, strange: bytes, said: str
) -> None:
    async with scripted(strange) as server:
        with pytest.raises(NotPartway, match=f"{server.url}.*{said}"):
            await caller.call(server.url, "submit", "One.", id="mine")


async def test_a_reply_that_cannot_be_decoded_is_not_partways(caller: Caller) -> None:
    torn = reply(200, "application/json", "{}", "Content-Encoding: gzip")
    torn_stream = reply(200, "text/event-stream", "data: {}", "Content-Encoding: gzip")
    async with scripted(torn, torn, torn_stream) as server:
        for ask in (
            caller.call(server.url, "get", "mine"),
            caller.events(server.url, "One."),
            caller.events(server.url, "One."),
        ):
            with pytest.raises(NotPartway, match=f"{server.url}.*cannot be decoded"):
                await ask


async def test_a_server_that_stays_away_is_given_up(caller: Caller) -> None:
    async with scripted() as server:
        gone = server.url

    with pytest.raises(ServerUnavailable, match=r"refused|failed"):
        await caller.call(gone, "submit", "One.", retry_seconds=0.5)


def refused(status: int, retry_after_seconds: int | None) -> Problem:
    return Problem(status, ProblemDocument(), retry_after_seconds)


def test_a_call_rests_as_long_as_the_server_says() -> None:
    assert RetryPolicy(30).wait_seconds(refused(429, 7)) == 7


def test_rests_grow_and_are_bounded() -> None:
    patience = RetryPolicy(1e9)

    rests = [patience.wait_seconds(refused(503, None)) for _ in range(50)]

    assert 0.1 <= rests[0] <= 0.2
    assert 2.5 <= min(rests[10:]) <= max(rests) <= 5


def test_a_rest_that_is_longer_than_the_patience_is_not_begun() -> None:
    with pytest.raises(Problem):
        RetryPolicy(5).wait_seconds(refused(429, 7))
    with pytest.raises(ServerUnavailable, match="refused"):
        RetryPolicy(0).wait_seconds(httpx.ConnectError("refused"))


def test_patience_begins_anew_when_the_server_has_said_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience = RetryPolicy(5)
    for _ in range(3):
        later = patience.wait_seconds(refused(503, None))

    now[0] += 5
    with pytest.raises(Problem):
        patience.wait_seconds(refused(503, None))
    patience.renew()

    assert patience.wait_seconds(refused(503, None)) <= 0.2 < later


async def test_a_stream_gives_each_event_as_a_value(caller: Caller) -> None:
    unknown = message("newer", {"than": "this client"}, "0:")
    recorded = events(PING, ACCEPTED, PING, WORKING, unknown, DONE, PING, END)
    async with scripted(recorded) as server:
        found = await caller.events(server.url, "One. Two.", id="mine")

    assert found == [
        Accepted("mine", ANSWERED.deadline_at, 2),
        Working((0, 1)),
        Segment(0, "done", "Uno.\u2028", None, 1),
        End(ANSWERED),
    ]
    assert server.asked[0][1]["accept"] == "text/event-stream"


async def test_a_stream_that_breaks_goes_on_after_the_last_event_it_had(caller: Caller) -> None:
    torn = DONE[: len(DONE) // 2]
    first = events(ACCEPTED, WORKING, torn)
    async with scripted(first, CUT, events(WORKING, DONE), events(PING, END)) as server:
        found = await caller.events(server.url, "One. Two.", id="mine")

    names = [type(event).__name__ for event in found]
    assert names == ["Accepted", "Working", "Working", "Segment", "End"]
    resumed = "GET /v1/requests/mine/events"
    assert server.lines == ["PUT /v1/requests/mine", resumed, resumed, resumed]
    ids = [headers.get("last-event-id") for _, headers, _ in server.asked]
    assert ids == [None, "0:", "0:", "1:0"]


async def test_a_stream_that_breaks_before_it_was_accepted_is_sent_again(caller: Caller) -> None:
    async with scripted(events(PING, WORKING), problem(503), events(ACCEPTED, END)) as server:
        found = await caller.events(server.url, "One. Two.")

    assert [type(event).__name__ for event in found] == ["Working", "Accepted", "End"]
    assert len(set(server.lines)) == 1
    assert server.lines[0].startswith("PUT ")
    assert all(body == {"document": "One. Two."} for _, _, body in server.asked)


async def test_a_server_without_events_gives_the_end(caller: Caller) -> None:
    async with scripted(OK) as server:
        found = await caller.events(server.url, "One. Two.")

    assert found == [End(ANSWERED)]


async def test_a_problem_ends_a_stream_also_when_it_goes_on(caller: Caller) -> None:
    async with scripted(events(ACCEPTED), problem(410)) as server:
        with pytest.raises(Problem):
            await caller.events(server.url, "One. Two.", id="mine")


async def test_an_event_that_cannot_be_read_is_an_error(caller: Caller) -> None:
    async with scripted(events(message("accepted", {"id": 7}, "0:"))) as server:
        with pytest.raises(NotPartway, match="accepted"):
            await caller.events(server.url, "One.")


async def test_place_and_key_are_given_or_come_from_the_environment(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted(OK) as server:
        monkeypatch.setenv("PARTWAY_URL", server.url)
        monkeypatch.setenv("PARTWAY_KEY", "pw_secret\n")
        await caller.call(None, "get", "mine")  # type: ignore[arg-type] # none is given

    assert server.asked[0][1]["authorization"] == "Bearer pw_secret"

    async with scripted(OK) as server:
        with Partway(server.url, "pw_other") as partway:
            await asyncio.to_thread(partway.get, "mine")

    assert server.asked[0][1]["authorization"] == "Bearer pw_other"


async def test_without_a_key_none_is_sent(caller: Caller) -> None:
    async with scripted(OK) as server:
        await caller.call(server.url, "get", "mine")

    assert "authorization" not in server.asked[0][1]


@pytest.mark.parametrize("kind", [Partway, AsyncPartway])
@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://localhost",
        "http://",
        "http://localhost:port",
        "http://me:secret@localhost",
    ],
)
def test_what_is_no_url_is_refused_when_the_client_is_made(kind: type, url: str) -> None:
    with pytest.raises(ValueError, match="URL") as raised:
        kind(url)

    assert "secret" not in str(raised.value)


def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="key") as raised:
        Partway(key="pw_gehe\nim")

    assert "im" not in str(raised.value)


@pytest.mark.parametrize("id", ["../../metrics", "a/b", "a?b", ".", "x" * 65, "a\n", "é"])
async def test_an_id_cannot_lead_elsewhere(caller: Caller, id: str) -> None:
    async with scripted() as server:
        for name, words in (("get", [id]), ("cancel", [id])):
            with pytest.raises(ValueError, match="id"):
                await caller.call(server.url, name, *words)
        with pytest.raises(ValueError, match="id"):
            await caller.call(server.url, "submit", "One.", id=id)


async def test_a_real_node_is_asked_answered_and_asked_again(
    programs: Programs, db: Database, caller: Caller
) -> None:
    node = await programs.app(APP_POLL_SECONDS=0.05)
    await programs.worker()
    url = str(node.base_url)
    body: dict[str, Any] = {"id": "mine", "params": {"seconds": 0}, "deadline_ms": 20_000}

    answer = await caller.call(url, "submit", "One.\u2028 Two.\n\nThree.", **body)

    assert answer.status == "completed"
    assert answer.document == "One.\u2028 Two.\n\nThree."
    assert answer == await caller.call(url, "submit", "One.\u2028 Two.\n\nThree.", **body)
    assert answer == await caller.call(url, "get", "mine")
    assert json.loads(ANSWER.dump_json(answer)) == (await node.get("/v1/requests/mine")).json()
    with pytest.raises(Problem) as raised:
        await caller.call(url, "submit", "Another.", **body)
    assert raised.value.type == "urn:partway:problem:id-reused"


async def test_a_real_node_lets_in_who_has_a_key(
    programs: Programs, db: Database, caller: Caller
) -> None:
    node = await programs.app(APP_POLL_SECONDS=0.05, APP_KEYLESS="off")
    await programs.worker()
    key = await create_key(db, "acme", ["requests"], "a test")
    url, body = str(node.base_url), {"id": "mine", "params": {"seconds": 0}}

    with pytest.raises(Problem) as raised:
        await caller.call(url, "submit", "One.", **body)
    answer = await caller.call(url, "submit", "One.", key=key, **body)

    assert (raised.value.status, raised.value.type) == (401, "urn:partway:problem:unauthorized")
    assert answer.document == "One."


async def test_segments_of_the_callers_own_stay_as_they_are(
    programs: Programs, db: Database, caller: Caller
) -> None:
    node = await programs.app()
    await programs.worker()

    answer = await caller.call(
        str(node.base_url), "submit", ["One. Two.", "Three."], params={"seconds": 0}
    )

    assert [segment.result for segment in answer.segments] == ["One. Two.", "Three."]
    assert answer.document is None


async def test_a_connection_that_breaks_meets_the_same_request_again(
    programs: Programs, db: Database, caller: Caller
) -> None:
    node = await programs.app(APP_POLL_SECONDS=0.05)
    # The proxy takes the address of a database, but any program can be behind it.
    async with proxied(f"mysql://nobody:none@127.0.0.1:{node.base_url.port}/none") as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        answering = asyncio.create_task(caller.call(url, "submit", "One. Two. Three."))
        request = await arrived(db)
        await worked(db, request.id, 1)
        proxy.cut()
        links = proxy.links_made

        async def came_back() -> bool:
            return proxy.links_made > links

        await wait_until(came_back, "the caller to come back")
        await worked(db, request.id, 2)
        proxy.flow()
        answer = await answering

    assert (answer.id, answer.status) == (request.public_id, "completed")
    rows = await segment_rows(db, request.id)
    assert [row["attempts"] for row in rows] == [1, 1, 1]
    assert await db.read("SELECT COUNT(*) AS n FROM requests") == [{"n": 1}]


async def test_a_cancel_answers_the_one_who_waits_too(
    programs: Programs, db: Database, caller: Caller
) -> None:
    node = await programs.app(APP_POLL_SECONDS=0.05)
    url = str(node.base_url)
    waiting = asyncio.create_task(caller.call(url, "submit", "One. Two.", id="mine"))
    await worked(db, (await arrived(db, "mine")).id, 1)

    answer = await caller.call(url, "cancel", "mine")

    assert (answer.status, answer.counts.done, answer.counts.cancelled) == ("cancelled", 1, 1)
    assert await waiting == answer


def has_segments(seen: list[Event], count: int) -> Callable[[], Awaitable[bool]]:
    """Whether this many segments have come."""

    async def have_come() -> bool:
        return sum(isinstance(event, Segment) for event in seen) >= count

    return have_come


def has_come(seen: list[Event], event: Event) -> Callable[[], Awaitable[bool]]:
    """Whether this event has come."""

    async def is_there() -> bool:
        return event in seen

    return is_there


async def test_a_real_stream_tells_each_segment_as_it_comes(
    programs: Programs, db: Database, caller: Caller
) -> None:
    node = await programs.app(APP_POLL_SECONDS=0.05)
    seen: list[Event] = []
    url = str(node.base_url)
    streaming = asyncio.create_task(caller.events(url, TEXT, seen.append, id="mine"))
    request = await arrived(db, "mine")

    for count in (1, 2):
        await worked(db, request.id, 1)
        await wait_until(has_segments(seen, count), f"segment {count}")
    (last,) = await claimed(db, request.id)
    await wait_until(has_come(seen, Working((2,))), "word of the one that runs")
    await written(db, last, result="torn\u2028apart")
    found = await streaming

    assert isinstance(found[0], Accepted)
    assert (found[0].id, found[0].total) == ("mine", 3)
    results = [event.result for event in found if isinstance(event, Segment)]
    assert results == ["One.", "Two.", "torn\u2028apart 2"]
    assert found[-1] == End(await caller.call(url, "get", "mine"))


async def test_a_real_stream_that_breaks_misses_nothing_and_repeats_nothing(
    programs: Programs, db: Database, caller: Caller
) -> None:
    node = await programs.app(APP_POLL_SECONDS=0.05)
    async with proxied(f"mysql://nobody:none@127.0.0.1:{node.base_url.port}/none") as proxy:
        seen: list[Event] = []
        url = f"http://127.0.0.1:{proxy.port}"
        streaming = asyncio.create_task(caller.events(url, TEXT, seen.append))
        request = await arrived(db)
        await worked(db, request.id, 1)
        await wait_until(has_segments(seen, 1), "the first segment")
        proxy.cut()
        await worked(db, request.id, 1)
        proxy.flow()
        await wait_until(has_segments(seen, 2), "the second segment")
        await worked(db, request.id, 1)
        found = await streaming

    assert [event.index for event in found if isinstance(event, Segment)] == [0, 1, 2]
    assert [type(event).__name__ for event in found].count("Accepted") == 1
    assert isinstance(found[-1], End)
    assert found[-1].answer.status == "completed"
    assert [row["attempts"] for row in await segment_rows(db, request.id)] == [1, 1, 1]


def test_a_client_serves_many_threads_at_once() -> None:
    """One for a whole program is what its connections are kept for."""

    async def serve() -> None:
        async with scripted(*[OK] * 8) as server:
            with Partway(server.url) as partway:
                threads = [threading.Thread(target=partway.get, args=("mine",)) for _ in range(8)]
                for thread in threads:
                    thread.start()
                await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))

    asyncio.run(serve())
