"""pgqueuer as its users run it: on PostgreSQL, with a table of their own for results."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers.alike import POLL_SECONDS, Request, compute

COMMANDS = (("pgq", "run", f"{__name__}:worker"),) * 2

RESULTS = "CREATE TABLE results (id bigint PRIMARY KEY, result text NOT NULL)"
STORE = "INSERT INTO results VALUES ($1, $2)"
READ = "SELECT result FROM results WHERE id = ANY($1::bigint[]) ORDER BY id"


@asynccontextmanager
async def worker() -> AsyncIterator[PgQueuer]:
    """What pgqueuer's own command runs."""
    # Where the server is stands in the environment: PGHOST, PGUSER, PGDATABASE.
    async with asyncpg.create_pool() as pool:
        serves = PgQueuer(AsyncpgPoolDriver(pool))

        @serves.entrypoint("segment")
        async def segment(taken: Job) -> None:
            await pool.execute(STORE, taken.id, compute((taken.payload or b"").decode()))

        yield serves


@asynccontextmanager
async def opened() -> AsyncIterator[Request]:
    """What sends a request and waits for it."""
    debounce = timedelta(seconds=POLL_SECONDS)
    async with asyncpg.create_pool() as pool, AsyncpgPoolDriver(pool) as driver:
        queries = Queries(driver)
        await queries.install()
        await pool.execute(RESULTS)
        async with CompletionWatcher(driver, queries=queries, debounce=debounce) as watcher:

            async def request(sources: list[str]) -> list[str]:
                many = len(sources)
                payloads = [source.encode() for source in sources]
                sent = await queries.enqueue(["segment"] * many, payloads, [0] * many)
                await asyncio.gather(*(watcher.wait_for(one) for one in sent))
                return [row["result"] for row in await pool.fetch(READ, sent)]

            yield request
