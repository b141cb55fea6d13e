"""saq as its users run it: `map` on Redis, two worker processes of ten slots."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue

from bench.peers.alike import POLL_SECONDS, Request, compute

COMMANDS = (("saq", "bench.peers.saq_redis.settings", "--workers", "2"),)

redis = Queue.from_url(os.environ["REDIS_URL"])


async def segment(_: dict[str, Any], *, source: str) -> str:
    """The result of one source."""
    return compute(source)


settings = {"queue": redis, "functions": [segment]}


async def request(sources: list[str]) -> list[str]:
    """The results of one request."""
    each = [{"source": source} for source in sources]
    # Two attempts: its sweep aborts what a worker has just taken (tobymao/saq#277), and by default
    # that is the end of it.
    results: list[str] = await redis.map("segment", each, retries=2, poll_interval=POLL_SECONDS)
    return results


@asynccontextmanager
async def opened() -> AsyncIterator[Request]:
    """What sends a request and waits for it."""
    await redis.connect()
    try:
        yield request
    finally:
        await redis.disconnect()
