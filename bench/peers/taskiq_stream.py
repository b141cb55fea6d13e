"""taskiq as its users run it: a Redis stream, which acknowledges, and two worker processes."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import taskiq
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from bench.peers.alike import POLL_SECONDS, Request, compute

COMMANDS = (("taskiq", "worker", "bench.peers.taskiq_stream:broker", "--workers", "2"),)

broker = RedisStreamBroker(os.environ["REDIS_URL"]).with_result_backend(
    RedisAsyncResultBackend(os.environ["REDIS_URL"])
)


@broker.task
async def segment(source: str) -> str:
    """The result of one source."""
    return compute(source)


async def request(sources: list[str]) -> list[str]:
    """The results of one request."""
    sent = await asyncio.gather(*(segment.kiq(source) for source in sources))
    answers = await taskiq.gather(*sent, periodicity=POLL_SECONDS)
    return [answer.return_value for answer in answers]


@asynccontextmanager
async def opened() -> AsyncIterator[Request]:
    """What sends a request and waits for it."""
    await broker.startup()
    try:
        yield request
    finally:
        await broker.shutdown()
