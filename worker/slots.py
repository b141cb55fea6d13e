"""Claims segments for all the slots of one process, and writes back the results of all of them."""

import asyncio
import functools
import json
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from partway.store.database import Database, Unavailable
from partway.store.loop import wait_for_any
from partway.worker.choice import Active, Choice
from partway.worker.compute import Compute
from partway.worker.lease import Exchanged, Lease, Ready, exchange, fail, give_back, renew
from partway.worker.metrics import (
    CLAIM_DURATION,
    CLAIMS,
    EXPIRATIONS,
    FENCE_REJECTIONS,
    SLOTS,
    handler_metrics,
)
from partway.worker.process import Ending, Work
from partway.worker.settings import WorkerSettings

log = logging.getLogger("partway.worker")

# When a lease cannot be renewed, its handler is stopped this long before the lease ends.
LEASE_MARGIN_SECONDS = 1.0

# At shutdown, results are written back if the database answers within this time.
LAST_WRITES_SECONDS = 5.0

# All segments of a request have the same params, and a process works on many requests in turn.
CONTEXTS_CACHED = 256

PARAMS = """
SELECT params, traceparent, tenant, public_id,
       TIMESTAMPDIFF(MICROSECOND, created_at, NOW(6)) AS age_microseconds
FROM   requests
WHERE  id = %s
"""


@dataclass(frozen=True)
class RequestContext:
    """What all segments of one request have in common.

    `log_fields` are the caller's id and tenant, which appear in the logs of all programs.
    `created_at` is the arrival of the request, on the monotonic clock of this process.
    """

    params: dict[str, Any]
    traceparent: str | None
    log_fields: dict[str, str]
    created_at: float


# For a request that was settled after the list was read. It has no segment left to claim.
NO_CONTEXT = RequestContext({}, None, {}, 0.0)


@dataclass(frozen=True)
class FailedAttempt:
    """A failed attempt that waits to be recorded; with max_attempts 0 it is the last one."""

    lease: Lease
    error: str
    after_seconds: float
    max_attempts: int


