"""One claimer fills all the slots of a process, and writes back for all of them."""

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
    of_handler,
)
from partway.worker.process import Ending, Work
from partway.worker.settings import WorkerSettings

log = logging.getLogger("partway.worker")

# A handler is stopped this long before its lease ends, when the lease could not be renewed.
LEASE_MARGIN_SECONDS = 1.0

# What is ready at the end is written back if the database answers within this.
LAST_WRITES_SECONDS = 5.0

# Every segment of a request has the same params, and a process meets many requests in turn.
CONTEXTS_CACHED = 256

PARAMS = """
SELECT params, traceparent, tenant, public_id,
       TIMESTAMPDIFF(MICROSECOND, created_at, NOW(6)) AS age_microseconds
FROM   requests
WHERE  id = %s
"""


@dataclass(frozen=True)
class RequestContext:
    """What a caller means for the handler, the same for each segment of its request.

    `named` is what the caller calls it: by that its lines in the logs of all programs meet.
    `began_at` is when the caller came, by this process's monotonic clock.
    """

    params: dict[str, Any]
    traceparent: str | None
    named: dict[str, str]
    began_at: float


# Of a request that was settled since the list was read: it has no segment left to claim either.
NO_CONTEXT = RequestContext({}, None, {}, 0.0)


@dataclass(frozen=True)
class Failure:
    """A failed attempt that waits to be recorded; max_attempts 0 makes it the last."""

    lease: Lease
    error: str
    after_seconds: float
    max_attempts: int


