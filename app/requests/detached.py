"""A caller that will come back for its answer has somebody here who sees to its end."""

import asyncio
import logging
import time

from partway.app.requests.answer import Request
from partway.app.requests.fanin import wait_until_final
from partway.app.requests.watch import Watch
from partway.store.database import Database, Unavailable

log = logging.getLogger("partway.app")


class DetachedRequests:
    """The requests that go on without a call; a class, since their tasks outlive the calls.

    Without it a request that nobody asks for by its deadline would be closed by the batch, as one
    that was answered to nobody and is not billed.
    """

    def __init__(self, db: Database, watch: Watch) -> None:
        self._db = db
        self._watch = watch
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def track(self, request: Request) -> None:
        """Close the request when it is due, unless somebody else does; nothing comes back."""
        if request.id not in self._tasks:
            self._tasks[request.id] = asyncio.create_task(self._close_when_due(request))

    async def _close_when_due(self, request: Request) -> None:
        try:
            await wait_until_final(self._db, self._watch, request, lambda: request.ends_at)
        except Unavailable:
            # Nobody is here to be told. Whoever asks for it next closes it, on whichever node.
            log.warning(
                "due while the database was away",
                extra={"request_id": request.public_id, "request_no": request.id},
            )
        finally:
            del self._tasks[request.id]

    async def hand_over(self, stops_at: float) -> None:
        """Come back when all have ended, or at `stops_at`; what is left then stays as it is.

        Its workers go on, and whoever asks for it next, on whichever node, closes it when it is
        due. To close it here and now would take from its caller what could still be done.
        """
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=max(stops_at - time.monotonic(), 0))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
