"""dask.distributed as its users run it on one machine: a local cluster of two processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from distributed import Client, LocalCluster

from bench.peers.alike import WORKERS, Request, compute

COMMANDS: tuple[tuple[str, ...], ...] = ()


@asynccontextmanager
async def opened() -> AsyncIterator[Request]:
    """What sends a request and waits for it."""
    cluster = LocalCluster(
        n_workers=WORKERS,
        threads_per_worker=1,
        dashboard_address=None,
        local_directory=str(Path.cwd()),
        asynchronous=True,
    )
    async with cluster, Client(cluster, asynchronous=True) as client:

        async def request(sources: list[str]) -> list[str]:
            # Not pure: the same source is computed again, instead of being remembered.
            results: list[str] = await client.gather(client.map(compute, sources, pure=False))
            return results

        yield request
