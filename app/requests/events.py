"""A caller can read the answer while it grows: as server-sent events, of which it misses none.

    event: accepted   data {"id", "deadline_at", "total"}         id: 0:
    event: segment    data: one segment that is done or failed    id: 3:0-1,5
    event: working    data {"indexes"}: those that run now, sent when they change
    event: end        data: the whole answer                      id: 101:end

The id of an event says how many segments its reader has, and which. So any node can resume the
stream after it. A segment that becomes done at the moment of the close may be sent as an event and
still be too late for the answer; the event `end` holds the answer.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import BaseModel, Field

from partway.app.problems import Problem
from partway.app.requests.answer import (
    Answer,
    Finished,
    Request,
    SegmentAnswer,
    read_answer,
    read_newly_finished,
    read_processing,
    to_segment_answer,
)
from partway.app.requests.fanin import polls
from partway.app.requests.ledger import Settled
from partway.app.requests.watch import Progress, Watch
from partway.store.database import Database, Unavailable
from partway.store.loop import wait_for_any

EVENTS = "text/event-stream"

# Proxies close a connection that is silent for longer.
PING_SECONDS = 15.0
PING = b": ping\n\n"

# A stream without news checks at this interval whether its node stops.
PAUSE_SECONDS = 2.0


class Accepted(BaseModel):
    """The request is stored. A reader whose stream breaks can resume it."""

    id: str
    deadline_at: datetime
    total: int = Field(description="How many segments the request has.")


class Working(BaseModel):
    """The segments that run now."""

    indexes: list[int]


RANGE = "[0-9]{1,9}(?:-[0-9]{1,9})?"
EVENT_ID = re.compile(f"([0-9]{{1,9}}):(end|(?:{RANGE}(?:,{RANGE})*)?)")


@dataclass(frozen=True)
class StreamPosition:
    """What the reader of a stream has: the segments in `ranges`, and perhaps the event `end`."""

    count: int
    ranges: tuple[tuple[int, int], ...]
    is_end: bool

    def indexes(self, total: int) -> set[int]:
        """The segments that the reader has, of a request with `total` segments.

        Raises Problem 422 when no event of the request has this position. The ranges are expanded
        only here, after that check: an id may name a thousand million segments.
        """
        is_possible = self.count == total + 1 if self.is_end else last_index(self.ranges) < total
        if not is_possible:
            raise unknown_position()
        return {index for first, last in self.ranges for index in range(first, last + 1)}


def read_position(event_id: str | None) -> StreamPosition | None:
    """The position that a Last-Event-ID names; None without one. Problem 422 when it is no id."""
    if not event_id:
        return None
    match = EVENT_ID.fullmatch(event_id)
    if match is None:
        raise unknown_position()
    count, indexes = int(match[1]), match[2]
    if indexes == "end":
        return StreamPosition(count, (), True)
    pairs = [part.partition("-") for part in filter(None, indexes.split(","))]
    ranges = tuple((int(first), int(last or first)) for first, _, last in pairs)
    previous = -1
    for first, last in ranges:
        if not previous < first <= last:
            raise unknown_position()
        previous = last
    if count != sum(last - first + 1 for first, last in ranges):
        raise unknown_position()
    return StreamPosition(count, ranges, False)


def last_index(ranges: tuple[tuple[int, int], ...]) -> int:
    """The last index in the ranges; -1 when there is none."""
    return ranges[-1][1] if ranges else -1


def unknown_position() -> Problem:
    """The problem for a Last-Event-ID that no event of the request has."""
    return Problem("invalid-request", "Last-Event-ID is not the id of an event of this request.")


def event_id(indexes: Collection[int]) -> str:
    """The id of an event after which its reader has these segments."""
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    parts = (f"{first}-{last}" if first < last else f"{first}" for first, last in ranges)
    return f"{len(indexes)}:{','.join(parts)}"


def format_event(name: str, content: BaseModel, id: str | None = None) -> bytes:
    """An event in its wire format. JSON has no line ends, so the data is one line.

    FastAPI is not used for it: it would serialize an answer again for each reader, and this floor
    does not know HTTP.
    """
    head = f"event: {name}\n" if id is None else f"event: {name}\nid: {id}\n"
    return f"{head}data: {content.model_dump_json()}\n\n".encode()


class RequestSubscription:
    """What this node has read of a request, shared by all streams of the request.

    Only the task `following` changes it. Each stream remembers which segments it has sent.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.finished: dict[int, Finished] = {}
        self.working: frozenset[int] = frozenset()
        self.answer: Answer | None = None
        self.end = b""
        self.is_over = False
        self.changed = asyncio.Event()
        self.watchers = 0
        self.following: asyncio.Task[None]

    def notify(self) -> None:
        """Wake the streams that wait for news."""
        self.changed.set()
        self.changed = asyncio.Event()

    def finished_except(self, sent: Collection[int]) -> list[SegmentAnswer]:
        """The finished segments that are not in `sent`, in document order.

        As soon as there is an answer, they come from the answer: a segment that became done after
        the close does not belong to it.
        """
        if self.answer is not None:
            return [
                segment
                for segment in self.answer.segments
                if segment.status in ("done", "failed") and segment.index not in sent
            ]
        return [to_segment_answer(self.finished[i]) for i in sorted(self.finished.keys() - sent)]

    def is_stale(self) -> bool:
        """Whether a new stream needs a new one: this one failed, or its figures were not final."""
        return self.is_over and (self.answer is None or not self.answer.usage.final)


