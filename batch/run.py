"""The batch closes what is overdue and settles what is ready, until it is told to stop."""

import asyncio
import functools
import logging
import random
import time
from collections.abc import Awaitable

from pymysql.err import MySQLError

from partway.batch.gauges import GAUGE_SECONDS, read_gauges
from partway.batch.metrics import ABANDONED, BLOCKED, LAST_SUCCESS, REGISTRY, SETTLEMENTS
from partway.batch.reaper import abandon, overdue
from partway.batch.settings import BatchSettings
from partway.batch.settle import PAGE, settle, settleable
from partway.store.database import Database, Row, error_text
from partway.store.exposition import MetricsSettings, serve_metrics
from partway.store.loop import repeat, stop_on_signals, until_idle
from partway.store.settings import DatabaseSettings
from partway.store.start import open_database

log = logging.getLogger("partway.batch")

# No statement takes so long while the database is there, so beyond this it was away.
SILENT_SECONDS = 2.0

# Settlements that run at once, for each waits for the disk: one alone kept 1.8 times ahead of the
# fastest fleet on MySQL, where twice is asked for.
AT_ONCE = 4


class Batch:
    """One batch: where its next pass begins, and which requests it has complained of already."""

    def __init__(self, db: Database, settings: BatchSettings, stop: asyncio.Event) -> None:
        self._db = db
        self._settings = settings
        self._stop = stop
        self._after = 0
        self._deferred = 0
        self._refused: set[int] = set()
        self._read_at = time.monotonic()
        self._gives_up_at = float("-inf")

    async def step(self) -> bool:
        """Close what is overdue, settle a page of what is ready; False when nothing more waits."""
        closed = settled = 0
        late = await overdue(self._db, self._settings.grace_seconds)
        self._note_read()
        for request_id in late if time.monotonic() >= self._gives_up_at else []:
            if await self._tried(request_id, abandon(self._db, request_id)):
                closed += 1
                ABANDONED.inc()
                log.warning("closed as abandoned", extra=await named(self._db, request_id))
        page = await settleable(self._db, self._settings.retention_seconds, self._after)
        # However many are deferred, those behind them come next.
        more = len(page) == PAGE
        self._after = page[-1] if more else 0
        # In no order, so that two batches seldom meet.
        ready = random.sample(page, len(page))
        for first in range(0, len(ready), AT_ONCE):
            if self._stop.is_set():
                break
            tries = (self._tried(id_, self._settled(id_)) for id_ in ready[first : first + AT_ONCE])
            settled += sum(await asyncio.gather(*tries))
            self._note_read()
        if closed or settled:
            log.info("%d closed as abandoned, %d settled", closed, settled)
        if not more:
            BLOCKED.set(self._deferred)
            self._deferred = 0
        LAST_SUCCESS.set_to_current_time()
        return bool(closed or settled or more)

    def _note_read(self) -> None:
        """After a silence of the database, give nothing up for another grace.

        Callers at whose deadline it was away were told to come back, and can do so only now.
        """
        now = time.monotonic()
        if now - self._read_at > self._settings.idle_seconds + SILENT_SECONDS:
            self._gives_up_at = now + self._settings.grace_seconds
        self._read_at = now

    async def _settled(self, request_id: int) -> bool:
        try:
            settling = await settle(self._db, request_id, self._settings.retention_seconds)
        except MySQLError:
            SETTLEMENTS["refused"].inc()
            raise
        self._deferred += settling == "deferred"
        return settling == "settled"

    async def _tried(self, request_id: int, doing: Awaitable[bool]) -> bool:
        try:
            return await doing
        except MySQLError as error:
            # Another record of the same id, or rows that the tables refuse. Nothing is deleted, and
            # one does not hold up the rest.
            if request_id not in self._refused:
                self._refused.add(request_id)
                log.error(
                    "request %d is left as it is: %s",
                    request_id,
                    error_text(error),
                    extra=await named(self._db, request_id),
                )
            return False


NAMED = """
SELECT public_id AS request_id, tenant
FROM   requests
WHERE  id = %s
"""


async def named(db: Database, request_id: int) -> Row:
    """A request as logs name it, read only when there is something to say of it."""
    found = await db.read(NAMED, (request_id,))
    return {"request_no": request_id, **(found[0] if found else {})}


async def run(
    database: DatabaseSettings, settings: BatchSettings, metrics: MetricsSettings
) -> None:
    """Settle until told to stop; nothing comes back."""
    stop = stop_on_signals()
    async with (
        serve_metrics(metrics, REGISTRY),
        open_database(database) as db,
        asyncio.TaskGroup() as loops,
    ):
        batch = Batch(db, settings, stop)
        log.info("settling, %g s after the close", settings.retention_seconds)
        loops.create_task(repeat(batch.step, lambda: settings.idle_seconds, stop))
        if metrics.port:
            looks = functools.partial(read_gauges, db, settings.retention_seconds)
            loops.create_task(
                repeat(looks, lambda: GAUGE_SECONDS, stop, first_seconds=GAUGE_SECONDS)
            )


async def run_once(database: DatabaseSettings, settings: BatchSettings) -> None:
    """Settle until nothing more is ready, or told to stop; nothing comes back."""
    stop = stop_on_signals()
    async with open_database(database) as db:
        await until_idle(Batch(db, settings, stop).step, stop)
