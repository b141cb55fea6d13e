"""arq as its users run it: on Redis, two worker processes of ten slots."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings

from bench.peers.alike import POLL_SECONDS, Request, compute

COMMANDS = (("arq", "bench.peers.arq_redis.Worker"),) * 2


async def segment(_: dict[str, Any], source: str) -> str:
    """The result of one source."""
    return compute(source)


class Worker:
    """What arq's own command wants to know."""

    functions = (segment,)
    redis_settings = RedisSettings.from_dsn(os.environ["REDIS_URL"])
    poll_delay = POLL_SECONDS


@asynccontextmanager
async def opened() -> AsyncIterator[Request]:
    """What sends a request and waits for it."""
    redis = await create_pool(Worker.redis_settings)

    async def request(sources: list[str]) -> list[str]:
        # One after another, as in its own examples: all together was no faster.
        sent = [await redis.enqueue_job("segment", source) for source in sources]
        return [await one.result(poll_delay=POLL_SECONDS) for one in sent]

    try:
        yield request
    finally:
        await redis.aclose()
