"""The worker must go on whatever a handler does, so it runs handlers in children it can replace.

A sync handler gets one child for each seat; an async one gets a single child with all the seats.
A segment that must end is asked to (`ctx.cancelled`, or the cancellation of an async handler);
a child that has not let go of it shortly after is killed and replaced.
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
    begin_child,
    how_it_ended,
)

log = logging.getLogger("partway.worker")

# Enough for an async handler to clean up, and hardly any of the time of a seat.
KILL_AFTER_SECONDS = 0.25

# A handler's close() may have to say goodbye to somebody; a program must not wait for it long.
CLOSE_SECONDS = 5.0

# A handler that cannot be set up now may wait for a server or for memory.
FIRST_PAUSE_SECONDS = 0.1

LONGEST_PAUSE_SECONDS = 5.0


class Compute:
    """Runs attempts in children, each to one ending; a class, since children outlive calls.

    `seat_free` is set whenever a segment could start; whoever waits for it clears it.
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
        """Come back when the first child is ready; HandlerError says why there will be none."""
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
        """How many more segments could start now; 0 while the children are being replaced."""
        if self._quarantined or any(child.exclusive for child in self._children):
            return 0
        seats = sum(max(0, child.seats - len(child.running)) for child in self._children)
        return max(0, seats - len(self._waiting))

    async def run(self, work: Work) -> Ending:
        """How the attempt ended, after waiting for a seat if none is free.

        Raises nothing for what a handler does. When it is cancelled, it ends the handler first.
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
            # The future was cancelled with us; a second one tells when the handler has ended.
            attempt.ended = loop.create_future()
            self._end(attempt, "stopped", "cancelled")
            await attempt.ended
            raise

    async def close(self) -> None:
        """Close the handlers and end the children; what still runs is stopped."""
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
                log.warning("the handler has not closed in %g s and is killed", CLOSE_SECONDS)
                child.kill()
        await asyncio.gather(*ends)
        running = [attempt for child in self._children for attempt in child.running.values()]
        for attempt in (*running, *self._waiting, *self._quarantined):
            self._conclude(attempt, "stopped", error="the worker has closed")
        self._children.clear()
        self._waiting.clear()
        self._quarantined.clear()

    # Attempts: each of these is called by the loop, never awaited, so that no cancellation can
    # come between a seat and its count.

    def _wait_for_seat(self, attempt: Attempt) -> None:
        """Have the attempt end at its deadline if it has no seat by then."""
        self._set_timer(attempt, attempt.work.ends_at, "stopped", "the deadline was reached")

    def _set_timer(self, attempt: Attempt, ends_at: float, kind: Kind, error: str) -> None:
        if attempt.timer is not None:
            attempt.timer.cancel()
        # The loop's clock is the clock of ends_at: time.monotonic().
        loop = asyncio.get_running_loop()
        attempt.timer = loop.call_at(ends_at, self._end, attempt, kind, error)

    def _start_waiting(self) -> None:
        """Begin what can begin, and say so if a seat is left."""
        for child in self._children:
            while (attempt := self._next_for(child)) is not None:
                self._begin(attempt, child)
        if self.free:
            self.seat_free.set()

    def _next_for(self, child: Child) -> Attempt | None:
        """The attempt that begins in this child now; None when nothing can."""
        queue = self._quarantined or self._waiting
        if not queue or child.exclusive or len(child.running) >= child.seats:
            return None
        # Dead, but not noticed yet: an attempt that is sent to it would be blamed.
        return queue.popleft() if child.process.poll() is None else None

    def _begin(self, attempt: Attempt, child: Child) -> None:
        work = attempt.work
        attempt.began = time.monotonic()
        attempt.number = next(self._numbers)
        attempt.child = child
        child.running[attempt.number] = attempt
        child.exclusive = attempt.quarantined
        ends_at = attempt.began + self._time_limit_seconds
        if ends_at < work.ends_at:
            error = f"time limit of {self._time_limit_seconds:g} s reached"
            self._set_timer(attempt, ends_at, "failed", error)
        else:
            # The timer it waited with stands for the deadline already.
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
        """Act on one message of a child."""
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
        """End the attempt in this way, once its handler has let go or has been killed."""
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
        """Kill the child whose handler does not let go of the attempt."""
        assert attempt.child is not None
        log.warning(
            "the handler does not let go of request %d, segment %d: its process is killed",
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
        """Give the attempt its ending: the decided one, else this one."""
        if attempt.timer is not None:
            attempt.timer.cancel()
        attempt.child = None
        if attempt.decided is not None:
            (kind, error), result, after_seconds = attempt.decided, None, None
        run_seconds = 0.0 if attempt.began is None else time.monotonic() - attempt.began
        if not attempt.ended.done():
            attempt.ended.set_result(Ending(kind, result, error, after_seconds, run_seconds))

    def _on_child_exit(self, child: Child, how: str) -> None:
        """Decide about each attempt in a child that has ended: who did it fails, others go on.

        Where several ran and nobody killed it, each is a suspect and runs again alone: then the
        one that kills its child again is known, and the others have lost no attempt.
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
        # In front: they have waited once already.
        self._waiting.extendleft(reversed(requeued))
        for attempt in (*requeued, *self._quarantined):
            self._wait_for_seat(attempt)
        self._start_waiting()

    # Children.

    async def _launch(self) -> Child:
        """A child that is ready for work; HandlerError when the handler cannot be used."""
        loop = asyncio.get_running_loop()
        ours, process = begin_child(self._handler, self._max_output_characters)
        child = Child(process, self._on_message)
        try:
            await loop.create_unix_connection(lambda: child, sock=ours)
            waits: list[asyncio.Future[Any]] = [child.handshake, child.end]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not child.handshake.done():
                raise HandlerError(f"{how_it_ended(child.end.result())} before it was ready")
            if child.handshake.result()["kind"] == "unusable":
                raise HandlerError(child.handshake.result()["error"])
        except BaseException:
            child.kill()
            await child.end
            raise
        return child

    async def _supervise(self, child: Child | None, seats: int) -> None:
        """Keep one child alive for ever: put another in its place whenever it has ended."""
        pause_seconds = FIRST_PAUSE_SECONDS
        while True:
            try:
                child = child or await self._launch()
            except (HandlerError, OSError) as error:
                log.warning("%s; next try in %g s", error, pause_seconds)
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
                continue
            child.seats = seats
            self._children.append(child)
            self._start_waiting()
            # Shielded, because close() ends this supervisor and then still needs the child's end.
            status = await asyncio.shield(child.end)
            self._children.remove(child)
            how = how_it_ended(status)
            if not child.killed:
                log.warning("%s; another is started", how)
            served = bool(child.running) or child.killed
            self._on_child_exit(child, how)
            if served:
                pause_seconds = FIRST_PAUSE_SECONDS
            else:
                # It died while idle, and the next one may do so at once.
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
            child = None
