"""Whoever watches a request is told each segment once, wherever its stream broke, and the end."""

import asyncio
import contextlib
import functools
import json
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import EventSource, ServerSentEvent
from hypothesis import given
from hypothesis import strategies as st

from partway.app.api.streaming import PIECE_BYTES, events_reply
from partway.app.application import build
from partway.app.problems import Problem
from partway.app.requests import events
from partway.app.requests.answer import NEWLY_FINISHED, PROCESSING, Request
from partway.app.requests.events import RequestSubscriptions, event_id, read_position, stream
from partway.app.requests.service import RequestService
from partway.app.requests.watch import PROGRESS, Watch
from partway.app.settings import AppSettings
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database, Row, Unavailable
from partway.worker.lease import Ready
from tests.actions import (
    TENANT,
    Client,
    Programs,
    arrived,
    bearer,
    claimed,
    exchanged,
    find_request,
    raw_call,
    raw_request,
    request_row,
    submitted,
    wait_until,
    worked,
    written,
)
from tests.app.test_disconnect import final, other_callers_come_and_go
from tests.app.test_http_api import REQUESTS, assert_problem

# The statements are those of the looks, which are tried on each server elsewhere.
pytestmark = pytest.mark.one_server

EVENTS = {"Accept": "text/event-stream"}
MINE = f"{REQUESTS}/mine"
FAR_MS = 50_000


@pytest.fixture
async def node(programs: Programs) -> Client:
    """One node of the door, as it is shipped but for a shorter poll."""
    return await programs.app(APP_POLL_SECONDS=0.05)


