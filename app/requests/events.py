"""People watch an answer grow, so whoever asks is told event by event, and misses none.

    event: accepted   data {"id", "deadline_at", "total"}         id: 0:
    event: segment    data: one segment that is done or failed    id: 3:0-1,5
    event: working    data {"indexes"}: those that run now, when that has changed
    event: end        data: the whole answer                      id: 101:end

An id says how many segments its reader has and which, so that any node can go on from there. What
becomes done at the very instant of a close may be told and still be too late: `end` has the answer.
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

# Shorter than what any proxy takes for a silent, dead connection.
PING_SECONDS = 15.0
PING = b": ping\n\n"

# A stream asks so often whether its node stops, also while nothing can be read that would wake it.
PAUSE_SECONDS = 2.0


class Accepted(BaseModel):
    """The request is stored; a reader whose stream breaks can come back for the rest."""

    id: str
    deadline_at: datetime
    total: int = Field(description="How many segments it has.")


class Working(BaseModel):
    """Which segments run now."""

    indexes: list[int]


RANGE = "[0-9]{1,9}(?:-[0-9]{1,9})?"
EVENT_ID = re.compile(f"([0-9]{{1,9}}):(end|(?:{RANGE}(?:,{RANGE})*)?)")


@dataclass(frozen=True)
class StreamPosition:
    """How far the reader of a stream has come; `ranges` name the segments that it has."""

    count: int
    ranges: tuple[tuple[int, int], ...]
    is_end: bool

    def indexes(self, total: int) -> set[int]:
        """The segments of a request of `total` that the reader has; Problem 422 for an id of none.

        The ranges are written out only here: an id may claim a thousand million segments.
        """
        is_one = self.count == total + 1 if self.is_end else last_of(self.ranges) < total
        if not is_one:
            raise unknown_position()
        return {index for first, last in self.ranges for index in range(first, last + 1)}


def read_position(event_id: str | None) -> StreamPosition | None:
    """The place in a Last-Event-ID; None when there is none yet. Problem 422 for no id of ours."""
    if not event_id:
        return None
    found = EVENT_ID.fullmatch(event_id)
    if found is None:
        raise unknown_position()
    count, said = int(found[1]), found[2]
    if said == "end":
        return StreamPosition(count, (), True)
    pairs = [part.partition("-") for part in filter(None, said.split(","))]
    ranges = tuple((int(first), int(last or first)) for first, _, last in pairs)
    before = -1
    for first, last in ranges:
        if not before < first <= last:
            raise unknown_position()
        before = last
    if count != sum(last - first + 1 for first, last in ranges):
        raise unknown_position()
    return StreamPosition(count, ranges, False)


def last_of(ranges: tuple[tuple[int, int], ...]) -> int:
    """The last index in the ranges; -1 when there is none."""
    return ranges[-1][1] if ranges else -1


def unknown_position() -> Problem:
    """The problem of a Last-Event-ID that no event of the request has."""
    return Problem("invalid-request", "Last-Event-ID is not the id of an event of this request.")


def event_id(had: Collection[int]) -> str:
    """The id of an event after which its reader has these segments."""
    ranges: list[list[int]] = []
    for index in sorted(had):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    said = (f"{first}-{last}" if first < last else f"{first}" for first, last in ranges)
    return f"{len(had)}:{','.join(said)}"


def format_event(name: str, said: BaseModel, id: str | None = None) -> bytes:
    """An event as it goes over the wire; JSON has no line ends, so its data is one line.

    Not by the framework: it would write an answer anew for each reader, and is known to the door
    only.
    """
    head = f"event: {name}\n" if id is None else f"event: {name}\nid: {id}\n"
    return f"{head}data: {said.model_dump_json()}\n\n".encode()


class RequestSubscription:
    """What this node has read of a request; a class, since all who watch it share it.

    None of them makes it grow: each keeps which segments it has told, and takes the rest from here.
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

    def tell(self) -> None:
        """Wake whoever waits for news; nothing comes back."""
        self.changed.set()
        self.changed = asyncio.Event()

    def lacking(self, had: Collection[int]) -> list[SegmentAnswer]:
        """The finished segments that a reader does not have yet, in document order.

        Once there is an answer it decides: what became done after the close is none of it.
        """
        if self.answer is not None:
            return [
                segment
                for segment in self.answer.segments
                if segment.status in ("done", "failed") and segment.index not in had
            ]
        return [to_segment_answer(self.finished[i]) for i in sorted(self.finished.keys() - had)]

    def is_stale(self) -> bool:
        """Whether a newcomer needs another: this one has failed, or its figures were not final."""
        return self.is_over and (self.answer is None or not self.answer.usage.final)


