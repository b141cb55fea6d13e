"""dramatiq as its users run it: a group on Redis, two processes of eight threads."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from bench.peers.alike import ThreadedRequest, compute

COMMANDS = (("dramatiq", "bench.peers.dramatiq_group", "--processes", "2"),)
PATIENCE_MS = 60_000

broker = RedisBroker(url=os.environ["REDIS_URL"])
broker.add_middleware(Results(backend=RedisBackend(url=os.environ["REDIS_URL"])))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def segment(source: str) -> str:
    """The result of one source."""
    return compute(source)


def request(sources: list[str]) -> list[str]:
    """The results of one request."""
    group = dramatiq.group(segment.message(source) for source in sources).run()
    return list(group.get_results(block=True, timeout=PATIENCE_MS))


@asynccontextmanager
async def opened() -> AsyncIterator[ThreadedRequest]:
    """What sends a request and waits for it."""
    yield request
