"""A request must be closed at its deadline even if no call waits for it, so a task waits here."""

import asyncio
import logging
import time

from partway.app.requests.answer import Request
from partway.app.requests.fanin import wait_until_final
from partway.app.requests.watch import Watch
from partway.store.database import Database, Unavailable

log = logging.getLogger("partway.app")


class DetachedRequests:
    """The requests of this node that run without a call; it holds a task for each.

    If no node waits for a request, the batch closes it after its deadline: as abandoned, which is
    not billed.
    """

    def __init__(self, db: Database, watch: Watch) -> None:
        self._db = db
        self._watch = watch
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def track(self, request: Request) -> None:
        """Start a task that closes the request at its deadline, unless it is final by then."""
        if request.id not in self._tasks:
            self._tasks[request.id] = asyncio.create_task(self._close_when_due(request))

    async def _close_when_due(self, request: Request) -> None:
        try:
            await wait_until_final(self._db, self._watch, request, lambda: request.ends_at)
        except Unavailable:
            # No caller waits. The node that is asked for the request next closes it.
            log.warning(
                "request not closed at its deadline: the database is unavailable",
                extra={"request_id": request.public_id, "request_no": request.id},
            )
        finally:
            del self._tasks[request.id]

    async def hand_over(self, stops_at: float) -> None:
        """Wait until all these requests are final, or until `stops_at`, and stop the tasks.

        A request that is still active stays active: the workers continue, and the node that is
        asked for it next closes it when it is due. If this node closed it now, its caller would
        lose what can still become done.
        """
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=max(stops_at - time.monotonic(), 0))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