class RequestSubscriptions:
    """The requests that are watched on this node, each followed once however many watch it.

    Following one is also seeing to its end: it is closed at its deadline by whichever node watches.
    """

    def __init__(self, db: Database, watch: Watch) -> None:
        self._db = db
        self._watch = watch
        self._subscriptions: dict[int, RequestSubscription] = {}

    @contextlib.contextmanager
    def watching(self, tenant: str, request: Request) -> Iterator[RequestSubscription]:
        """The subscription of a request; its rows are read for as long as any such block lasts."""
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
                # A newcomer may have put another in the place of a stale one.
                if self._subscriptions.get(request.id) is subscription:
                    del self._subscriptions[request.id]

    async def _follow(self, tenant: str, subscription: RequestSubscription) -> None:
        """Read what is new at each look until the request is final, and then the answer."""
        request = subscription.request
        try:
            if request.status == "active":
                ends_at = request.ends_at
                async for progress in polls(self._db, self._watch, request, lambda: ends_at):
                    await self._read(subscription, progress)
            # What was read already crosses the wire no second time.
            answer = await read_answer(self._db, tenant, request.public_id, subscription.finished)
            if answer is not None:
                subscription.end = format_event("end", answer, f"{request.segments + 1}:end")
                subscription.answer = answer
        except (Unavailable, Settled):
            # The streams end without their `end`: a reader that comes back is told why.
            return
        finally:
            subscription.is_over = True
            subscription.tell()

    async def _read(self, subscription: RequestSubscription, progress: Progress) -> None:
        """Take in what is new; what cannot be read now is read at a later look."""
        request = subscription.request
        left = request.ends_at - time.monotonic()
        if left <= 0:
            return
        # Nothing may be in the way of the close; the answer will say what is missed here.
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(left):
                # Before the results: what is written back in between must not be in neither.
                working = await read_processing(self._db, request.id)
                if progress.finished > len(subscription.finished):
                    status, fresh = await read_newly_finished(
                        self._db, request.id, subscription.finished
                    )
                    # What a row said beside a close may be too late for the answer.
                    if status == "active" and fresh:
                        subscription.finished |= fresh
                        subscription.tell()
                working -= subscription.finished.keys()
                if working != subscription.working:
                    subscription.working = frozenset(working)
                    subscription.tell()


async def stream(
    subscription: RequestSubscription, has: set[int] | None, stops_at: Callable[[], float]
) -> AsyncIterator[bytes]:
    """The events that a reader lacks who has these segments, with pings, until `stops_at()`.

    None for one who has nothing yet. It ends without an `end` when the node stops, or the database
    was away when the request was due: the request goes on, and the reader on another node.
    """
    request = subscription.request
    had = set() if has is None else has
    working: frozenset[int] = frozenset()
    if has is None:
        deadline_at = request.deadline.replace(tzinfo=UTC)
        accepted = Accepted(id=request.public_id, deadline_at=deadline_at, total=request.segments)
        yield format_event("accepted", accepted, event_id(had))
    silent_since = time.monotonic()
    while time.monotonic() < stops_at():
        changed = subscription.changed
        for segment in subscription.lacking(had):
            had.add(segment.index)
            yield format_event("segment", segment, event_id(had))
            silent_since = time.monotonic()
        # Not what has come while a slow reader was told of the rest: that goes before the end.
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