class Slots:
    """The segments that this process holds: those that run, and what is not written back yet."""

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
        self._failures: list[Failure] = []
        self._contexts: OrderedDict[int, RequestContext] = OrderedDict()
        self._fault: BaseException | None = None
        self._counted = of_handler(settings.handler)
        SLOTS["busy"].set_function(lambda: len(self._running))
        SLOTS["idle"].set_function(lambda: settings.concurrency - len(self._running))
        self.empty = asyncio.Event()
        self.empty.set()

    async def step(self) -> bool:
        """One exchange; False when there is nothing to claim and nothing to write back."""
        if self._fault is not None:
            raise self._fault
        if self._failures:
            await self._record(self._failures[0])
            del self._failures[0]
            self._note_change()
            return True
        # Before anything is awaited: a seat may become free meanwhile, but none is taken.
        free = min(self._compute.free, self._settings.concurrency - len(self._running))
        active = None
        if free > 0 and not self._draining:
            active = await self._choice.next(self._db)
        context = await self._context_for(active) if active is not None else NO_CONTEXT
        async with self._exchanging:
            return await self._exchange(None if self._draining else active, context, free)

    async def _exchange(self, active: Active | None, context: RequestContext, free: int) -> bool:
        """Whether there is more to claim or to write back at once."""
        ready = list(self._ready)
        if active is None and not ready:
            return False
        began = time.monotonic()
        try:
            brought = await exchange(
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
        self._ready = brought.deferred + self._ready[len(ready) :]
        self._skip_locked = bool(brought.deferred)
        for lease in brought.lost:
            FENCE_REJECTIONS["write_back"].inc()
            log.warning("lease lost, result dropped", extra=self._named(lease))
        if active is not None:
            self._count_claim(brought, context, began)
            for lease in brought.claimed:
                self._start(lease, active, context, began)
            self._choice.note_claimed(
                active,
                [lease.index_no for lease in brought.claimed],
                is_all=len(brought.claimed) + brought.exhausted < free,
            )
            if brought.exhausted:
                log.warning(
                    "segments given up: no worker lived to say why",
                    extra=self._named_request(active.id) | {"segments": brought.exhausted},
                )
        self._note_change()
        # What was asked in vain is set aside now, so there is another to ask, or none.
        return active is not None or len(brought.deferred) < len(ready)

    def _count_claim(self, brought: Exchanged, context: RequestContext, began: float) -> None:
        now = time.monotonic()
        CLAIM_DURATION.observe(now - began)
        CLAIMS["claimed" if brought.claimed else "empty"].inc()
        self._counted.attempts["given_up"].inc(brought.exhausted)
        for lease in brought.claimed:
            if lease.is_successor:
                EXPIRATIONS.inc()
            if lease.attempt == 1:
                self._counted.queue_wait.observe(now - context.began_at)

    async def renew(self) -> bool:
        """Renew every lease held here, and stop what runs on a lease that is lost; False always."""
        held = [*self._running, *(item.lease for item in self._ready)]
        began = time.monotonic()
        lost = await renew(self._db, held, self._settings.lease_seconds)
        for lease in held:
            if lease in self._lease_ends_at:
                self._lease_ends_at[lease] = began + self._settings.lease_seconds
        for lease in lost:
            if lease in self._running:
                FENCE_REJECTIONS["renew"].inc()
                log.warning("lease lost, handler stopped", extra=self._named(lease))
                self._running[lease].cancel()
        return False

    async def cancel_expiring_leases(self) -> bool:
        """Stop what runs on a lease that ends before it can be renewed; False always.

        Whoever claims the segment next must not find it still running here.
        """
        last = time.monotonic() + LEASE_MARGIN_SECONDS
        for lease, ends_at in self._lease_ends_at.items():
            if ends_at < last:
                log.warning("lease not renewed in time, handler stopped", extra=self._named(lease))
                self._running[lease].cancel()
        return False

    async def drain(self, grace_seconds: float) -> None:
        """Claim nothing more, let what runs finish within the grace, then give the rest back."""
        self._draining = True
        async with self._exchanging:
            pass  # a claim that was on its way has come, and is among what runs
        await wait_for_any(grace_seconds, self.empty)
        running = dict(self._running)
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)
        for lease in running:
            try:
                is_given_back = await give_back(self._db, lease)
            except Unavailable:
                # Its lease runs out; a program that is to end does not wait for a database.
                log.warning("segment not given back", extra=self._named(lease))
                break
            if not is_given_back:
                FENCE_REJECTIONS["give_back"].inc()
                log.warning("lease lost, not given back", extra=self._named(lease))
                continue
            self._counted.attempts["given_back"].inc()
            log.info("segment given back", extra=self._named(lease))
        await wait_for_any(LAST_WRITES_SECONDS, self.empty)

    async def _context_for(self, active: Active) -> RequestContext:
        if active.id not in self._contexts:
            context = NO_CONTEXT
            for row in await self._db.read(PARAMS, (active.id,)):
                caller = {"request_id": row["public_id"], "tenant": row["tenant"]}
                began_at = time.monotonic() - row["age_microseconds"] / 1_000_000
                context = RequestContext(
                    json.loads(row["params"]), row["traceparent"], caller, began_at
                )
            self._contexts[active.id] = context
            if len(self._contexts) > CONTEXTS_CACHED:
                self._contexts.popitem(last=False)
        return self._contexts[active.id]

    def _named_request(self, request_id: int) -> dict[str, Any]:
        """A request as logs name it."""
        caller = self._contexts.get(request_id, NO_CONTEXT).named
        return {"request_no": request_id, "owner": self._settings.name, **caller}

    def _named(self, lease: Lease) -> dict[str, Any]:
        """An attempt at a segment as logs name it."""
        one = {"index": lease.index_no, "attempt": lease.attempt}
        return self._named_request(lease.request_id) | one

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
            # Told to let go of a lease that is lost; at the end of the process, to give it back.
            if not self._draining:
                self._counted.attempts["stopped"].inc()
        else:
            # No handler can cause an exception here: it is a fault of ours, for the next step.
            self._fault = self._fault or task.exception()
            if task.exception() is None:
                self._handle_ending(lease, task.result())
        self._note_change()

    def _handle_ending(self, lease: Lease, ending: Ending) -> None:
        """Put the ending of an attempt where the next step finds it."""
        self._counted.attempts[ending.kind].inc()
        if ending.kind == "stopped":
            return  # its deadline has passed: whatever were written would be void
        self._choice.note_run(ending.run_seconds)
        self._counted.run.observe(ending.run_seconds)
        # Not its error: that may repeat the text, and the row keeps it for the caller.
        how = {"outcome": ending.kind, "duration_ms": round(ending.run_seconds * 1000)}
        level = logging.INFO if ending.kind == "done" else logging.WARNING
        log.log(level, "attempt ended", extra=self._named(lease) | how)
        if ending.kind == "done":
            assert ending.result is not None
            self._ready.append(Ready(lease, ending.result))
            return
        error = ending.error or ending.kind
        after, most = self._settings.retry_seconds, self._settings.max_attempts
        if ending.kind == "retry" and ending.after_seconds is not None:
            after = ending.after_seconds
        if ending.kind == "rejected":
            most = 0
        self._failures.append(Failure(lease, error, after, most))

    async def _record(self, failure: Failure) -> None:
        recorded = await fail(
            self._db, failure.lease, failure.error, failure.after_seconds, failure.max_attempts
        )
        if not recorded:
            FENCE_REJECTIONS["fail"].inc()
            log.warning("lease lost, failure dropped", extra=self._named(failure.lease))
        elif failure.lease.attempt < failure.max_attempts:
            self._choice.back_off(failure.lease.request_id, failure.after_seconds)

    def _note_change(self) -> None:
        self._compute.seat_free.set()
        if self._running or self._ready or self._failures:
            self.empty.clear()
        else:
            self.empty.set()
