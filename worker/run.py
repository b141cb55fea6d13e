"""A worker claims segments, computes them and writes them back, until it is told to stop."""

import asyncio
import logging

from partway.store.exposition import MetricsSettings, serve_metrics
from partway.store.loop import repeat, stop_on_signals
from partway.store.settings import DatabaseSettings
from partway.store.start import open_database
from partway.worker.compute import Compute
from partway.worker.fleet import PRESENT_SECONDS, Fleet
from partway.worker.metrics import REGISTRY
from partway.worker.settings import WorkerSettings
from partway.worker.slots import Slots

log = logging.getLogger("partway.worker")

# How often a lease that cannot be renewed is looked for; a fraction of slots.LET_GO_SECONDS.
LET_GO_PAUSE_SECONDS = 0.25


async def work(
    database: DatabaseSettings, settings: WorkerSettings, metrics: MetricsSettings
) -> None:
    """Work until told to stop, then end in order; nothing comes back."""
    stop = stop_on_signals()
    # Before the handler is set up, which may take minutes in which a probe asks.
    async with serve_metrics(metrics, REGISTRY), open_database(database) as db:
        compute = Compute(
            settings.handler,
            settings.concurrency,
            settings.time_limit_seconds,
            settings.max_output_characters,
        )
        await compute.start()
        try:
            slots = Slots(db, compute, settings)
            fleet = Fleet(db, settings)
            log.info(
                "handler %s, %d slots",
                settings.handler,
                settings.concurrency,
                extra={"owner": settings.name},
            )
            ended = asyncio.Event()
            third = settings.lease_seconds / 3
            async with asyncio.TaskGroup() as loops:
                loops.create_task(
                    repeat(slots.step, fleet.idle_wait_seconds, ended, wake=compute.seat_free)
                )
                loops.create_task(repeat(slots.renew, lambda: third, ended, first_seconds=third))
                loops.create_task(
                    repeat(slots.cancel_expiring_leases, lambda: LET_GO_PAUSE_SECONDS, ended)
                )
                loops.create_task(
                    repeat(
                        fleet.step, lambda: PRESENT_SECONDS, ended, first_seconds=PRESENT_SECONDS
                    )
                )
                await stop.wait()
                await slots.drain(settings.grace_seconds)
                ended.set()
                await fleet.leave()
        finally:
            await compute.close()
