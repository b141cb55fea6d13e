"""Celery as its users run it: a group, Redis for messages and results, two worker processes."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from celery import Celery, group

from bench.peers.alike import ThreadedRequest, compute

COMMANDS = (
    ("celery", "-A", "bench.peers.celery_group", "worker", "--concurrency=2", "-l", "warning"),
)
PATIENCE_SECONDS = 60

app = Celery("peers", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])


@app.task
def segment(source: str) -> str:
    """The result of one source."""
    return compute(source)


def request(sources: list[str]) -> list[str]:
    """The results of one request."""
    answer = group(segment.s(source) for source in sources).apply_async()
    results: list[str] = answer.get(timeout=PATIENCE_SECONDS)
    answer.forget()
    return results


@asynccontextmanager
async def opened() -> AsyncIterator[ThreadedRequest]:
    """What sends a request and waits for it."""
    yield request
