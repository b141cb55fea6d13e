"""Runs a worker: it claims segments, computes them and writes the results back, until stopped."""

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

# How often leases that end soon are looked for; a fraction of slots.LEASE_MARGIN_SECONDS.
LEASE_CHECK_SECONDS = 0.25


async def work(
    database: DatabaseSettings, settings: WorkerSettings, metrics: MetricsSettings
) -> None:
    """Run until SIGTERM or SIGINT, then drain and close the handlers."""
    stop = stop_on_signals()
    # Metrics are served before the handler is set up: that can take minutes, and probes must pass.
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
                    repeat(slots.cancel_expiring_leases, lambda: LEASE_CHECK_SECONDS, ended)
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
