"""ray as its users run it on one machine: tasks on two CPUs, each in a process of its own."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import ray

from bench.peers.alike import WORKERS, ThreadedRequest, compute

COMMANDS: tuple[tuple[str, ...], ...] = ()
OBJECT_STORE_BYTES = 100 * 1024 * 1024

segment = ray.remote(compute)


def request(sources: list[str]) -> list[str]:
    """The results of one request."""
    results: list[str] = ray.get([segment.remote(source) for source in sources])
    return results


@asynccontextmanager
async def opened() -> AsyncIterator[ThreadedRequest]:
    """What sends a request and waits for it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=WORKERS,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(Path.cwd()),
    )
    try:
        yield request
    finally:
        ray.shutdown()
