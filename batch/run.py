"""Runs the batch: it closes overdue requests and settles closed ones, until stopped."""

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

# No statement takes so long while the database is available. After a longer time, it was not.
SILENT_SECONDS = 2.0

# How many settlements run at once, since each waits for the disk. One at a time was 1.8 times as
# fast as the fastest fleet on MySQL; the goal is twice as fast.
AT_ONCE = 4


class Batch:
    """The state of one batch between steps, such as where its next page begins."""

    def __init__(self, db: Database, settings: BatchSettings, stop: asyncio.Event) -> None:
        self._db = db
        self._settings = settings
        self._stop = stop
        self._after = 0
        self._deferred = 0
        self._reported: set[int] = set()
        self._read_at = time.monotonic()
        self._abandons_from = float("-inf")

    async def step(self) -> bool:
        """Close overdue requests and settle one page; False when there is nothing more to do."""
        closed = settled = 0
        late = await overdue(self._db, self._settings.grace_seconds)
        self._note_read()
        for request_id in late if time.monotonic() >= self._abandons_from else []:
            if await self._guard(request_id, abandon(self._db, request_id)):
                closed += 1
                ABANDONED.inc()
                log.warning("closed as abandoned", extra=await log_fields(self._db, request_id))
        page = await settleable(self._db, self._settings.retention_seconds, self._after)
        # The next page begins after this one, however many requests of this one are deferred.
        more = len(page) == PAGE
        self._after = page[-1] if more else 0
        # In random order, so that two batches seldom settle the same request.
        ready = random.sample(page, len(page))
        for first in range(0, len(ready), AT_ONCE):
            if self._stop.is_set():
                break
            group = ready[first : first + AT_ONCE]
            settling = (self._guard(id_, self._settle(id_)) for id_ in group)
            settled += sum(await asyncio.gather(*settling))
            self._note_read()
        if closed or settled:
            log.info("%d closed as abandoned, %d settled", closed, settled)
        if not more:
            BLOCKED.set(self._deferred)
            self._deferred = 0
        LAST_SUCCESS.set_to_current_time()
        return bool(closed or settled or more)

    def _note_read(self) -> None:
        """After the database was unavailable, abandon no request for another grace.

        Callers whose deadline was in that time got a 503, and can retry only now.
        """
        now = time.monotonic()
        if now - self._read_at > self._settings.idle_seconds + SILENT_SECONDS:
            self._abandons_from = now + self._settings.grace_seconds
        self._read_at = now

    async def _settle(self, request_id: int) -> bool:
        try:
            settling = await settle(self._db, request_id, self._settings.retention_seconds)
        except MySQLError:
            SETTLEMENTS["refused"].inc()
            raise
        self._deferred += settling == "deferred"
        return settling == "settled"

    async def _guard(self, request_id: int, work: Awaitable[bool]) -> bool:
        try:
            return await work
        except MySQLError as error:
            # There is a record of the same id, or the tables refuse a row. Nothing was deleted, and
            # this request must not delay the others. It is reported once.
            if request_id not in self._reported:
                self._reported.add(request_id)
                log.error(
                    "request %d is left as it is: %s",
                    request_id,
                    error_text(error),
                    extra=await log_fields(self._db, request_id),
                )
            return False


CALLER = """
SELECT public_id AS request_id, tenant
FROM   requests
WHERE  id = %s
"""


async def log_fields(db: Database, request_id: int) -> Row:
    """The log fields of a request, read only when there is something to log."""
    rows = await db.read(CALLER, (request_id,))
    return {"request_no": request_id, **(rows[0] if rows else {})}


async def run(
    database: DatabaseSettings, settings: BatchSettings, metrics: MetricsSettings
) -> None:
    """Run until SIGTERM or SIGINT."""
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
            read = functools.partial(read_gauges, db, settings.retention_seconds)
            loops.create_task(
                repeat(read, lambda: GAUGE_SECONDS, stop, first_seconds=GAUGE_SECONDS)
            )


async def run_once(database: DatabaseSettings, settings: BatchSettings) -> None:
    """Run until nothing more is ready, or SIGTERM or SIGINT."""
    stop = stop_on_signals()
    async with open_database(database) as db:
        await until_idle(Batch(db, settings, stop).step, stop)
