"""Somebody must wait for the segments, and the table is the only place to ask."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

from partway.app.requests.answer import Request
from partway.app.requests.watch import Progress, Watch
from partway.store.close import close
from partway.store.database import Database, Unavailable

# How much later than its deadline a caller may hear that the database is away.
LATE_SECONDS = 1.0

NOT_POLLED = Progress("active", 0)


STATUS = """
SELECT status
FROM   requests
WHERE  id = %s
"""


async def is_active(db: Database, request_id: int) -> bool:
    """Whether the request is still to be closed, read without a lock; False when it is gone."""
    rows = await db.read(STATUS, (request_id,))
    return bool(rows) and rows[0]["status"] == "active"


def is_due(request: Request) -> bool:
    """Whether the deadline of a request has passed."""
    return request.ends_at <= time.monotonic()


def never_disconnects() -> bool:
    """False: nobody's leaving ends the request."""
    return False


async def polls(
    db: Database,
    watch: Watch,
    request: Request,
    ends_at: Callable[[], float],
    gone: Callable[[], bool] = never_disconnects,
) -> AsyncGenerator[Progress, None]:
    """Each look at a request until it is final, closing it when nobody else does.

    It is closed as completed when every segment is finished or `ends_at()` has passed (asked again
    at each look, since a node that stops ends sooner), and as abandoned when `gone()` says that the
    caller has left. Nothing is held while waiting. Raises Unavailable when the database is away at
    the end.
    """
    while True:
        progress = NOT_POLLED
        left = ends_at() - time.monotonic()
        if left > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    progress = await watch.next(request.id)
        if progress.status != "active":
            return
        yield progress
        left = ends_at() - time.monotonic()
        is_due = progress.finished == request.segments or left <= 0
        if not is_due and not gone():
            continue
        try:
            async with asyncio.timeout(max(left, 0) + LATE_SECONDS):
                # What finished in time needs no last look, for the close reads the rows itself.
                # But a node that slept may find its request closed, and settlement at it.
                if not is_due:
                    await close(db, request.id, "abandoned")
                elif progress is not NOT_POLLED or await is_active(db, request.id):
                    await close(db, request.id, "completed")
                return
        except (Unavailable, TimeoutError) as error:
            if ends_at() <= time.monotonic():
                raise Unavailable("the database is away; the request goes on without it") from error


async def wait_until_final(
    db: Database,
    watch: Watch,
    request: Request,
    ends_at: Callable[[], float],
    gone: Callable[[], bool] = never_disconnects,
) -> None:
    """Wait for a request to become final, as `looks` says; nothing comes back."""
    async for _ in polls(db, watch, request, ends_at, gone):
        pass
