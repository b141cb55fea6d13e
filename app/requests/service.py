"""The HTTP API and the pages store, wait for, read and cancel requests in the same way."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from partway.app.problems import Problem
from partway.app.requests.admission import AdmissionControl
from partway.app.requests.allowance import charge, refund
from partway.app.requests.answer import Answer, Request, is_known, read_answer, read_request
from partway.app.requests.detached import DetachedRequests
from partway.app.requests.events import RequestSubscriptions
from partway.app.requests.fanin import LATE_SECONDS, close_if_due, polls, wait_until_final
from partway.app.requests.fanout import submit
from partway.app.requests.submission import Submission
from partway.app.requests.watch import Watch
from partway.app.settings import AppSettings
from partway.store.close import close
from partway.store.database import Database, Unavailable

log = logging.getLogger("partway.app")

# The largest document takes this long to store on a busy machine, however short its deadline is.
STORE_SECONDS = 5.0


@dataclass(frozen=True)
class Begun:
    """The request that a call stored or attached to; `request` is None when it is settled."""

    public_id: str
    request: Request | None
    # Whether the request is closed as abandoned when the caller of this call disconnects.
    ends_with_its_caller: bool


class RequestService:
    """What all calls of a node share: the database, the settings, and when the node stops."""

    def __init__(self, db: Database, settings: AppSettings) -> None:
        self.db = db
        self.settings = settings
        self.admission = AdmissionControl(settings)
        self.watch = Watch(db, settings.poll_seconds)
        self.subscriptions = RequestSubscriptions(db, self.watch)
        self.detached = DetachedRequests(db, self.watch)
        self.stops_at = float("inf")

    @property
    def is_stopping(self) -> bool:
        """Whether the node was told to stop."""
        return self.stops_at != float("inf")

    def drain(self) -> None:
        """Begin to stop: open calls continue for drain_seconds, then each is answered."""
        self.stops_at = min(self.stops_at, time.monotonic() + self.settings.drain_seconds)

    async def end(self) -> None:
        """Stop the background tasks; called after the last call has ended."""
        await self.detached.hand_over(self.stops_at)
        await self.watch.end()

    async def begin(
        self,
        tenant: str,
        new: Submission,
        arrived: float,
        traceparent: str | None = None,
        is_id_ours: bool = False,
    ) -> Begun:
        """Store a request, or attach to the one that has its id and body.

        `arrived` is when the call came in, on the monotonic clock. `is_id_ours` when the node made
        the id. Raises Problem 422 when the id has another body, 429 or 503 when the request is not
        admitted, Settled, and Unavailable when the database does not answer in time.
        """
        try:
            # The caller waits no longer than this for a database that does not answer.
            async with asyncio.timeout(max(new.deadline_ms / 1000, STORE_SECONDS) + LATE_SECONDS):
                created = await self._store(tenant, new, arrived, traceparent)
                request = await read_request(self.db, tenant, new.public_id)
        except TimeoutError as error:
            raise Unavailable("the database does not answer in time") from error
        # If an id that we made exists already, the request is ours: the reply to our own commit was
        # lost, and the insert ran again.
        created = created or is_id_ours
        if request is not None and request.body_hash != new.body_hash:
            raise Problem("id-reused", f"The id {new.public_id} was sent with another body.")
        if created:
            event = "request stored"
        elif request is not None:
            event = "request attached"
        else:
            event = "settled request asked for"
        log.info(
            event,
            extra=log_fields(tenant, new.public_id, request)
            | {"duration_ms": round((time.monotonic() - arrived) * 1000)},
        )
        return Begun(new.public_id, request, created and new.on_disconnect == "cancel")

    async def _store(
        self, tenant: str, new: Submission, arrived: float, traceparent: str | None
    ) -> bool:
        """True when this call stored the request, False when the request exists already."""
        characters = new.pieces.characters
        per_minute = self.settings.tenant_characters_per_minute
        try:
            await self.admission.check(self.db, tenant)
            with self.admission.storing(tenant, characters):
                await charge(self.db, tenant, new.public_id, characters, per_minute)
                waited = time.monotonic() - arrived
                created = await submit(self.db, tenant, new, waited, traceparent)
        except Problem:
            # A retry of an existing id adds no work and was charged before, so no limit applies.
            if not await is_known(self.db, tenant, new.public_id):
                raise
            return False
        if not created:
            # Another call with the same id was stored while this one was being charged.
            await refund(self.db, tenant, characters, per_minute)
        return created

    async def wait_until_closed(self, request: Request, has_left: Callable[[], bool]) -> None:
        """Wait until the request is final, and close it at its deadline or when the node stops.

        It is closed as abandoned when `has_left()` says that the caller has disconnected.
        """
        await wait_until_final(
            self.db, self.watch, request, lambda: min(request.ends_at, self.stops_at), has_left
        )

    async def wait_at_most(
        self, request: Request, seconds: float, has_left: Callable[[], bool]
    ) -> None:
        """Wait until the request is final, at most so long; nothing closes it before it is due."""
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(seconds),
                aclosing(polls(self.db, self.watch, request, lambda: request.ends_at)) as progress,
            ):
                async for _ in progress:
                    if self.stops_at <= time.monotonic() or has_left():
                        return

    async def abandon(self, request: Request) -> None:
        """Close the request as abandoned, since its caller has disconnected."""
        # If the database is unavailable, the batch closes the request later.
        with contextlib.suppress(Unavailable):
            await wait_until_final(
                self.db, self.watch, request, lambda: request.ends_at, lambda: True
            )

    async def read(self, tenant: str, public_id: str) -> Answer | None:
        """The answer as it is now; None when the tenant has no such request. Raises Settled.

        A request that is due and still active is closed first: the node that stored it has died.
        """
        request = await read_request(self.db, tenant, public_id)
        answer = await read_answer(self.db, tenant, public_id)
        if request is not None and answer is not None and answer.status == "running":
            finished = answer.counts.done + answer.counts.failed
            if await close_if_due(self.db, request, finished):
                answer = await read_answer(self.db, tenant, public_id)
        return answer

    async def cancel(self, tenant: str, public_id: str) -> Answer | None:
        """Cancel the request and read what is done; None when there is none. Raises Settled."""
        while True:
            await self.close_as_cancelled(tenant, public_id, "request cancelled")
            answer = await read_answer(self.db, tenant, public_id)
            # If it was stored between the two reads, cancel again.
            if answer is None or answer.status != "running":
                return answer

    async def close_as_cancelled(self, tenant: str, public_id: str, event: str) -> bool:
        """True when this call closed the request; then it is logged as `event`."""
        request = await read_request(self.db, tenant, public_id)
        # A close of a final request would wait for a settlement that holds its row.
        if request is None or request.status != "active":
            return False
        if not await close(self.db, request.id, "cancelled"):
            return False
        log.info(event, extra=log_fields(tenant, public_id, request))
        return True


def log_fields(tenant: str, public_id: str, request: Request | None) -> dict[str, Any]:
    """How log lines name a request: by the caller's id, and by its number in the rows."""
    named = {"request_id": public_id, "tenant": tenant}
    if request is None:
        return named
    return named | {"request_no": request.id, "segments": request.segments}
