"""`python -m worker` claims, computes and writes back; `python -m worker try` only computes."""

import asyncio
import logging
import sys

import uvloop

from partway.store.exposition import MetricsSettings, serve_metrics
from partway.store.log import start_log
from partway.store.loop import repeat, stop_on_signals
from partway.store.settings import DatabaseSettings, LogSettings, read_settings
from partway.store.start import StartupError, open_database
from partway.worker import trial
from partway.worker.compute import Compute
from partway.worker.fleet import PRESENT_SECONDS, Fleet
from partway.worker.handler import HandlerError
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


def main() -> int:
    """The exit status of the program: 0, 1 (refused), or 2 (a setting is wrong)."""
    if sys.argv[1:2] == ["try"]:
        return trial.main(sys.argv[2:])
    start_log("worker", read_settings(LogSettings, "worker").log_format)
    settings = read_settings(WorkerSettings, "worker", sys.argv[1:])
    database = read_settings(DatabaseSettings, "worker")
    metrics = read_settings(MetricsSettings, "worker")
    try:
        uvloop.run(work(database, settings, metrics))
    except (StartupError, HandlerError) as refusal:
        print(f"worker: {refusal}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
