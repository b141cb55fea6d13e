"""An idle fleet looks for work as one: each worker says it is there and learns how many are."""

import contextlib

from partway.store.database import Database, Unavailable
from partway.worker.settings import WorkerSettings

# All idle workers together look about so often a second, whether they are two or two hundred: the
# first to look finds new work as soon, and the database has as little to answer.
POLLS_PER_SECOND = 60.0

# A worker that is nearly alone need not look more often than this.
LEAST_WAIT_SECONDS = 0.02

# How often a worker says that it is there, and for how long after that it counts.
PRESENT_SECONDS = 15.0
MISSED_SECONDS = 40.0

PRESENT = """
INSERT INTO workers (name, slots, seen_at)
VALUES (%s, %s, NOW(6))
ON DUPLICATE KEY UPDATE slots = %s, seen_at = NOW(6)
"""

SIZE = """
SELECT COUNT(*) AS workers
FROM   workers
WHERE  seen_at > NOW(6) - INTERVAL %s SECOND
"""

LEAVE = """
DELETE FROM workers
WHERE  name = %s
"""

# Nobody said goodbye for these: they were killed.
DELETE_MISSING = """
DELETE FROM workers
WHERE  seen_at < NOW(6) - INTERVAL 1 DAY
"""


class Fleet:
    """How many workers there are, as this one last heard; a class, since it is asked in between."""

    def __init__(self, db: Database, settings: WorkerSettings) -> None:
        self._db = db
        self._settings = settings
        self._workers = 0

    async def step(self) -> bool:
        """Say that this worker is there, and learn how many are; False always."""
        if self._workers == 0:
            await self._db.write(DELETE_MISSING)
        slots = self._settings.concurrency
        await self._db.write(PRESENT, (self._settings.name, slots, slots))
        (row,) = await self._db.read(SIZE, (MISSED_SECONDS,))
        self._workers = row["workers"]
        return False

    def idle_wait_seconds(self) -> float:
        """The longest rest of this worker between two looks, for it to do its share of them."""
        idle_wait_seconds = max(self._workers / POLLS_PER_SECOND, LEAST_WAIT_SECONDS)
        return min(idle_wait_seconds, self._settings.idle_seconds)

    async def leave(self) -> None:
        """Count no longer; nothing comes back."""
        # Who is away at the end is not seen any more, and stops counting by that.
        with contextlib.suppress(Unavailable):
            await self._db.write(LEAVE, (self._settings.name,))