class RequestSubscriptions:
    """The requests that are streamed by this node; each is read once for all of its streams.

    A request that is streamed is also closed at its deadline.
    """

    def __init__(self, db: Database, watch: Watch) -> None:
        self._db = db
        self._watch = watch
        self._subscriptions: dict[int, RequestSubscription] = {}

    @contextlib.contextmanager
    def watching(self, tenant: str, request: Request) -> Iterator[RequestSubscription]:
        """The subscription of a request; its rows are read until the last such block ends."""
        subscription = self._subscriptions.get(request.id)
        if subscription is None or subscription.is_stale():
            subscription = self._subscriptions[request.id] = RequestSubscription(request)
            subscription.following = asyncio.create_task(self._follow(tenant, subscription))
        subscription.watchers += 1
        try:
            yield subscription
        finally:
            subscription.watchers -= 1
            if not subscription.watchers:
                subscription.following.cancel()
                # A new stream may have replaced this subscription, if it was stale.
                if self._subscriptions.get(request.id) is subscription:
                    del self._subscriptions[request.id]

    async def _follow(self, tenant: str, subscription: RequestSubscription) -> None:
        """Read the new segments after each poll until the request is final, then the answer."""
        request = subscription.request
        try:
            if request.status == "active":
                ends_at = request.ends_at
                async for progress in polls(self._db, self._watch, request, lambda: ends_at):
                    await self._read(subscription, progress)
            # Results that were read before are not read again.
            answer = await read_answer(self._db, tenant, request.public_id, subscription.finished)
            if answer is not None:
                subscription.end = format_event("end", answer, f"{request.segments + 1}:end")
                subscription.answer = answer
        except (Unavailable, Settled):
            # The streams end without the event `end`. A reader that reconnects gets the reason.
            return
        finally:
            subscription.is_over = True
            subscription.notify()

    async def _read(self, subscription: RequestSubscription, progress: Progress) -> None:
        """Add the new segments to the subscription; after a failure the next poll adds them."""
        request = subscription.request
        left = request.ends_at - time.monotonic()
        if left <= 0:
            return
        # No read may delay the close. The answer holds what is not read here.
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(left):
                # This read must come before that of the results. In the other order a segment that
                # is written back in between would be in neither.
                working = await read_processing(self._db, request.id)
                if progress.finished > len(subscription.finished):
                    status, newly_finished = await read_newly_finished(
                        self._db, request.id, subscription.finished
                    )
                    # Rows that were read after the close may be too late for the answer.
                    if status == "active" and newly_finished:
                        subscription.finished |= newly_finished
                        subscription.notify()
                working -= subscription.finished.keys()
                if working != subscription.working:
                    subscription.working = frozenset(working)
                    subscription.notify()


async def stream(
    subscription: RequestSubscription, known: set[int] | None, stops_at: Callable[[], float]
) -> AsyncIterator[bytes]:
    """The events that a reader lacks, with pings, until `stops_at()`.

    `known` holds the segments that the reader has; None when it has read no event. The stream ends
    without the event `end` when the node stops, or when the database was unavailable at the
    deadline. The request then continues, and its reader can resume on another node.
    """
    request = subscription.request
    sent = set() if known is None else known
    working: frozenset[int] = frozenset()
    if known is None:
        deadline_at = request.deadline.replace(tzinfo=UTC)
        accepted = Accepted(id=request.public_id, deadline_at=deadline_at, total=request.segments)
        yield format_event("accepted", accepted, event_id(sent))
    silent_since = time.monotonic()
    while time.monotonic() < stops_at():
        changed = subscription.changed
        for segment in subscription.finished_except(sent):
            sent.add(segment.index)
            yield format_event("segment", segment, event_id(sent))
            silent_since = time.monotonic()
        # If news came while a slow reader took these events, it is sent before the end.
        if subscription.is_over and not changed.is_set():
            if subscription.end:
                yield subscription.end
            return
        if subscription.working != working and not subscription.is_over:
            working = subscription.working
            yield format_event("working", Working(indexes=sorted(working)))
            silent_since = time.monotonic()
        if time.monotonic() - silent_since >= PING_SECONDS:
            yield PING
            silent_since = time.monotonic()
        await wait_for_any(PAUSE_SECONDS, changed)
