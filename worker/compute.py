"""Runs handlers in child processes: the worker must survive whatever a handler does.

A sync handler gets one child per seat. An async handler gets one child with all the seats. A
segment that must end is first asked to stop (`ctx.cancelled`, or the cancellation of an async
handler). If it does not stop within KILL_AFTER_SECONDS, its child is killed and replaced.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from typing import Any

from partway.worker.handler import HandlerError
from partway.worker.process import (
    Attempt,
    Child,
    Ending,
    Kind,
    Message,
    Work,
    describe_exit,
    start_child,
)

log = logging.getLogger("partway.worker")

# Long enough for an async handler to clean up, and short for a seat that waits.
KILL_AFTER_SECONDS = 0.25

# A handler's close() may have to end connections; the worker must not wait long for it.
CLOSE_SECONDS = 5.0

# A handler that cannot be set up now may need a server or memory that is not available yet.
FIRST_PAUSE_SECONDS = 0.1

LONGEST_PAUSE_SECONDS = 5.0


class Compute:
    """Runs attempts in children; each attempt has exactly one ending.

    `seat_free` is set whenever a segment could start. The reader that waits for it clears it.
    """

    def __init__(
        self,
        handler: str,
        concurrency: int,
        time_limit_seconds: float,
        max_output_characters: int,
    ) -> None:
        self.seat_free = asyncio.Event()
        self._handler = handler
        self._concurrency = concurrency
        self._time_limit_seconds = time_limit_seconds
        self._max_output_characters = max_output_characters
        self._numbers = itertools.count(1)
        self._children: list[Child] = []
        self._supervisors: list[asyncio.Task[None]] = []
        self._waiting: deque[Attempt] = deque()
        self._quarantined: deque[Attempt] = deque()

    async def start(self) -> None:
        """Start the children and wait until the first is ready; HandlerError when none can be."""
        first = await self._launch()
        is_async = first.handshake.result()["async"]
        seats = self._concurrency if is_async else 1
        self._supervisors = [asyncio.create_task(self._supervise(first, seats))]
        if not is_async:
            self._supervisors += [
                asyncio.create_task(self._supervise(None, seats))
                for _ in range(1, self._concurrency)
            ]
        # One turn of the loop, in which the first supervisor opens its seats.
        await asyncio.sleep(0)

    @property
    def free(self) -> int:
        """How many more segments could start now; 0 while children are replaced."""
        if self._quarantined or any(child.exclusive for child in self._children):
            return 0
        seats = sum(max(0, child.seats - len(child.running)) for child in self._children)
        return max(0, seats - len(self._waiting))

    async def run(self, work: Work) -> Ending:
        """Run one attempt and return its ending. Waits for a seat when none is free.

        Nothing that a handler does raises an exception here. When this call is cancelled, it ends
        the handler first.
        """
        loop = asyncio.get_running_loop()
        attempt = Attempt(work, loop.create_future())
        if work.ends_at <= time.monotonic():
            self._end(attempt, "stopped", "the deadline was reached")
        else:
            self._wait_for_seat(attempt)
            self._waiting.append(attempt)
            self._start_waiting()
        try:
            return await attempt.ended
        except asyncio.CancelledError:
            # The future was cancelled with this call. A second one reports the handler's end.
            attempt.ended = loop.create_future()
            self._end(attempt, "stopped", "cancelled")
            await attempt.ended
            raise

    async def close(self) -> None:
        """Close the handlers and end the children; attempts that still run are stopped."""
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        for child in self._children:
            child.seats = 0
            child.send({"kind": "close"})
        ends = [child.end for child in self._children]
        if ends:
            await asyncio.wait(ends, timeout=CLOSE_SECONDS)
        for child in self._children:
            if not child.end.done():
                log.warning("the handler did not close within %g s: it is killed", CLOSE_SECONDS)
                child.kill()
        await asyncio.gather(*ends)
        running = [attempt for child in self._children for attempt in child.running.values()]
        for attempt in (*running, *self._waiting, *self._quarantined):
            self._conclude(attempt, "stopped", error="the worker has closed")
        self._children.clear()
        self._waiting.clear()
        self._quarantined.clear()

    # Attempts. These methods never await, so no cancellation can happen between the start of an
    # attempt and its count.

    def _wait_for_seat(self, attempt: Attempt) -> None:
        """End the attempt at its deadline if it has no seat by then."""
        self._set_timer(attempt, attempt.work.ends_at, "stopped", "the deadline was reached")

    def _set_timer(self, attempt: Attempt, ends_at: float, kind: Kind, error: str) -> None:
        if attempt.timer is not None:
            attempt.timer.cancel()
        # The event loop and ends_at use the same clock: time.monotonic().
        loop = asyncio.get_running_loop()
        attempt.timer = loop.call_at(ends_at, self._end, attempt, kind, error)

    def _start_waiting(self) -> None:
        """Start every attempt that can start, and set seat_free if a seat is left."""
        for child in self._children:
            while (attempt := self._next_for(child)) is not None:
                self._start(attempt, child)
        if self.free:
            self.seat_free.set()

    def _next_for(self, child: Child) -> Attempt | None:
        """Take the next attempt to start in this child; None when none can start."""
        queue = self._quarantined or self._waiting
        if not queue or child.exclusive or len(child.running) >= child.seats:
            return None
        # An attempt sent to a child that is dead, but not noticed yet, would count as the cause.
        return queue.popleft() if child.process.poll() is None else None

    def _start(self, attempt: Attempt, child: Child) -> None:
        work = attempt.work
        attempt.started_at = time.monotonic()
        attempt.number = next(self._numbers)
        attempt.child = child
        child.running[attempt.number] = attempt
        child.exclusive = attempt.quarantined
        ends_at = attempt.started_at + self._time_limit_seconds
        if ends_at < work.ends_at:
            error = f"time limit of {self._time_limit_seconds:g} s reached"
            self._set_timer(attempt, ends_at, "failed", error)
        else:
            # The timer that is set already ends it at the deadline.
            ends_at = work.ends_at
        child.send(
            {
                "kind": "run",
                "id": attempt.number,
                "text": work.source,
                "params": work.params,
                "index": work.index_no,
                "attempt": work.attempt,
                "ends_at": ends_at,
                "traceparent": work.traceparent,
            }
        )

    def _on_message(self, child: Child, message: Message) -> None:
        """Handle one message of a child."""
        if message["kind"] in ("ready", "unusable"):
            child.handshake.set_result(message)
        elif message["kind"] == "unhealthy":
            log.warning("the handler's process is replaced: %s", message["error"])
            child.kill()
        else:
            attempt = child.running.pop(message["id"])
            child.exclusive = False
            self._conclude(
                attempt,
                message["kind"],
                message.get("result"),
                message.get("error"),
                message.get("after"),
            )
            self._start_waiting()

    def _end(self, attempt: Attempt, kind: Kind, error: str) -> None:
        """End the attempt with this kind and error, when its handler has stopped or been killed."""
        if attempt.child is None:
            for queue in (self._waiting, self._quarantined):
                if attempt in queue:
                    queue.remove(attempt)
            self._conclude(attempt, kind, error=error)
        elif attempt.decided is None:
            attempt.decided = (kind, error)
            attempt.child.send({"kind": "cancel", "id": attempt.number})
            if attempt.timer is not None:
                attempt.timer.cancel()
            loop = asyncio.get_running_loop()
            attempt.timer = loop.call_later(KILL_AFTER_SECONDS, self._kill_for, attempt)

    def _kill_for(self, attempt: Attempt) -> None:
        """Kill the child whose handler does not stop."""
        assert attempt.child is not None
        log.warning(
            "the handler did not stop at request %d, segment %d: its process is killed",
            attempt.work.request_id,
            attempt.work.index_no,
            extra={
                "request_no": attempt.work.request_id,
                "index": attempt.work.index_no,
                "attempt": attempt.work.attempt,
            },
        )
        attempt.child.kill()

    def _conclude(
        self,
        attempt: Attempt,
        kind: Kind,
        result: str | None = None,
        error: str | None = None,
        after_seconds: float | None = None,
    ) -> None:
        """Give the attempt its ending: the one that was decided before, else this one."""
        if attempt.timer is not None:
            attempt.timer.cancel()
        attempt.child = None
        if attempt.decided is not None:
            (kind, error), result, after_seconds = attempt.decided, None, None
        run_seconds = 0.0 if attempt.started_at is None else time.monotonic() - attempt.started_at
        if not attempt.ended.done():
            attempt.ended.set_result(Ending(kind, result, error, after_seconds, run_seconds))

    def _on_child_exit(self, child: Child, how: str) -> None:
        """Decide what happens to each attempt in a child that has ended.

        If one attempt ran, it fails. If several ran, each is quarantined and runs again alone: the
        one that ends its child again fails, and the others lose no attempt. If the worker killed
        the child, the attempts are requeued.
        """
        attempts = list(child.running.values())
        child.running.clear()
        child.exclusive = False
        requeued = []
        for attempt in attempts:
            attempt.child = None
            if attempt.decided is not None:
                self._conclude(attempt, *attempt.decided)
            elif child.killed:
                requeued.append(attempt)
            elif len(attempts) == 1:
                self._conclude(attempt, "failed", error=how)
            else:
                attempt.quarantined = True
                self._quarantined.append(attempt)
        # At the front: they have waited before.
        self._waiting.extendleft(reversed(requeued))
        for attempt in (*requeued, *self._quarantined):
            self._wait_for_seat(attempt)
        self._start_waiting()

    # Children.

    async def _launch(self) -> Child:
        """Start a child and wait until it is ready; HandlerError when the handler is unusable."""
        loop = asyncio.get_running_loop()
        ours, process = start_child(self._handler, self._max_output_characters)
        child = Child(process, self._on_message)
        try:
            await loop.create_unix_connection(lambda: child, sock=ours)
            waits: list[asyncio.Future[Any]] = [child.handshake, child.end]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not child.handshake.done():
                raise HandlerError(f"{describe_exit(child.end.result())} before it was ready")
            if child.handshake.result()["kind"] == "unusable":
                raise HandlerError(child.handshake.result()["error"])
        except BaseException:
            child.kill()
            await child.end
            raise
        return child

    async def _supervise(self, child: Child | None, seats: int) -> None:
        """Keep one child running: start another whenever it has ended. Never returns."""
        pause_seconds = FIRST_PAUSE_SECONDS
        while True:
            try:
                child = child or await self._launch()
            except (HandlerError, OSError) as error:
                log.warning("%s; trying again in %g s", error, pause_seconds)
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
                continue
            child.seats = seats
            self._children.append(child)
            self._start_waiting()
            # Shielded: close() cancels this supervisor and then still needs the child's end.
            status = await asyncio.shield(child.end)
            self._children.remove(child)
            how = describe_exit(status)
            if not child.killed:
                log.warning("%s; starting another", how)
            served = bool(child.running) or child.killed
            self._on_child_exit(child, how)
            if served:
                pause_seconds = FIRST_PAUSE_SECONDS
            else:
                # The child died while idle, and the next one may do so at once.
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
            child = None