class Slots:
    """The segments that this process has claimed: running, or not written back yet."""

    def __init__(self, db: Database, compute: Compute, settings: WorkerSettings) -> None:
        self._db = db
        self._compute = compute
        self._settings = settings
        self._choice = Choice(settings.backoff_seconds)
        self._draining = False
        self._running: dict[Lease, asyncio.Task[Ending]] = {}
        self._lease_ends_at: dict[Lease, float] = {}
        self._ready: list[Ready] = []
        self._skip_locked = False
        self._exchanging = asyncio.Lock()
        self._failures: list[FailedAttempt] = []
        self._contexts: OrderedDict[int, RequestContext] = OrderedDict()
        self._fault: BaseException | None = None
        self._counters = handler_metrics(settings.handler)
        SLOTS["busy"].set_function(lambda: len(self._running))
        SLOTS["idle"].set_function(lambda: settings.concurrency - len(self._running))
        self.empty = asyncio.Event()
        self.empty.set()

    async def step(self) -> bool:
        """Do one exchange; False when there is nothing to claim and nothing to write back."""
        if self._fault is not None:
            raise self._fault
        if self._failures:
            await self._record(self._failures[0])
            del self._failures[0]
            self._note_change()
            return True
        # Read before anything is awaited: meanwhile a seat may become free, but none is taken.
        free = min(self._compute.free, self._settings.concurrency - len(self._running))
        active = None
        if free > 0 and not self._draining:
            active = await self._choice.next(self._db)
        context = await self._context_for(active) if active is not None else NO_CONTEXT
        async with self._exchanging:
            return await self._exchange(None if self._draining else active, context, free)

    async def _exchange(self, active: Active | None, context: RequestContext, free: int) -> bool:
        """Exchange; True when there may be more to claim or to write back at once."""
        ready = list(self._ready)
        if active is None and not ready:
            return False
        began = time.monotonic()
        try:
            exchanged = await exchange(
                self._db,
                ready,
                active.id if active is not None else None,
                free,
                self._settings.name,
                self._settings.lease_seconds,
                self._settings.max_attempts,
                self._skip_locked,
                active.first_index if active is not None else 0,
            )
        except Unavailable:
            if active is not None:
                CLAIMS["error"].inc()
            raise
        self._ready = exchanged.deferred + self._ready[len(ready) :]
        self._skip_locked = bool(exchanged.deferred)
        for lease in exchanged.lost:
            FENCE_REJECTIONS["write_back"].inc()
            log.warning("lease lost, result dropped", extra=self._attempt_fields(lease))
        if active is not None:
            self._count_claim(exchanged, context, began)
            for lease in exchanged.claimed:
                self._start(lease, active, context, began)
            self._choice.note_claimed(
                active,
                [lease.index_no for lease in exchanged.claimed],
                nothing_left=len(exchanged.claimed) + exchanged.exhausted < free,
            )
            if exchanged.exhausted:
                log.warning(
                    "segments failed: no worker reported an error",
                    extra=self._request_fields(active.id) | {"segments": exchanged.exhausted},
                )
        self._note_change()
        # A request with nothing to claim is backed off now. The next step asks another, if any.
        return active is not None or len(exchanged.deferred) < len(ready)

    def _count_claim(self, exchanged: Exchanged, context: RequestContext, began: float) -> None:
        now = time.monotonic()
        CLAIM_DURATION.observe(now - began)
        CLAIMS["claimed" if exchanged.claimed else "empty"].inc()
        self._counters.attempts["given_up"].inc(exchanged.exhausted)
        for lease in exchanged.claimed:
            if lease.is_successor:
                EXPIRATIONS.inc()
            if lease.attempt == 1:
                self._counters.queue_wait.observe(now - context.created_at)

    async def renew(self) -> bool:
        """Renew all leases of this process; stop handlers whose lease is lost; always False."""
        held = [*self._running, *(item.lease for item in self._ready)]
        began = time.monotonic()
        lost = await renew(self._db, held, self._settings.lease_seconds)
        for lease in held:
            if lease in self._lease_ends_at:
                self._lease_ends_at[lease] = began + self._settings.lease_seconds
        for lease in lost:
            if lease in self._running:
                FENCE_REJECTIONS["renew"].inc()
                log.warning("lease lost, handler stopped", extra=self._attempt_fields(lease))
                self._running[lease].cancel()
        return False

    async def cancel_expiring_leases(self) -> bool:
        """Stop handlers whose lease ends soon, because it could not be renewed; always False.

        When another worker claims the segment, it must not run here any more.
        """
        last = time.monotonic() + LEASE_MARGIN_SECONDS
        for lease, ends_at in self._lease_ends_at.items():
            if ends_at < last:
                log.warning(
                    "lease not renewed in time, handler stopped", extra=self._attempt_fields(lease)
                )
                self._running[lease].cancel()
        return False

    async def drain(self, grace_seconds: float) -> None:
        """Claim nothing more; let handlers finish within the grace; then give back the others."""
        self._draining = True
        async with self._exchanging:
            pass  # a claim that was in progress has ended, and its segments are in _running
        await wait_for_any(grace_seconds, self.empty)
        running = dict(self._running)
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)
        for lease in running:
            try:
                is_given_back = await give_back(self._db, lease)
            except Unavailable:
                # The lease expires by itself. A worker that must end does not wait for a database.
                log.warning("segment not given back", extra=self._attempt_fields(lease))
                break
            if not is_given_back:
                FENCE_REJECTIONS["give_back"].inc()
                log.warning("lease lost, not given back", extra=self._attempt_fields(lease))
                continue
            self._counters.attempts["given_back"].inc()
            log.info("segment given back", extra=self._attempt_fields(lease))
        await wait_for_any(LAST_WRITES_SECONDS, self.empty)

    async def _context_for(self, active: Active) -> RequestContext:
        if active.id not in self._contexts:
            context = NO_CONTEXT
            for row in await self._db.read(PARAMS, (active.id,)):
                caller = {"request_id": row["public_id"], "tenant": row["tenant"]}
                created_at = time.monotonic() - row["age_microseconds"] / 1_000_000
                context = RequestContext(
                    json.loads(row["params"]), row["traceparent"], caller, created_at
                )
            self._contexts[active.id] = context
            if len(self._contexts) > CONTEXTS_CACHED:
                self._contexts.popitem(last=False)
        return self._contexts[active.id]

    def _request_fields(self, request_id: int) -> dict[str, Any]:
        """The log fields of a request."""
        caller = self._contexts.get(request_id, NO_CONTEXT).log_fields
        return {"request_no": request_id, "owner": self._settings.name, **caller}

    def _attempt_fields(self, lease: Lease) -> dict[str, Any]:
        """The log fields of an attempt."""
        segment = {"index": lease.index_no, "attempt": lease.attempt}
        return self._request_fields(lease.request_id) | segment

    def _start(self, lease: Lease, active: Active, context: RequestContext, began: float) -> None:
        work = Work(
            request_id=lease.request_id,
            index_no=lease.index_no,
            attempt=lease.attempt,
            source=lease.source,
            params=context.params,
            ends_at=active.ends_at,
            traceparent=context.traceparent,
        )
        self._lease_ends_at[lease] = began + self._settings.lease_seconds
        self._running[lease] = task = asyncio.create_task(self._compute.run(work))
        task.add_done_callback(functools.partial(self._ended, lease))

    def _ended(self, lease: Lease, task: asyncio.Task[Ending]) -> None:
        del self._running[lease]
        del self._lease_ends_at[lease]
        if task.cancelled():
            # Cancelled because its lease is lost, or while draining, to give the segment back.
            if not self._draining:
                self._counters.attempts["stopped"].inc()
        else:
            # A handler cannot cause an exception here. It is a bug; the next step raises it.
            self._fault = self._fault or task.exception()
            if task.exception() is None:
                self._handle_ending(lease, task.result())
        self._note_change()

    def _handle_ending(self, lease: Lease, ending: Ending) -> None:
        """Store the ending of an attempt for the next step."""
        self._counters.attempts[ending.kind].inc()
        if ending.kind == "stopped":
            return  # its deadline has passed, so a write would have no effect
        self._choice.note_run(ending.run_seconds)
        self._counters.run.observe(ending.run_seconds)
        # Without the error: it can repeat the text. The caller reads it from the row.
        fields = {"outcome": ending.kind, "duration_ms": round(ending.run_seconds * 1000)}
        level = logging.INFO if ending.kind == "done" else logging.WARNING
        log.log(level, "attempt ended", extra=self._attempt_fields(lease) | fields)
        if ending.kind == "done":
            assert ending.result is not None
            self._ready.append(Ready(lease, ending.result))
            return
        error = ending.error or ending.kind
        after_seconds, max_attempts = self._settings.retry_seconds, self._settings.max_attempts
        if ending.kind == "retry" and ending.after_seconds is not None:
            after_seconds = ending.after_seconds
        if ending.kind == "rejected":
            max_attempts = 0
        self._failures.append(FailedAttempt(lease, error, after_seconds, max_attempts))

    async def _record(self, failure: FailedAttempt) -> None:
        recorded = await fail(
            self._db, failure.lease, failure.error, failure.after_seconds, failure.max_attempts
        )
        if not recorded:
            FENCE_REJECTIONS["fail"].inc()
            log.warning("lease lost, failure dropped", extra=self._attempt_fields(failure.lease))
        elif failure.lease.attempt < failure.max_attempts:
            self._choice.back_off(failure.lease.request_id, failure.after_seconds)

    def _note_change(self) -> None:
        self._compute.seat_free.set()
        if self._running or self._ready or self._failures:
            self.empty.clear()
        else:
            self.empty.set()
