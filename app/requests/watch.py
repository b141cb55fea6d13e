"""One look serves every call of a node that waits: a thousand waiting calls ask as one."""

import asyncio
import heapq
import time
from dataclasses import dataclass

from partway.app.metrics import INFLIGHT, POLLS
from partway.store.database import Database, Unavailable, expand_lists
from partway.store.loop import wait_for_any

# A short request is not kept waiting for a slow look: each comes a twentieth of the time elapsed
# after the last, at first after this.
FIRST_POLL_SECONDS = 0.005
ELAPSED_SHARE = 1 / 20

# Looks are no closer than this, so that what becomes due meanwhile shares the next one.
TICK_SECONDS = 0.005

# As many in one statement as can all be told of it in a hundredth of a second: in that time the
# node does nothing else, and the answer of another call may be due.
POLLED_AT_ONCE = 100

# Only counted here: each result is read once, when somebody needs it. Counting 100 rows costs the
# server less than sending one poll of them to the node. The index is named, for MySQL reads a small
# table whole where it has not counted its rows yet.
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
    """How far a request was at the last look; its status is None when it is settled and gone."""

    status: str | None
    finished: int


GONE = Progress(None, 0)


@dataclass
class _Waiting:
    """A request that somebody waits for: since when, who is told, and how many they are."""

    began: float
    told: asyncio.Future[Progress]
    listeners: int = 0


class Watch:
    """What the calls of this node wait for; it looks for as long as anybody does.

    A class, since whoever comes shares the looks of those who are there. However many wait for a
    request, it is looked at once in its turn, and while they wait none of them holds anything.
    """

    def __init__(self, db: Database, poll_seconds: float) -> None:
        self._db = db
        self._poll_seconds = poll_seconds
        self._waiting: dict[int, _Waiting] = {}
        # When each of them is looked at next, soonest first.
        self._due: list[tuple[float, int]] = []
        self._polling: asyncio.Task[None] | None = None
        self._came = asyncio.Event()
        INFLIGHT.set_function(lambda: len(self._waiting))

    async def next(self, request_id: int) -> Progress:
        """What the next look at the request shows; while the database is away, none comes."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            now = time.monotonic()
            waiting = _Waiting(now, asyncio.get_running_loop().create_future())
            self._waiting[request_id] = waiting
            heapq.heappush(self._due, (now, request_id))
            self._came.set()
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._look_on())
        waiting.listeners += 1
        try:
            return await asyncio.shield(waiting.told)
        finally:
            waiting.listeners -= 1

    async def end(self) -> None:
        """Look no more, for nobody waits any longer; nothing comes back."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])

    async def _look_on(self) -> None:
        """Look at what is due, again and again, until nobody waits for anything."""
        # Whoever was looked at when the looks before these ended, by a fault, is looked at again.
        self._due = [(time.monotonic(), id_) for id_ in self._waiting]
        while self._due:
            self._came.clear()
            now = time.monotonic()
            wanted = []
            while self._due and self._due[0][0] <= now:
                _, id_ = heapq.heappop(self._due)
                if self._waiting[id_].listeners:
                    wanted.append(id_)
                else:
                    del self._waiting[id_]
            for first in range(0, len(wanted), POLLED_AT_ONCE):
                await self._look(wanted[first : first + POLLED_AT_ONCE])
            await asyncio.sleep(TICK_SECONDS)
            soonest = self._due[0][0] if self._due else 0.0
            await wait_for_any(max(soonest - time.monotonic(), 0), self._came)

    async def _look(self, wanted: list[int]) -> None:
        """One statement; whoever waits for these requests is told what it shows."""
        POLLS.inc()
        try:
            rows = await self._db.read(expand_lists(PROGRESS, len(wanted)), wanted)
        except Unavailable:
            # Each call knows its own deadline, and has more to say then than that a look failed.
            rows = None
        now = time.monotonic()
        found = {row["id"]: Progress(row["status"], row["finished"]) for row in rows or ()}
        for id_ in wanted:
            waiting = self._waiting[id_]
            elapsed = now - waiting.began
            pace = max(elapsed * ELAPSED_SHARE, FIRST_POLL_SECONDS)
            heapq.heappush(self._due, (now + min(pace, self._poll_seconds), id_))
            if rows is not None:
                waiting.told.set_result(found.get(id_, GONE))
                waiting.told = asyncio.get_running_loop().create_future()
