"""Polls all requests that calls of this node wait for, up to a hundred of them in one statement."""

import asyncio
import heapq
import time
from dataclasses import dataclass

from partway.app.metrics import INFLIGHT, POLLS
from partway.store.database import Database, Unavailable, expand_lists
from partway.store.loop import wait_for_any

# A short request must not wait for a slow poll. So the wait between two polls is a twentieth of
# the time for which the request has been waited for, and at least this.
FIRST_POLL_SECONDS = 0.005
ELAPSED_SHARE = 1 / 20

# The shortest time between two statements, so that requests that become due meanwhile share one.
TICK_SECONDS = 0.005

# So many waiting calls can be notified in a hundredth of a second. In this time the node does
# nothing else, and the answer of another call may be due.
POLLED_AT_ONCE = 100

# A poll only counts the finished segments; each result is read once, when a call needs it. For the
# server, counting 100 rows is cheaper than sending them once. The index is named, since MySQL scans
# a small table whole while it has no statistics of it.
PROGRESS = """
SELECT r.id, r.status,
       (SELECT COUNT(*)
        FROM   segments s FORCE INDEX (PRIMARY)
        WHERE  s.request_id = r.id
          AND  s.status IN ('done', 'failed')) AS finished
FROM   requests r
WHERE  r.id IN (...)
"""


@dataclass(frozen=True)
class Progress:
    """What a poll has read of a request; the status is None when it is settled and deleted."""

    status: str | None
    finished: int


GONE = Progress(None, 0)


@dataclass
class _Waiting:
    """A request that calls wait for: since when, the result of its next poll, and their number."""

    began: float
    next_poll: asyncio.Future[Progress]
    listeners: int = 0


class Watch:
    """Polls the requests that calls of this node wait for, while there are any.

    All calls that wait for a request share its polls. A waiting call holds no connection.
    """

    def __init__(self, db: Database, poll_seconds: float) -> None:
        self._db = db
        self._poll_seconds = poll_seconds
        self._waiting: dict[int, _Waiting] = {}
        # A heap: when each of them is polled next, the soonest first.
        self._due: list[tuple[float, int]] = []
        self._polling: asyncio.Task[None] | None = None
        # Set when a request is added.
        self._added = asyncio.Event()
        INFLIGHT.set_function(lambda: len(self._waiting))

    async def next(self, request_id: int) -> Progress:
        """The result of the request's next poll; waits while the database is unavailable."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            now = time.monotonic()
            waiting = _Waiting(now, asyncio.get_running_loop().create_future())
            self._waiting[request_id] = waiting
            heapq.heappush(self._due, (now, request_id))
            self._added.set()
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll_until_idle())
        waiting.listeners += 1
        try:
            return await asyncio.shield(waiting.next_poll)
        finally:
            waiting.listeners -= 1

    async def end(self) -> None:
        """Stop polling; called when no call waits any more."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])

    async def _poll_until_idle(self) -> None:
        """Poll the requests that are due, again and again, until no call waits for any."""
        # If the task before this one failed during a poll, its requests are in no heap.
        self._due = [(time.monotonic(), id_) for id_ in self._waiting]
        while self._due:
            self._added.clear()
            due = self._take_due()
            for first in range(0, len(due), POLLED_AT_ONCE):
                await self._poll(due[first : first + POLLED_AT_ONCE])
            await asyncio.sleep(TICK_SECONDS)
            soonest = self._due[0][0] if self._due else 0.0
            await wait_for_any(max(soonest - time.monotonic(), 0), self._added)

    def _take_due(self) -> list[int]:
        """The requests to poll now; those that no call waits for any more are removed."""
        now = time.monotonic()
        due = []
        while self._due and self._due[0][0] <= now:
            _, id_ = heapq.heappop(self._due)
            if self._waiting[id_].listeners:
                due.append(id_)
            else:
                del self._waiting[id_]
        return due

    async def _poll(self, ids: list[int]) -> None:
        """Read the progress of these requests, notify their calls, and plan the next poll."""
        POLLS.inc()
        try:
            rows = await self._db.read(expand_lists(PROGRESS, len(ids)), ids)
        except Unavailable:
            # A failed poll ends no call: each one waits until its own deadline.
            rows = None
        now = time.monotonic()
        by_id = {row["id"]: Progress(row["status"], row["finished"]) for row in rows or ()}
        for id_ in ids:
            waiting = self._waiting[id_]
            elapsed = now - waiting.began
            wait = max(elapsed * ELAPSED_SHARE, FIRST_POLL_SECONDS)
            heapq.heappush(self._due, (now + min(wait, self._poll_seconds), id_))
            if rows is not None:
                waiting.next_poll.set_result(by_id.get(id_, GONE))
                waiting.next_poll = asyncio.get_running_loop().create_future()
