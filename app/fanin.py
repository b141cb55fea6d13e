"""Somebody must wait for the segments, and the table is the only place to ask."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from app.answer import Finished, Request, look
from store.close import close
from store.database import Database, Unavailable

# A short request is not kept waiting for a slow poll: a wait is about a tenth of the time elapsed.
FIRST_POLL_SECONDS = 0.01

# How much later than its deadline a caller may hear that the database is away.
LATE_SECONDS = 1.0


async def gather(
    db: Database,
    request: Request,
    poll_seconds: float,
    ends_at: Callable[[], float],
    gone: Callable[[], Awaitable[bool]],
) -> dict[int, Finished]:
    """Wait for a request to become final, closing it when nobody else does; its finished segments.

    It is closed as completed when every segment is finished or `ends_at()` has passed (asked again
    at each look, since a node that stops ends sooner), and as abandoned when `gone()` says that the
    caller has left. Nothing is held while waiting. Raises Unavailable when the database is away at
    the end.
    """
    began = time.monotonic()
    seen: dict[int, Finished] = {}
    while True:
        left = ends_at() - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0) + LATE_SECONDS):
                # The last look begins after the end, so that what finished in time is not missed.
                status, fresh = await look(db, request.id, seen)
                seen |= fresh
                if status != "active":
                    return seen
                if len(seen) == request.segments or left <= 0:
                    await close(db, request.id, "completed")
                    return seen
                if await gone():
                    await close(db, request.id, "abandoned")
                    return seen
        except (Unavailable, TimeoutError) as error:
            if ends_at() <= time.monotonic():
                raise Unavailable("the database is away; the request goes on without it") from error
        elapsed = time.monotonic() - began
        wait = min(max(elapsed / 10, FIRST_POLL_SECONDS), poll_seconds)
        await asyncio.sleep(max(min(wait, ends_at() - time.monotonic()), 0))
