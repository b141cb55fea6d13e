"""A node waits for the segments of a request by polling its rows, and closes it at its deadline."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

from partway.app.requests.answer import Request
from partway.app.requests.watch import Progress, Watch
from partway.store.close import close
from partway.store.database import Database, Unavailable

# How long after its deadline a caller may wait until it hears that the database is unavailable.
LATE_SECONDS = 1.0

NOT_POLLED = Progress("active", 0)


STATUS = """
SELECT status
FROM   requests
WHERE  id = %s
"""


async def is_active(db: Database, request_id: int) -> bool:
    """Whether the request is active, read without a lock; False when it is deleted."""
    rows = await db.read(STATUS, (request_id,))
    return bool(rows) and rows[0]["status"] == "active"


def is_due(request: Request) -> bool:
    """Whether the deadline of a request has passed."""
    return request.ends_at <= time.monotonic()


def never_disconnects() -> bool:
    """False, for a request that goes on when its caller disconnects."""
    return False


async def close_if_due(db: Database, request: Request, finished: int | None = None) -> bool:
    """Close an active request that is due, for a node that died; True when it was due.

    It is due after its deadline, or when all of its segments are finished.
    """
    if request.status != "active" or not (is_due(request) or finished == request.segments):
        return False
    await close(db, request.id, "completed")
    return True


async def polls(
    db: Database,
    watch: Watch,
    request: Request,
    ends_at: Callable[[], float],
    has_left: Callable[[], bool] = never_disconnects,
) -> AsyncGenerator[Progress, None]:
    """The result of each poll of a request until it is final; it is closed here if need be.

    It is closed as completed when all of its segments are finished or `ends_at()` has passed. That
    is asked at each poll, since a node that stops ends its calls earlier. It is closed as abandoned
    when `has_left()` says that the caller has disconnected. While this waits, it holds no lock and
    no connection. Raises Unavailable when the database is unavailable at the end.
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
        if not is_due and not has_left():
            continue
        try:
            async with asyncio.timeout(max(left, 0) + LATE_SECONDS):
                # No last poll is needed, since the close itself reads the rows. But a node that was
                # paused may find its request closed and locked by a settlement, so it reads first.
                if not is_due:
                    await close(db, request.id, "abandoned")
                elif progress is not NOT_POLLED or await is_active(db, request.id):
                    await close(db, request.id, "completed")
                return
        except (Unavailable, TimeoutError) as error:
            if ends_at() <= time.monotonic():
                raise Unavailable(
                    "the database is unavailable; the request continues without it"
                ) from error


async def wait_until_final(
    db: Database,
    watch: Watch,
    request: Request,
    ends_at: Callable[[], float],
    has_left: Callable[[], bool] = never_disconnects,
) -> None:
    """Wait until the request is final, and close it if need be, in the same way as `polls`."""
    async for _ in polls(db, watch, request, ends_at, has_left):
        pass
