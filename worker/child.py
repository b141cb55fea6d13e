"""Handler code may block, hang, leak or kill its process, so this process runs nothing else.

Only `worker.compute` starts it. The two talk in lines of JSON over an inherited socket:

    to the child    {"kind": "run", "id", "text", "params", "index", "attempt", "ends_at",
                     "traceparent"}
                    {"kind": "cancel", "id"}    {"kind": "close"}
    to the parent   {"kind": "ready", "async"}  or  {"kind": "unusable", "error"}
                    {"kind": "done", "id", "result"}
                    {"kind": "failed" | "rejected" | "retry", "id", "error", "after"}
                    {"kind": "unhealthy", "error"}, after which the child is gone
"""

import asyncio
import contextlib
import ctypes
import inspect
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from partway.store.log import start_log
from partway.worker.handler import (
    Context,
    HandlerError,
    Reject,
    Retry,
    describe_error,
    load,
    one_line,
)

Message = dict[str, Any]

PR_SET_PDEATHSIG = 1

# The messages of a whole claim, as a rule.
RECEIVED_BYTES = 262_144


def end_with_parent(parent_id: int) -> None:
    """Have the kernel kill this process when its parent dies, even while it is busy in C code."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent_id:
        # The parent died before the kernel knew.
        os._exit(1)


def leave_signals_to_parent() -> None:
    """Outlive what is sent to a whole group of processes: the parent decides when a child ends."""
    # A terminal's Ctrl-C; what a handler starts inherits this, so a pipeline outlives it too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A service manager's stop; not SIG_IGN, which the processes a handler starts would inherit.
    signal.signal(signal.SIGTERM, lambda *_: None)


def send(channel: socket.socket, *messages: Message) -> None:
    """Write the messages as one piece; without a parent the process ends."""
    try:
        channel.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
    except ConnectionError:
        # The kernel is about to end us, and a stack in the log would look like a fault of ours.
        os._exit(1)


def listen(channel: socket.socket, receive: Callable[[list[Message]], object]) -> None:
    """Hand on what the parent says, in a thread of its own; without a parent the process ends.

    What has come together is handed on together: each time costs a wake-up of the other thread.
    """

    def read() -> None:
        pieces: list[bytes] = []
        # A parent that was killed leaves a reset where it had not read all that we said.
        with contextlib.suppress(ConnectionError):
            while piece := channel.recv(RECEIVED_BYTES):
                pieces.append(piece)
                # Only then joined: a source of some megabytes arrives in many pieces.
                if b"\n" in piece:
                    *lines, rest = b"".join(pieces).split(b"\n")
                    pieces = [rest]
                    receive([json.loads(line) for line in lines])
        os._exit(1)

    threading.Thread(target=read, name="listen", daemon=True).start()


def context_of(message: Message) -> Context:
    """What the handler gets beside the text."""
    return Context(
        message["params"],
        message["index"],
        message["attempt"],
        message["ends_at"],
        traceparent=message["traceparent"],
    )


def result_reply(result: object, max_output_characters: int) -> Message:
    """The reply for what a handler returned, which may be nothing that can be stored."""
    if not isinstance(result, str):
        kind = type(result).__name__
        return {"kind": "failed", "error": f"the handler returned {kind} instead of str"}
    if len(result) > max_output_characters:
        # The same text would come out as long again, so there is no second attempt.
        why = f"the result has {len(result)} characters, more than {max_output_characters}"
        return {"kind": "rejected", "error": why}
    try:
        result.encode()
    except UnicodeEncodeError as error:
        return {"kind": "failed", "error": f"the result is not UTF-8: {describe_error(error)}"}
    return {"kind": "done", "result": result}


def error_reply(error: BaseException) -> Message:
    """The reply for what a handler raised."""
    if isinstance(error, Retry):
        return {"kind": "retry", "after": error.after, "error": one_line(str(error))}
    if isinstance(error, Reject):
        return {"kind": "rejected", "error": one_line(str(error))}
    return {"kind": "failed", "error": describe_error(error)}


def call(handler: Any, name: str, runner: asyncio.Runner) -> Any:
    """What an optional method of the handler returns, sync or async; None when it has none."""
    method = getattr(handler, name, None)
    result = method() if method else None
    return runner.run(result) if inspect.iscoroutine(result) else result


def unhealthy_reason(healthy: object) -> str | None:
    """Why the child must be replaced; None when its handler did not say that it is unwell."""
    return "healthy() returned False" if healthy is False else None


def exit_unhealthy(channel: socket.socket, why: str, *replies: Message) -> None:
    """Send what is still to be said, and end without asking an unwell handler to close."""
    send(channel, *replies, {"kind": "unhealthy", "error": why})
    os._exit(1)


def serve_sync(
    handler: Any, channel: socket.socket, max_output_characters: int, runner: asyncio.Runner
) -> None:
    """Run one segment after the other in the main thread, until told to close.

    The main thread, because signals and many libraries work only there.
    """
    inbox: SimpleQueue[tuple[Message, Context] | None] = SimpleQueue()
    contexts: dict[int, Context] = {}

    def take(message: Message) -> None:
        if message["kind"] == "run":
            contexts[message["id"]] = context_of(message)
            inbox.put((message, contexts[message["id"]]))
        elif message["kind"] == "close":
            inbox.put(None)
        elif message["id"] in contexts:
            contexts[message["id"]].cancelled = True

    def receive(messages: list[Message]) -> None:
        for message in messages:
            take(message)

    listen(channel, receive)
    while (item := inbox.get()) is not None:
        message, context = item
        try:
            reply = result_reply(handler(message["text"], context), max_output_characters)
        except BaseException as error:
            # SystemExit too: a handler that calls sys.exit() has failed, the child has not.
            reply = error_reply(error)
        reply["id"] = message["id"]
        unwell = None
        if reply["kind"] == "failed" and not context.cancelled:
            try:
                unwell = unhealthy_reason(call(handler, "healthy", runner))
            except BaseException as error:
                unwell = f"healthy() raised {type(error).__name__}"
        del contexts[message["id"]]
        if unwell:
            exit_unhealthy(channel, unwell, reply)
        send(channel, reply)


async def serve_async(handler: Any, channel: socket.socket, max_output_characters: int) -> None:
    """Run as many segments at a time as the parent sends, until told to close."""
    loop = asyncio.get_running_loop()
    closing = asyncio.Event()
    running: dict[int, tuple[asyncio.Task[None], Context]] = {}
    replies: list[Message] = []

    def flush() -> None:
        send(channel, *replies)
        replies.clear()

    def reply_with(reply: Message) -> None:
        # Results that come ready in the same turn of the loop leave in one write.
        if not replies:
            loop.call_soon(flush)
        replies.append(reply)

    async def run(message: Message, context: Context) -> None:
        try:
            result = await handler(message["text"], context)
            reply = result_reply(result, max_output_characters)
        except BaseException as error:
            reply = error_reply(error)
        reply["id"] = message["id"]
        unwell = None
        if reply["kind"] == "failed" and not context.cancelled and hasattr(handler, "healthy"):
            try:
                healthy = handler.healthy()
                unwell = unhealthy_reason(
                    await healthy if inspect.isawaitable(healthy) else healthy
                )
            except BaseException as error:
                unwell = f"healthy() raised {type(error).__name__}"
        if unwell:
            exit_unhealthy(channel, unwell, *replies, reply)
        reply_with(reply)

    def forget(number: int, task: asyncio.Task[None]) -> None:
        del running[number]
        if task.cancelled():
            # Cancelled before its first step, so that run() could not reply.
            reply_with({"kind": "failed", "id": number, "error": "cancelled"})

    def take(message: Message) -> None:
        if message["kind"] == "run":
            number, context = message["id"], context_of(message)
            task = loop.create_task(run(message, context))
            running[number] = (task, context)
            task.add_done_callback(lambda task: forget(number, task))
        elif message["kind"] == "close":
            closing.set()
        elif message["id"] in running:
            task, context = running[message["id"]]
            context.cancelled = True
            task.cancel()

    def receive(messages: list[Message]) -> None:
        for message in messages:
            take(message)

    listen(channel, lambda messages: loop.call_soon_threadsafe(receive, messages))
    await closing.wait()
    for task, _ in running.values():
        task.cancel()
    await asyncio.gather(*(task for task, _ in running.values()), return_exceptions=True)


def main(channel: socket.socket, max_output_characters: int, name: str) -> None:
    """Set the handler up, say so, run what the parent sends, and close the handler."""
    with asyncio.Runner() as runner:
        try:
            loaded = load(name)
            handler = loaded() if isinstance(loaded, type) else loaded
            call(handler, "setup", runner)
        except HandlerError as error:
            send(channel, {"kind": "unusable", "error": one_line(str(error))})
            sys.exit(1)
        except BaseException as error:
            why = f"handler {name!r} cannot be set up: {describe_error(error)}"
            send(channel, {"kind": "unusable", "error": one_line(why)})
            sys.exit(1)
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            type(handler).__call__
        )
        send(channel, {"kind": "ready", "async": is_async})
        if is_async:
            runner.run(serve_async(handler, channel, max_output_characters))
        else:
            serve_sync(handler, channel, max_output_characters, runner)
        call(handler, "close", runner)


if __name__ == "__main__":
    # As its parent has read it: to read settings once more takes longer than all else at a start.
    # Not what libraries say at INFO: httpx names whole addresses there, texts included.
    start_log("worker", os.environ.get("PARTWAY_LOG_FORMAT", "auto"), logging.WARNING)
    end_with_parent(parent_id=int(sys.argv[2]))
    leave_signals_to_parent()
    # Here and not in main(), so that it stays open until the process has ended: the parent kills
    # a child that it can no longer hear, and exit hooks may take their time.
    parent = socket.socket(fileno=int(sys.argv[1]))
    # What a handler starts must not hold the socket open after this process has ended.
    parent.set_inheritable(False)
    main(parent, int(sys.argv[3]), sys.argv[4])
