"""Runs handlers in child processes: the worker must survive whatever a handler does.

A sync handler gets one child per seat. An async handler gets one child with all the seats. A
segment that must end is first asked to stop (`ctx.cancelled`, or the cancellation of an async
handler). If it does not stop within KILL_AFTER_SECONDS, its child is killed and replaced.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from partway.worker.handler import HandlerError

log = logging.getLogger("partway.worker")

# Long enough for an async handler to clean up, and short for a seat that waits.
KILL_AFTER_SECONDS = 0.25
# A handler's close() may have to end connections; the worker must not wait long for it.
CLOSE_SECONDS = 5.0
# How long the last output of a dead child may take to arrive.
LAST_OUTPUT_SECONDS = 0.25
# A handler that cannot be set up now may need a server or memory that is not available yet.
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

Message = dict[str, Any]
Kind = Literal["done", "failed", "retry", "rejected", "stopped"]


@dataclass(frozen=True)
class Work:
    """One attempt at one segment; `ends_at` is its request's deadline on the monotonic clock."""

    request_id: int
    index_no: int
    attempt: int
    source: str
    params: dict[str, Any]
    ends_at: float
    traceparent: str | None = None


@dataclass(frozen=True)
class Ending:
    """How an attempt ended; "stopped" means that nothing is written for it."""

    kind: Kind
    result: str | None
    error: str | None
    after_seconds: float | None
    run_seconds: float


class _Child(asyncio.Protocol):
    """One process that runs handler code, and the attempts in it."""

    def __init__(
        self, process: subprocess.Popen[bytes], on_message: Callable[["_Child", Message], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.process = process
        # Reports the end of the process without a waiting thread and without a signal handler.
        # asyncio's own processes wait in a thread, which loses the status when kill() polls first.
        self.process_handle = os.pidfd_open(process.pid)
        self.on_message = on_message
        self.handshake: asyncio.Future[Message] = loop.create_future()
        self.disconnected: asyncio.Future[None] = loop.create_future()
        self.end = loop.create_task(self._end())
        self.seats = 0
        self.running: dict[int, _Attempt] = {}
        # True while a quarantined attempt runs in this child: nothing may run beside it.
        self.exclusive = False
        self.killed = False
        self.pieces: list[bytes] = []
        self.unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not an assertion: uvloop's transports do not inherit from asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        # Joined only at a line end: a result of some megabytes arrives in many pieces.
        if b"\n" in data:
            *lines, rest = b"".join(self.pieces).split(b"\n")
            self.pieces = [rest]
            for line in lines:
                self.on_message(self, json.loads(line))

    def connection_lost(self, error: Exception | None) -> None:
        self.disconnected.set_result(None)
        # The child has ended or closed its socket. In both cases no message can arrive any more.
        self.stop_serving()

    def send(self, message: Message) -> None:
        """Send one message. It is lost when the child has ended, which `end` reports."""
        # All messages of one turn of the event loop go in one write: a claim has many segments.
        if not self.unsent:
            asyncio.get_running_loop().call_soon(self.flush)
        self.unsent.append(json.dumps(message).encode() + b"\n")

    def flush(self) -> None:
        """Write the messages that `send` has collected."""
        if not self.transport.is_closing():
            self.transport.write(b"".join(self.unsent))
        self.unsent.clear()

    def kill(self) -> None:
        """Kill the process by our own decision, so that no attempt in it counts as the cause."""
        self.killed = True
        self.stop_serving()

    def stop_serving(self) -> None:
        """Kill the process if it still runs, and start no further attempt in it."""
        self.seats = 0
        self.process.kill()

    async def _end(self) -> int:
        """The exit status, when the process has ended and its last messages have been read."""
        loop = asyncio.get_running_loop()
        exited = asyncio.Event()
        loop.add_reader(self.process_handle, exited.set)
        try:
            await exited.wait()
        finally:
            loop.remove_reader(self.process_handle)
            os.close(self.process_handle)
        status = self.process.wait()
        # Bounded, because a process that the handler started may hold the socket open.
        await asyncio.wait([self.disconnected], timeout=LAST_OUTPUT_SECONDS)
        self.transport.abort()
        return status


@dataclass(eq=False)
class _Attempt:
    """One attempt at a segment: it waits for a seat, runs in a child, or has ended."""

    work: Work
    ended: asyncio.Future[Ending]
    timer: asyncio.TimerHandle | None = None
    number: int = 0
    started_at: float | None = None
    child: _Child | None = None
    # The kind and error with which it ends, whatever the handler still reports.
    decided: tuple[Kind, str] | None = None
    # It ran beside others in a child that died. It runs again alone, to find the cause.
    quarantined: bool = False


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
        self._children: list[_Child] = []
        self._supervisors: list[asyncio.Task[None]] = []
        self._waiting: deque[_Attempt] = deque()
        self._quarantined: deque[_Attempt] = deque()

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
        attempt = _Attempt(work, loop.create_future())
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

    def _wait_for_seat(self, attempt: _Attempt) -> None:
        """End the attempt at its deadline if it has no seat by then."""
        self._set_timer(attempt, attempt.work.ends_at, "stopped", "the deadline was reached")

    def _set_timer(self, attempt: _Attempt, ends_at: float, kind: Kind, error: str) -> None:
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

    def _next_for(self, child: _Child) -> _Attempt | None:
        """Take the next attempt to start in this child; None when none can start."""
        queue = self._quarantined or self._waiting
        if not queue or child.exclusive or len(child.running) >= child.seats:
            return None
        # An attempt sent to a child that is dead, but not noticed yet, would count as the cause.
        return queue.popleft() if child.process.poll() is None else None

    def _start(self, attempt: _Attempt, child: _Child) -> None:
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

    def _on_message(self, child: _Child, message: Message) -> None:
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

    def _end(self, attempt: _Attempt, kind: Kind, error: str) -> None:
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

    def _kill_for(self, attempt: _Attempt) -> None:
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
        attempt: _Attempt,
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

    def _on_child_exit(self, child: _Child, how: str) -> None:
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

    async def _launch(self) -> _Child:
        """Start a child and wait until it is ready; HandlerError when the handler is unusable."""
        loop = asyncio.get_running_loop()
        ours, process = start_child(self._handler, self._max_output_characters)
        child = _Child(process, self._on_message)
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

    async def _supervise(self, child: _Child | None, seats: int) -> None:
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


def start_child(
    handler: str, max_output_characters: int
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a child; returns the socket to it and its process."""
    ours, theirs = socket.socketpair()
    with theirs, contextlib.ExitStack() as on_error:
        on_error.enter_context(ours)
        # S603: the program is this Python, with a module of Partway.
        process = subprocess.Popen(  # noqa: S603
            [
                sys.executable,
                # Unbuffered, so that what a handler prints is not lost when it is killed.
                "-u",
                "-m",
                "partway.worker.child",
                str(theirs.fileno()),
                str(os.getpid()),
                str(max_output_characters),
                handler,
            ],
            stdin=subprocess.DEVNULL,
            # Standard output carries the result of `partway worker try`.
            stdout=sys.__stderr__,
            pass_fds=[theirs.fileno()],
        )
        on_error.pop_all()
    return ours, process


def describe_exit(status: int) -> str:
    """Describe the exit status of a child in one sentence."""
    if status < 0:
        return f"the handler's process ended by signal {-status}"
    return f"the handler's process ended with exit status {status}"
