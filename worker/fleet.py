"""Idle workers share the polling: each one registers, and learns how many workers there are."""

import contextlib

from partway.store.database import Database, Unavailable
from partway.store.fleet import MISSED_SECONDS
from partway.worker.settings import WorkerSettings

# All idle workers together poll about this often, whether they are two or two hundred: new work is
# found equally soon, and the load on the database stays the same.
POLLS_PER_SECOND = 60.0

# The shortest idle wait, for a worker that is nearly alone.
LEAST_WAIT_SECONDS = 0.02

# How often a worker registers.
PRESENT_SECONDS = 15.0

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

# The rows of workers that were killed and could not delete them.
DELETE_MISSING = """
DELETE FROM workers
WHERE  seen_at < NOW(6) - INTERVAL 1 DAY
"""


class Fleet:
    """The registration of this worker, and the number of workers at its last registration."""

    def __init__(self, db: Database, settings: WorkerSettings) -> None:
        self._db = db
        self._settings = settings
        self._workers = 0

    async def step(self) -> bool:
        """Register this worker and count all workers; always False."""
        if self._workers == 0:
            await self._db.write(DELETE_MISSING)
        slots = self._settings.concurrency
        await self._db.write(PRESENT, (self._settings.name, slots, slots))
        (row,) = await self._db.read(SIZE, (MISSED_SECONDS,))
        self._workers = row["workers"]
        return False

    def idle_wait_seconds(self) -> float:
        """The longest idle wait of this worker, so that it does its share of the polling."""
        idle_wait_seconds = max(self._workers / POLLS_PER_SECOND, LEAST_WAIT_SECONDS)
        return min(idle_wait_seconds, self._settings.idle_seconds)

    async def leave(self) -> None:
        """Delete the registration."""
        # If the database is unavailable at shutdown, the row expires by itself.
        with contextlib.suppress(Unavailable):
            await self._db.write(LEAVE, (self._settings.name,))
