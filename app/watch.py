"""One look serves every call of a node that waits: a thousand waiting calls ask as one."""

import asyncio
import time
from dataclasses import dataclass

from app.metrics import INFLIGHT, POLLS
from store.database import Database, Unavailable, listed
from store.loop import rest

# A short request is not kept waiting for a slow look: each comes a twentieth of the time elapsed
# after the last, at first after this.
FIRST_LOOK_SECONDS = 0.005
ELAPSED_SHARE = 1 / 20

# Looks are no closer than this, so that what becomes due meanwhile shares the next one.
TICK_SECONDS = 0.005

# As many in one statement as it answers in a few hundredths of a second.
LOOKED_AT_ONCE = 500

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
    """A request that somebody waits for: since when, when it is looked at next, who is told."""

    began: float
    due: float
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
        self._looking: asyncio.Task[None] | None = None
        self._came = asyncio.Event()
        INFLIGHT.set_function(lambda: len(self._waiting))

    async def next(self, request_id: int) -> Progress:
        """What the next look at the request shows; while the database is away, none comes."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            now = time.monotonic()
            waiting = _Waiting(now, now, asyncio.get_running_loop().create_future())
            self._waiting[request_id] = waiting
            self._came.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_on())
        waiting.listeners += 1
        try:
            return await asyncio.shield(waiting.told)
        finally:
            waiting.listeners -= 1

    async def end(self) -> None:
        """Look no more, for nobody waits any longer; nothing comes back."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def _look_on(self) -> None:
        """Look at what is due, again and again, until nobody waits for anything."""
        while self._waiting:
            self._came.clear()
            now = time.monotonic()
            due = [id_ for id_, waiting in self._waiting.items() if waiting.due <= now]
            for id_ in due:
                if not self._waiting[id_].listeners:
                    del self._waiting[id_]
            wanted = [id_ for id_ in due if id_ in self._waiting]
            for first in range(0, len(wanted), LOOKED_AT_ONCE):
                await self._look(wanted[first : first + LOOKED_AT_ONCE])
            await asyncio.sleep(TICK_SECONDS)
            soonest = min((waiting.due for waiting in self._waiting.values()), default=0.0)
            await rest(max(soonest - time.monotonic(), 0), self._came)

    async def _look(self, wanted: list[int]) -> None:
        """One statement; whoever waits for these requests is told what it shows."""
        POLLS.inc()
        try:
            rows = await self._db.read(listed(PROGRESS, len(wanted)), wanted)
        except Unavailable:
            # Each call knows its own deadline, and has more to say then than that a look failed.
            rows = None
        now = time.monotonic()
        found = {row["id"]: Progress(row["status"], row["finished"]) for row in rows or ()}
        for id_ in wanted:
            waiting = self._waiting[id_]
            elapsed = now - waiting.began
            pace = max(elapsed * ELAPSED_SHARE, FIRST_LOOK_SECONDS)
            waiting.due = now + min(pace, self._poll_seconds)
            if rows is not None:
                waiting.told.set_result(found.get(id_, GONE))
                waiting.told = asyncio.get_running_loop().create_future()
