"""procrastinate as its users run it: on PostgreSQL, with a table of their own for results."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import procrastinate

from bench.peers.alike import Request, compute, pause_seconds

# Its default is one at a time in a process; its neighbours take eight or ten.
COMMANDS = (("procrastinate", "--app", f"{__name__}.app", "worker", "--concurrency", "8"),) * 2

RESULTS = """
CREATE TABLE results (request_id text, index_no int, result text NOT NULL,
                      PRIMARY KEY (request_id, index_no))
"""
STORE = "INSERT INTO results VALUES (%(request_id)s, %(index_no)s, %(result)s)"
COUNT = "SELECT count(*) AS stored FROM results WHERE request_id = %(request_id)s"
READ = "SELECT result FROM results WHERE request_id = %(request_id)s ORDER BY index_no"

# Where the server is stands in the environment: PGHOST, PGUSER, PGDATABASE.
connector = procrastinate.PsycopgConnector(max_size=20)
app = procrastinate.App(connector=connector)


@app.task(name="segment")
async def segment(request_id: str, index_no: int, source: str) -> None:
    """Store the result of one source; nothing comes back."""
    await connector.execute_query_async(
        STORE, request_id=request_id, index_no=index_no, result=compute(source)
    )


async def stored(request_id: dict[str, str]) -> int:
    """How many results of a request there are."""
    row = await connector.execute_query_one_async(COUNT, **request_id)
    count: int = row["stored"]
    return count


async def request(sources: list[str]) -> list[str]:
    """The results of one request."""
    began = time.monotonic()
    mine = {"request_id": uuid.uuid4().hex}
    await segment.batch_defer_async(
        *({**mine, "index_no": index_no, "source": text} for index_no, text in enumerate(sources))
    )
    while await stored(mine) < len(sources):  # noqa: ASYNC110 - another process makes it true
        await asyncio.sleep(pause_seconds(began))
    return [row["result"] for row in await connector.execute_query_all_async(READ, **mine)]


@asynccontextmanager
async def opened() -> AsyncIterator[Request]:
    """What sends a request and waits for it."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await connector.execute_query_async(RESULTS)
        yield request
