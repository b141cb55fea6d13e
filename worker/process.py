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
from pathlib import Path
from typing import Any, Literal, cast

# How long the last output of a dead child may take to arrive.
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
    """How an attempt ended; "stopped" means that nothing is written for it."""

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
        # Reports the end of the process without a waiting thread and without a signal handler.
        # asyncio's own processes wait in a thread, which loses the status when kill() polls first.
        self.process_handle = os.pidfd_open(process.pid)
        self.on_message = on_message
        self.handshake: asyncio.Future[Message] = loop.create_future()
        self.disconnected: asyncio.Future[None] = loop.create_future()
        self.end = loop.create_task(self._end())
        self.seats = 0
        self.running: dict[int, Attempt] = {}
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
class Attempt:
    """One attempt at a segment: it waits for a seat, runs in a child, or has ended."""

    work: Work
    ended: asyncio.Future[Ending]
    timer: asyncio.TimerHandle | None = None
    number: int = 0
    started_at: float | None = None
    child: Child | None = None
    # The kind and error with which it ends, whatever the handler still reports.
    decided: tuple[Kind, str] | None = None
    # It ran beside others in a child that died. It runs again alone, to find the cause.
    quarantined: bool = False


# The folder that holds this Partway, and the code of a child. It imports the same Partway, also if
# another one is installed, and then removes the folder, which can hold other modules too.
INSTALLED_IN = str(Path(__file__).parents[2])
CHILD_CODE = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import partway
del sys.path[0]
from partway.worker.child import run
run()
"""


def start_child(
    handler: str, max_output_characters: int
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a child; returns the socket to it and its process."""
    ours, theirs = socket.socketpair()
    with theirs, contextlib.ExitStack() as on_error:
        on_error.enter_context(ours)
        # S603: the program is this Python, with code of Partway.
        process = subprocess.Popen(  # noqa: S603
            [
                sys.executable,
                # Unbuffered, so that what a handler prints is not lost when it is killed.
                "-u",
                # Without the current folder, which the child adds after everything else.
                "-P",
                "-c",
                CHILD_CODE,
                INSTALLED_IN,
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