class Told:
    """What a reader was told so far, and where it would go on."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.segments: list[dict[str, Any]] = []
        self.working: list[list[int]] = []
        self.answer: dict[str, Any] | None = None
        self.last_id = ""
        self.ids: list[str] = []

    def take(self, event: ServerSentEvent) -> None:
        """Keep one event."""
        said = event.json()
        self.names.append(event.event)
        if event.event == "segment":
            self.segments.append(said)
        elif event.event == "working":
            self.working.append(said["indexes"])
            assert event.id == self.last_id, "it has no id of its own"
        elif event.event == "end":
            self.answer = said
        if event.id != self.last_id:
            self.ids.append(event.id)
        self.last_id = event.id

    @property
    def indexes(self) -> list[int]:
        """The segments in the order in which they were told."""
        return [segment["index"] for segment in self.segments]


async def reads(
    node: Client,
    told: Told,
    segments: float = float("inf"),
    path: str = f"{MINE}/events",
    method: str = "GET",
    **sent: Any,
) -> None:
    """Read on from where `told` is until it has so many segments, or the stream ends."""
    headers = EVENTS | ({"Last-Event-ID": told.last_id} if told.last_id else {})
    async with node.stream(method, path, headers=headers, **sent) as reply:
        assert reply.status_code == 200
        async with aclosing(EventSource(reply).aiter_sse()) as said:
            async for event in said:
                told.take(event)
                if len(told.segments) >= segments:
                    return


def reading(node: Client, told: Told, **more: Any) -> asyncio.Task[None]:
    """The same, meanwhile."""
    return asyncio.create_task(reads(node, told, **more))


async def has_told(told: Told, name: str, count: int = 1) -> None:
    """Come back when a reader was told so many events of this name."""

    async def has() -> bool:
        return told.names.count(name) >= count

    await wait_until(has, f"{count} events {name}")


def put(node: Client, told: Told, **fields: Any) -> asyncio.Task[None]:
    """A PUT of three segments that is answered with events."""
    body = {"document": "One. Two. Three.", "deadline_ms": FAR_MS, **fields}
    return reading(node, told, path=MINE, method="PUT", json=body)


# Ids.


@pytest.mark.sweep
@given(st.sets(st.integers(0, 300)), st.integers(0, 5))
def test_an_id_says_which_segments_its_reader_has(had: set[int], more: int) -> None:
    place = read_position(event_id(had))

    assert place is not None
    assert place.indexes(max(had, default=-1) + 1 + more) == had


@pytest.mark.parametrize(
    "said",
    [
        *(
            "x",
            "0",
            ":",
            "1:",
            "0:0",
            "2:0",
            "1:0-1",
            "2:1,0",
            "2:1,1",
            "4:0-1,1-2",
            "1:0,",
            "1:,0",
        ),
        *("1:-1", "2:1-0", " 1:0", "1:0 ", "1:0-", "1:0\x00", "1:٣", "1:end", "4:End", "-1:"),
        *("1:3", "1000000000:0-999999999", "999999999:0-999999998", "5:end"),
    ],
)
def test_an_id_of_no_event_of_three_segments_is_refused(said: str) -> None:
    with pytest.raises(Problem) as refused:
        [place.indexes(3) for place in [read_position(said)] if place is not None]
    assert refused.value.kind == "invalid-request"


# One feed for all who watch.


class Asked(Database):
    """The same database, whose statements are counted, fail while it is `away`, or find change."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.away = False
        self.count: Counter[str] = Counter()
        self.before: dict[str, Callable[[], Awaitable[Any]]] = {}

    async def read(
        self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[Row]:
        """The rows of one plain read."""
        self.count[statement[:30]] += 1
        if self.away:
            raise Unavailable("away")
        if statement[:30] in self.before:
            await self.before.pop(statement[:30])()
        return await self.db.read(statement, values)

    async def write(self, statement: str, values: Sequence[Any] = ()) -> int:
        """How many rows one statement found to change."""
        self.count["writes"] += 1
        if self.away:
            raise Unavailable("away")
        return await self.db.write(statement, values)

    def let_happen(self, happens: Callable[[], Awaitable[Any]], before: str) -> None:
        """Let this happen right before the next read of a statement."""
        self.before[before[:30]] = happens

    def asked(self, statement: str) -> int:
        """How often this statement was asked."""
        return self.count[statement[:30]]


async def named_events(
    feeds: RequestSubscriptions,
    request: Request,
    has: set[int] | None = None,
    stops_at: float = float("inf"),
) -> list[str]:
    """The names of what a watcher of this request is told to the end, but for what runs now.

    Whether a look comes while a segment runs is chance.
    """
    with feeds.watching(TENANT, request) as feed:
        told = stream(feed, has, lambda: stops_at)
        names = [event.decode().split("\n")[0].removeprefix("event: ") async for event in told]
        return [name for name in names if name != "working"]


async def has_read(feeds: RequestSubscriptions, count: int) -> bool:
    """Whether so many segments were read for all who watch the only request."""
    return any(len(feed.finished) == count for feed in feeds._subscriptions.values())


async def request_of(db: Database, public_id: str) -> Request:
    """The request of this id."""
    request = await find_request(db, public_id)
    assert request is not None
    return request


async def test_two_hundred_watchers_read_no_more_than_one(db: Database) -> None:
    request_id, public_id = await submitted(db, 3)
    asked = Asked(db)
    feeds = RequestSubscriptions(asked, Watch(asked, 0.02))
    request = await request_of(db, public_id)
    watchers = [asyncio.create_task(named_events(feeds, request)) for _ in range(200)]
    for count in (1, 2):
        await worked(db, request_id, 1)
        await wait_until(functools.partial(has_read, feeds, count), "what is new to be read")
    await worked(db, request_id, 1)

    told = await asyncio.gather(*watchers)

    segments = [[name for name in names if name == "segment"] for names in told]
    assert segments == [["segment"] * 3] * 200
    assert {(names[0], names[-1]) for names in told} == {("accepted", "end")}
    # One look each time, one read of what runs, one of what is new, one close, one answer.
    looks = asked.asked(PROGRESS)
    assert asked.asked(PROCESSING) <= looks
    assert asked.asked(NEWLY_FINISHED) <= 4
    assert asked.count["writes"] == 1
    assert asked.count.total() <= 2 * looks + 4 + 1 + 3
    assert feeds._subscriptions == {}


async def test_a_thousand_watchers_of_a_finished_request_read_it_once_and_hold_nothing(
    db: Database,
) -> None:
    request_id, public_id = await submitted(db, 2)
    await worked(db, request_id, 2)
    await close(db, request_id, "completed")
    asked = Asked(db)
    feeds = RequestSubscriptions(asked, Watch(asked, 0.02))
    request = await request_of(db, public_id)

    told = await asyncio.gather(*(named_events(feeds, request) for _ in range(1000)))

    assert told == [["accepted", "segment", "segment", "end"]] * 1000
    assert asked.count.total() <= 3
    assert feeds._subscriptions == {}


async def test_a_slow_watcher_misses_nothing_and_keeps_nobody_waiting(db: Database) -> None:
    """It has taken one event of two when the others have all been told to the end."""
    request_id, public_id = await submitted(db, 5)
    await worked(db, request_id, 2)
    feeds = RequestSubscriptions(db, Watch(db, 0.02))
    request = await request_of(db, public_id)
    with feeds.watching(TENANT, request) as feed:
        await wait_until(functools.partial(has_read, feeds, 2), "two segments to be read")
        slow = stream(feed, None, lambda: float("inf"))
        assert (await anext(slow)).startswith(b"event: accepted\nid: 0:\n")
        assert (await anext(slow)).startswith(b"event: segment\nid: 1:0\n")
        quick = asyncio.create_task(named_events(feeds, request))
        await worked(db, request_id, 3)

        assert (await quick)[-1] == "end"
        events_left = [event.decode().split("\n")[:2] async for event in slow]
        rest = [id for name, id in events_left if name != "event: working"]

    assert rest == ["id: 2:0-1", "id: 3:0-2", "id: 4:0-3", "id: 5:0-4", "id: 6:end"]


async def test_who_leaves_while_others_watch_takes_nothing_from_them(db: Database) -> None:
    request_id, public_id = await submitted(db, 1)
    feeds = RequestSubscriptions(db, Watch(db, 0.02))
    request = await request_of(db, public_id)
    leaver, stayer = (asyncio.create_task(named_events(feeds, request)) for _ in range(2))
    await wait_until(lambda: asyncio.sleep(0, feeds._subscriptions), "a feed")
    feed = feeds._subscriptions[request.id]
    await wait_until(lambda: asyncio.sleep(0, feed.watchers == 2), "both to watch")

    leaver.cancel()
    await worked(db, request_id, 1)

    assert (await stayer)[-1] == "end"
    with contextlib.suppress(asyncio.CancelledError):
        await leaver
    assert feeds._subscriptions == {}


async def test_when_the_last_watcher_leaves_nobody_reads_on(db: Database) -> None:
    _, public_id = await submitted(db, 1)
    feeds = RequestSubscriptions(db, Watch(db, 0.02))
    request = await request_of(db, public_id)
    with feeds.watching(TENANT, request) as feed:
        following = feed.following
        await asyncio.sleep(0)

    await asyncio.wait([following], timeout=30)
    assert following.cancelled()
    assert feeds._subscriptions == {}


async def test_a_silent_stream_pings(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PING_SECONDS", 0.01)
    monkeypatch.setattr(events, "PAUSE_SECONDS", 0.02)
    request_id, public_id = await submitted(db, 1)
    feeds = RequestSubscriptions(db, Watch(db, 0.02))
    with feeds.watching(TENANT, await request_of(db, public_id)) as feed:
        told = stream(feed, None, lambda: float("inf"))
        said = [await anext(told) for _ in range(3)]
        await worked(db, request_id, 1)
        last = [event async for event in told][-1]

    assert said[1:] == [b": ping\n\n"] * 2
    assert last.startswith(b"event: end\nid: 2:end\n")


async def test_while_the_database_is_away_a_stream_pings_and_then_goes_on(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PING_SECONDS", 0.01)
    monkeypatch.setattr(events, "PAUSE_SECONDS", 0.02)
    request_id, public_id = await submitted(db, 2)
    asked = Asked(db)
    feeds = RequestSubscriptions(asked, Watch(asked, 0.02))
    with feeds.watching(TENANT, await request_of(db, public_id)) as feed:
        told = stream(feed, None, lambda: float("inf"))
        await worked(db, request_id, 1)
        while not (await anext(told)).startswith(b"event: segment\nid: 1:0\n"):
            pass
        asked.away = True
        looked = asked.asked(PROGRESS)
        while asked.asked(PROGRESS) < looked + 3:
            assert (await anext(told)).startswith((b": ping\n\n", b"event: working\n"))
        await worked(db, request_id, 1)
        asked.away = False
        said = [event async for event in told if not event.startswith(b":")]

    assert said[0].startswith(b"event: segment\nid: 2:0-1\n")
    assert said[-1].startswith(b"event: end\n")


async def test_a_stream_ends_without_an_end_when_the_database_is_away_at_the_deadline(
    db: Database,
) -> None:
    request_id, public_id = await submitted(db, 1, deadline_ms=600)
    asked = Asked(db)
    feeds = RequestSubscriptions(asked, Watch(asked, 0.02))
    request = await request_of(db, public_id)
    watching = asyncio.create_task(named_events(feeds, request))
    await wait_until(lambda: asyncio.sleep(0, asked.asked(PROGRESS)), "a look")
    asked.away = True

    assert await asyncio.wait_for(watching, 30) == ["accepted"]

    row = await request_row(db, request_id)
    assert row is not None
    assert row["status"] == "active"
    asked.away = False
    assert await named_events(feeds, request, set()) == ["end"]


async def test_a_watcher_closes_at_the_deadline_what_nobody_else_closes(db: Database) -> None:
    """Law 7: the node that took it has died."""
    request_id, public_id = await submitted(db, 2, deadline_ms=600)
    await worked(db, request_id, 1)
    feeds = RequestSubscriptions(db, Watch(db, 0.02))

    told = await named_events(feeds, await request_of(db, public_id))

    assert told == ["accepted", "segment", "end"]
    row = await request_row(db, request_id)
    assert row is not None
    assert (row["status"], row["outcome"]) == ("completed", "dp")


async def test_what_is_done_after_the_close_is_no_event(db: Database) -> None:
    """Law 2: neither answered nor billed, so nobody may be told of it."""
    request_id, public_id = await submitted(db, 2)
    first, late = await claimed(db, request_id, 2)
    await written(db, first)
    await close(db, request_id, "completed")
    assert await written(db, late) == []
    feeds = RequestSubscriptions(db, Watch(db, 0.02))

    told = await named_events(feeds, await request_of(db, public_id))

    assert told == ["accepted", "segment", "end"]


async def test_what_is_done_between_two_looks_but_after_a_close_is_no_event(db: Database) -> None:
    request_id, public_id = await submitted(db, 2)
    first, late = await claimed(db, request_id, 2)
    await written(db, first)
    asked = Asked(db)

    async def close_and_write_back() -> None:
        await close(db, request_id, "completed")
        assert await written(db, late) == []

    asked.let_happen(close_and_write_back, before=NEWLY_FINISHED)
    feeds = RequestSubscriptions(asked, Watch(asked, 0.02))

    told = await named_events(feeds, await request_of(db, public_id))

    assert told == ["accepted", "segment", "end"]


async def test_a_read_that_does_not_come_back_is_not_in_the_way_of_the_close(db: Database) -> None:
    request_id, public_id = await submitted(db, 2, deadline_ms=900)
    await worked(db, request_id, 1)
    asked = Asked(db)
    asked.let_happen(lambda: asyncio.sleep(3600), before=PROCESSING)
    feeds = RequestSubscriptions(asked, Watch(asked, 0.02))

    told = await asyncio.wait_for(named_events(feeds, await request_of(db, public_id)), 30)

    assert told == ["accepted", "segment", "end"]


async def test_a_node_that_stops_ends_its_streams_and_closes_nothing(db: Database) -> None:
    request_id, public_id = await submitted(db, 2)
    await worked(db, request_id, 1)
    feeds = RequestSubscriptions(db, Watch(db, 0.02))
    stops_at = float("inf")
    request = await request_of(db, public_id)
    with feeds.watching(TENANT, request) as feed:
        told = stream(feed, None, lambda: stops_at)
        said = [await anext(told), await anext(told)]
        stops_at = 0.0
        said += [event async for event in told]

    assert len(said) == 2
    row = await request_row(db, request_id)
    assert row is not None
    assert row["status"] == "active"
    other = RequestSubscriptions(db, Watch(db, 0.02))
    rest = asyncio.create_task(named_events(other, request, {0}))
    await worked(db, request_id, 1)
    assert await rest == ["segment", "end"]


async def test_a_newcomer_is_told_of_a_straggler_that_was_written_back_meanwhile(
    db: Database,
) -> None:
    """The figures of a cancelled request are final only then; a slow reader keeps the old ones."""
    request_id, public_id = await submitted(db, 2)
    (straggler,) = await claimed(db, request_id, 1)
    await close(db, request_id, "cancelled")
    feeds = RequestSubscriptions(db, Watch(db, 0.02))
    request = await request_of(db, public_id)
    with feeds.watching(TENANT, request) as feed:
        slow = stream(feed, None, lambda: float("inf"))
        assert (await anext(slow)).startswith(b"event: accepted")
        assert (await anext(slow)).startswith(b"event: end")
        await written(db, straggler)

        assert await named_events(feeds, request) == ["accepted", "segment", "end"]


# Over the wire.


async def test_segments_come_before_the_end_and_the_end_is_the_answer(
    db: Database, node: Client, programs: Programs
) -> None:
    await programs.worker(concurrency=1, SLEEP_SECONDS=0.4)
    told = Told()

    await reads(
        node,
        told,
        path=REQUESTS,
        method="POST",
        json={"document": "One. Two. Three.", "deadline_ms": FAR_MS},
    )

    assert told.names[0] == "accepted"
    assert told.names[-1] == "end"
    assert told.indexes == [0, 1, 2]
    assert told.ids == ["0:", "1:0", "2:0-1", "3:0-2", "4:end"]
    assert [0] in told.working
    assert told.names.index("working") < told.names.index("segment")
    assert told.answer is not None
    assert told.answer["status"] == "completed"
    assert told.segments == told.answer["segments"]
    assert told.answer == (await node.get(f"{REQUESTS}/{told.answer['id']}")).json()


async def test_a_stream_says_to_proxies_that_it_is_one(db: Database, node: Client) -> None:
    request_id, public_id = await submitted(db, 1)
    await worked(db, request_id, 1)

    response = await node.get(f"{REQUESTS}/{public_id}/events")

    assert response.status_code == 200
    assert response.headers["Content-Type"].split(";")[0] == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.headers["Content-Location"] == f"{REQUESTS}/{public_id}"
    assert "Content-Length" not in response.headers


async def test_a_stream_of_a_thousand_segments_goes_on_elsewhere_without_gap_or_double(
    db: Database, node: Client, programs: Programs
) -> None:
    other = await programs.app(APP_POLL_SECONDS=0.05)
    request_id, _ = await submitted(db, 1000, public_id="mine", deadline_ms=FAR_MS)
    # In no order, so that the ids have many ranges.
    leases = await claimed(db, request_id, 1000, lease_seconds=60)
    ready = [Ready(lease, lease.source) for lease in leases[::3] + leases[1::3] + leases[2::3]]
    told = Told()
    for part, (there, upto) in enumerate([(node, 150), (other, 420), (node, 700)]):
        for first in range(part * 300, (part + 1) * 300, 100):
            await exchanged(db, ready[first : first + 100])
        await reads(there, told, upto)
        assert len(told.segments) == upto
    last = reading(other, told)
    await exchanged(db, ready[900:])
    await asyncio.wait_for(last, 60)

    assert sorted(told.indexes) == list(range(1000))
    assert told.names.count("accepted") == told.names.count("end") == 1
    assert told.ids[-1] == "1001:end"
    counts = [int(said.split(":")[0]) for said in told.ids]
    assert counts == list(range(1002))
    assert max(map(len, told.ids)) < 4000
    assert told.answer is not None
    by_index = sorted(told.segments, key=lambda segment: int(segment["index"]))
    assert told.answer["segments"] == by_index


HOSTILE = [
    "one\ntwo\r\nthree\rfour\n\n",
    "\u2028a\u2029b\x85c\x0bd\x0ce\x1cf",
    "".join(map(chr, range(1, 32))),
    'x"\n\nevent: end\nid: 9:end\ndata: {}\n\n',
    ": ping",
    "\ufeffdata: \U0001fae0 \u202e\ufffe\U0010ffff",
    "</script><!-- & \\u000a \\n",
]


async def test_any_result_comes_through_unchanged(db: Database, node: Client) -> None:
    request_id, _ = await submitted(db, len(HOSTILE), public_id="mine")
    leases = await claimed(db, request_id, len(HOSTILE))
    told = Told()
    watching = reading(node, told)
    await has_told(told, "accepted")
    await exchanged(
        db, [Ready(lease, result) for lease, result in zip(leases, HOSTILE, strict=True)]
    )
    await watching

    assert [segment["result"] for segment in told.segments] == HOSTILE
    assert told.answer is not None
    assert [segment["result"] for segment in told.answer["segments"]] == HOSTILE
    assert told.names.count("end") == 1


async def test_a_failed_segment_is_told_with_its_reason(
    db: Database, node: Client, programs: Programs
) -> None:
    await programs.worker(concurrency=1, SLEEP_SECONDS=0)
    told = Told()

    await put(node, told, params={"seconds": "soon"}, segments=["a", ""], document=None)

    assert told.answer is not None
    assert told.answer["status"] == "partial"
    by_index = sorted(told.segments, key=lambda segment: int(segment["index"]))
    assert [segment["status"] for segment in by_index] == ["failed", "done"]
    assert "seconds must be a number" in by_index[0]["error"]


async def test_a_cancel_ends_the_stream_with_what_stands(db: Database, node: Client) -> None:
    told = Told()
    call = put(node, told)
    request = await arrived(db, "mine")
    await worked(db, request.id, 1)

    cancelled = await node.delete(MINE)
    await call

    assert told.answer == cancelled.json()
    assert told.indexes == [0]


async def test_a_put_with_events_is_closed_at_its_deadline(db: Database, node: Client) -> None:
    told = Told()
    call = put(node, told, deadline_ms=900)
    await worked(db, (await arrived(db, "mine")).id, 2)

    await call

    assert told.answer is not None
    assert (told.answer["status"], told.indexes) == ("partial", [0, 1])
    assert told.answer["finished_at"] >= told.answer["deadline_at"]


async def test_a_blank_document_ends_at_once(node: Client) -> None:
    told = Told()

    await put(node, told, document=" \n ")

    assert told.names == ["accepted", "end"]
    assert told.ids == ["0:", "1:end"]


def streamed(method: str, path: str, **fields: Any) -> bytes:
    """A request of three segments that wants events, as it goes over the wire."""
    body = {"document": "One. Two. Three.", "deadline_ms": FAR_MS, **fields}
    content = json.dumps(body).encode()
    return raw_request(
        method, path, content, f"Content-Length: {len(content)}", "Accept: text/event-stream"
    )


async def test_a_post_whose_reader_leaves_is_abandoned(db: Database, node: Client) -> None:
    async with raw_call(node, streamed("POST", REQUESTS)) as (reader, _):
        there = await arrived(db)
        await worked(db, there.id, 1)
        await reader.readuntil(b"event: segment")

    assert await final(db, there.id) == "abandoned"
    assert "Traceback" not in node.program.said()


async def test_a_put_whose_reader_leaves_goes_on_and_is_closed_when_it_is_done(
    db: Database, node: Client
) -> None:
    async with raw_call(node, streamed("PUT", MINE)) as (reader, _):
        there = await arrived(db, "mine")
        await reader.readuntil(b"event: accepted")
    await other_callers_come_and_go(db, node)

    await worked(db, there.id, 3)

    assert await final(db, there.id) == "completed"


async def test_a_watcher_or_a_joiner_that_leaves_ends_nothing(db: Database, node: Client) -> None:
    beginning = streamed("PUT", MINE, on_disconnect="cancel")
    watching = raw_request("GET", f"{MINE}/events", b"", "Accept: text/event-stream")
    async with raw_call(node, beginning) as (reader, _):
        there = await arrived(db, "mine")
        for call in (beginning, watching):
            async with raw_call(node, call) as (other, _):
                await other.readuntil(b"event: accepted")
        await other_callers_come_and_go(db, node)
        await worked(db, there.id, 3)
        await reader.readuntil(b"event: end")

    assert await final(db, there.id) == "completed"


async def test_a_request_of_a_killed_node_is_watched_to_its_end_on_another(
    db: Database, node: Client, programs: Programs
) -> None:
    other = await programs.app(APP_POLL_SECONDS=0.05)
    told = Told()
    call = put(node, told)
    request = await arrived(db, "mine")
    await worked(db, request.id, 1)
    await has_told(told, "segment")
    node.program.process.kill()
    with pytest.raises(httpx.TransportError):
        await call

    again = reading(other, told)
    await worked(db, request.id, 2)
    await again

    assert told.indexes == [0, 1, 2]
    assert told.names.count("accepted") == told.names.count("end") == 1
    assert await final(db, request.id) == "completed"


async def test_a_node_that_is_stopped_ends_its_streams_and_another_goes_on(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_POLL_SECONDS=0.05, APP_DRAIN_SECONDS=0)
    other = await programs.app(APP_POLL_SECONDS=0.05)
    told = Told()
    call = put(node, told, on_disconnect="cancel")
    request = await arrived(db, "mine")
    await has_told(told, "accepted")

    node.program.send(signal.SIGTERM)
    await call
    assert await node.program.ended() == 0

    assert told.answer is None
    row = await request_row(db, request.id)
    assert row is not None
    assert row["status"] == "active"
    await worked(db, request.id, 3)
    await reads(other, told)
    assert (told.names[0], told.names[-1], told.indexes) == ("accepted", "end", [0, 1, 2])


async def test_a_reader_that_takes_nothing_is_kept_waiting_with_little(
    db: Database, node: Client
) -> None:
    """Each would otherwise hold what the kernel does not take of an end of thirty megabytes."""
    request_id, public_id = await submitted(db, 160)
    leases = await claimed(db, request_id, 160)
    for first in range(0, 160, 40):
        part = leases[first : first + 40]
        await exchanged(db, [Ready(lease, "x" * 100_000) for lease in part])
    await close(db, request_id, "completed")
    path = f"{REQUESTS}/{public_id}/events"
    last = "Last-Event-ID: 160:0-159"
    whole = len((await node.get(path, headers=dict([last.split(": ")]))).content)

    def resident() -> int:
        status = Path(f"/proc/{node.program.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    before = resident()
    async with contextlib.AsyncExitStack() as open_calls:
        for _ in range(20):
            call = raw_call(node, raw_request("GET", path, b"", last))
            reader, _ = await open_calls.enter_async_context(call)
            await reader.readuntil(b"event: end")
        after = resident()

    assert whole > 30_000_000
    assert after - before < 20 * 8 * PIECE_BYTES + 4 * whole


async def test_a_reader_that_leaves_while_it_is_kept_waiting_is_forgotten_at_once(
    db: Database,
) -> None:
    request_id, public_id = await submitted(db, 1)
    service = RequestService(db, AppSettings())
    response = events_reply(service, TENANT, await request_of(db, public_id), None)
    is_sending = asyncio.Event()

    async def leaves() -> dict[str, Any]:
        await is_sending.wait()
        return {"type": "http.disconnect"}

    async def takes_nothing(message: Any) -> None:
        if message["type"] == "http.response.body":
            is_sending.set()
            await asyncio.Event().wait()

    await response({"type": "http"}, leaves, takes_nothing)

    assert is_sending.is_set()
    assert service.subscriptions._subscriptions == {}
    row = await request_row(db, request_id)
    assert row is not None
    assert row["status"] == "active"


# What comes before the first byte.


async def test_what_cannot_be_watched_is_a_problem_and_no_stream(
    db: Database, node: Client
) -> None:
    request_id, _ = await submitted(db, 1, public_id="old")
    await submitted(db, 1, public_id="theirs", tenant="another")
    await close(db, request_id, "completed")
    assert await settle(db, request_id, 0) == "settled"
    await submitted(db, 3, public_id="mine")

    for name, status in (("new", 404), ("theirs", 404), ("old", 410), ("-", 422)):
        assert_problem(await node.get(f"{REQUESTS}/{name}/events", headers=EVENTS), status)
    for last in ("x", "1:3", "4:end", "3:0-1"):
        response = await node.get(f"{MINE}/events", headers={"Last-Event-ID": last})
        assert_problem(response, 422)
    assert_problem(await node.put(MINE, headers=EVENTS, json={}), 422)
    assert_problem(await node.put(MINE, headers=EVENTS, json={"document": "Other."}), 422)
    assert (await node.head(f"{MINE}/events")).status_code == 405


async def test_a_stranger_is_told_that_there_is_no_such_request(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_KEYLESS="off")
    request_id, _ = await submitted(db, 1, public_id="mine", tenant="acme")
    await worked(db, request_id, 1)
    path = f"{MINE}/events"

    assert_problem(await node.get(path), 401)
    assert_problem(await node.get(path, headers=await bearer(db, "other")), 404)
    response = await node.get(path, headers=await bearer(db, "acme"))

    assert response.status_code == 200
    assert "event: end" in response.text


async def test_who_has_had_the_end_is_told_that_this_was_all(db: Database, node: Client) -> None:
    request_id, _ = await submitted(db, 2, public_id="mine")
    await worked(db, request_id, 2)
    told = Told()
    await reads(node, told)

    response = await node.get(f"{MINE}/events", headers={"Last-Event-ID": told.last_id})

    assert (response.status_code, response.content) == (204, b"")


@pytest.mark.parametrize(
    "accept, is_stream",
    [
        ("text/event-stream", True),
        ("TEXT/Event-Stream; charset=utf-8", True),
        ("text/event-stream, */*;q=0.1", True),
        ("application/json;q=0.5, text/event-stream", True),
        ("application/json, text/event-stream", False),
        ("text/event-stream;q=0", False),
        ("text/event-stream;q=x", False),
        ("*/*", False),
        ("text/*", False),
        ("", False),
    ],
)
async def test_a_call_is_answered_with_events_only_where_it_would_rather_have_them(
    db: Database, accept: str, is_stream: bool
) -> None:
    door = RequestService(db, AppSettings(keyless=True))
    api = httpx.ASGITransport(build(door))
    async with httpx.AsyncClient(transport=api, base_url="http://localhost") as near:
        response = await near.post(REQUESTS, json={"document": " "}, headers={"Accept": accept})

    kind = response.headers["Content-Type"].split(";")[0]
    assert kind == ("text/event-stream" if is_stream else "application/json")
    assert response.headers["RateLimit"]


async def test_a_database_that_is_away_is_told_before_the_first_byte(db: Database) -> None:
    asked = Asked(db)
    asked.away = True
    api = httpx.ASGITransport(build(RequestService(asked, AppSettings(keyless=True))))
    async with httpx.AsyncClient(transport=api, base_url="http://localhost") as near:
        assert_problem(await near.get(f"{MINE}/events"), 503)
        sent = {"document": "One."}
        assert_problem(await near.put(MINE, json=sent, headers=EVENTS), 503)
