"""One child process runs handler code, and its parent tracks the attempts in it."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

# How long what a dead child still said may take to arrive.
LAST_OUTPUT_SECONDS = 0.25

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
    """How an attempt ended; "stopped" means that nothing may be written for it."""

    kind: Kind
    result: str | None
    error: str | None
    after_seconds: float | None
    run_seconds: float


class Child(asyncio.Protocol):
    """One process that runs handler code, and the attempts in it."""

    def __init__(
        self, process: subprocess.Popen[bytes], on_message: Callable[["Child", Message], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.process = process
        # Tells when the process ends, without a thread that waits and without a signal handler.
        # asyncio's own processes wait in a thread, which loses the status when kill() looks first.
        self.process_handle = os.pidfd_open(process.pid)
        self.on_message = on_message
        self.handshake: asyncio.Future[Message] = loop.create_future()
        self.silent: asyncio.Future[None] = loop.create_future()
        self.end = loop.create_task(self._end())
        self.seats = 0
        self.running: dict[int, Attempt] = {}
        # A suspect runs in it, and nothing may run beside that one.
        self.exclusive = False
        self.killed = False
        self.pieces: list[bytes] = []
        self.unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No assertion: uvloop's transports are none of asyncio's by descent.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        # Only then joined: a result of some megabytes arrives in many pieces.
        if b"\n" in data:
            *lines, rest = b"".join(self.pieces).split(b"\n")
            self.pieces = [rest]
            for line in lines:
                self.on_message(self, json.loads(line))

    def connection_lost(self, error: Exception | None) -> None:
        self.silent.set_result(None)
        # It has ended or closed the socket; in both cases nothing can come from it any more.
        self.stop_serving()

    def send(self, message: Message) -> None:
        """Write one message; a child that is gone hears nothing, and `end` tells of it."""
        # One write for what is sent in one turn of the loop: a claim brings many segments.
        if not self.unsent:
            asyncio.get_running_loop().call_soon(self.flush)
        self.unsent.append(json.dumps(message).encode() + b"\n")

    def flush(self) -> None:
        """Write what `send` has gathered."""
        if not self.transport.is_closing():
            self.transport.write(b"".join(self.unsent))
        self.unsent.clear()

    def kill(self) -> None:
        """End the process for a reason of ours, so that no attempt in it is blamed for its end."""
        self.killed = True
        self.stop_serving()

    def stop_serving(self) -> None:
        """End the process, if it still lives; it takes no further attempt."""
        self.seats = 0
        self.process.kill()

    async def _end(self) -> int:
        """The exit status, once the process has ended and all it said has been heard."""
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
        await asyncio.wait([self.silent], timeout=LAST_OUTPUT_SECONDS)
        self.transport.abort()
        return status


@dataclass(eq=False)
class Attempt:
    """A piece of work on its way: waiting for a seat, in a child, or ended."""

    work: Work
    ended: asyncio.Future[Ending]
    timer: asyncio.TimerHandle | None = None
    number: int = 0
    began: float | None = None
    child: Child | None = None
    # Kind and error of its ending, whatever the handler still says.
    decided: tuple[Kind, str] | None = None
    # It ran beside others in a child that died, so it runs alone until it is known who did it.
    quarantined: bool = False


def begin_child(
    handler: str, max_output_characters: int
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The socket to a new child and its process."""
    ours, theirs = socket.socketpair()
    with theirs, contextlib.ExitStack() as on_error:
        on_error.enter_context(ours)
        # The program is this Python with a module of ours.
        process = subprocess.Popen(  # noqa: S603
            [
                sys.executable,
                # What a handler prints must be seen even if it is killed right after.
                "-u",
                "-m",
                "partway.worker.child",
                str(theirs.fileno()),
                str(os.getpid()),
                str(max_output_characters),
                handler,
            ],
            stdin=subprocess.DEVNULL,
            # Standard output belongs to the results of `try`.
            stdout=sys.__stderr__,
            pass_fds=[theirs.fileno()],
        )
        on_error.pop_all()
    return ours, process


def how_it_ended(status: int) -> str:
    """A sentence for the exit status of a child."""
    if status < 0:
        return f"the handler's process ended by signal {-status}"
    return f"the handler's process ended with exit status {status}"
