"""Runs handler code, which may block, hang, leak or kill its process, and nothing else.

Only `worker.compute` starts this process. They exchange lines of JSON over an inherited socket:

    to the child    {"kind": "run", "id", "text", "params", "index", "attempt", "ends_at",
                     "traceparent"}
                    {"kind": "cancel", "id"}    {"kind": "close"}
    to the parent   {"kind": "ready", "async"}  or  {"kind": "unusable", "error"}
                    {"kind": "done", "id", "result"}
                    {"kind": "failed" | "rejected" | "retry", "id", "error", "after"}
                    {"kind": "unhealthy", "error"}, after which the child exits
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

# Usually enough for all messages of one claim.
RECEIVED_BYTES = 262_144


def end_with_parent(parent_id: int) -> None:
    """Let the kernel kill this process when its parent dies, even while it is busy in C code."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent_id:
        # The parent died before the call above.
        os._exit(1)


def leave_signals_to_parent() -> None:
    """Ignore signals that are sent to a process group: the parent decides when a child ends."""
    # Ctrl-C in a terminal. Programs that a handler starts inherit this, so they survive it too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The stop signal of a service manager. Not SIG_IGN: programs of a handler would inherit it.
    signal.signal(signal.SIGTERM, lambda *_: None)


def send(channel: socket.socket, *messages: Message) -> None:
    """Send the messages in one write. When the parent is gone, the process exits."""
    try:
        channel.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
    except ConnectionError:
        # The kernel is about to kill this process. A stack trace would look like an error of ours.
        os._exit(1)


def listen(channel: socket.socket, receive: Callable[[list[Message]], object]) -> None:
    """Pass messages of the parent to `receive`, in a thread; the process exits without a parent.

    Messages that arrive together are passed together: each call wakes the other thread.
    """

    def read() -> None:
        pieces: list[bytes] = []
        # A parent that was killed before it read everything resets the connection.
        with contextlib.suppress(ConnectionError):
            while piece := channel.recv(RECEIVED_BYTES):
                pieces.append(piece)
                # Joined only at a line end: a source of some megabytes arrives in many pieces.
                if b"\n" in piece:
                    *lines, rest = b"".join(pieces).split(b"\n")
                    pieces = [rest]
                    receive([json.loads(line) for line in lines])
        os._exit(1)

    threading.Thread(target=read, name="listen", daemon=True).start()


def context_of(message: Message) -> Context:
    """The Context that the handler gets with the text of this message."""
    return Context(
        message["params"],
        message["index"],
        message["attempt"],
        message["ends_at"],
        traceparent=message["traceparent"],
    )


def result_reply(result: object, max_output_characters: int) -> Message:
    """The reply for the value that a handler returned, which may not be storable."""
    if not isinstance(result, str):
        kind = type(result).__name__
        return {"kind": "failed", "error": f"the handler returned {kind} instead of str"}
    if len(result) > max_output_characters:
        # A second attempt would give a result of the same length.
        why = f"the result has {len(result)} characters, more than {max_output_characters}"
        return {"kind": "rejected", "error": why}
    try:
        result.encode()
    except UnicodeEncodeError as error:
        return {"kind": "failed", "error": f"the result is not UTF-8: {describe_error(error)}"}
    return {"kind": "done", "result": result}


def error_reply(error: BaseException) -> Message:
    """The reply for the exception that a handler raised."""
    if isinstance(error, Retry):
        return {"kind": "retry", "after": error.after, "error": one_line(str(error))}
    if isinstance(error, Reject):
        return {"kind": "rejected", "error": one_line(str(error))}
    return {"kind": "failed", "error": describe_error(error)}


def call(handler: Any, name: str, runner: asyncio.Runner) -> Any:
    """Call an optional method of the handler, sync or async; None when there is no such method."""
    method = getattr(handler, name, None)
    result = method() if method else None
    return runner.run(result) if inspect.iscoroutine(result) else result


def unhealthy_reason(healthy: object) -> str | None:
    """Why the child must be replaced; None unless its handler reported that it is unhealthy."""
    return "healthy() returned False" if healthy is False else None


def exit_unhealthy(channel: socket.socket, why: str, *replies: Message) -> None:
    """Send the last replies and exit. An unhealthy handler is not asked to close."""
    send(channel, *replies, {"kind": "unhealthy", "error": why})
    os._exit(1)


def serve_sync(
    handler: Any, channel: socket.socket, max_output_characters: int, runner: asyncio.Runner
) -> None:
    """Run segments one after another in the main thread, until the parent sends "close".

    Signals and many libraries work only in the main thread.
    """
    inbox: SimpleQueue[tuple[Message, Context] | None] = SimpleQueue()
    contexts: dict[int, Context] = {}

    def handle(message: Message) -> None:
        if message["kind"] == "run":
            contexts[message["id"]] = context_of(message)
            inbox.put((message, contexts[message["id"]]))
        elif message["kind"] == "close":
            inbox.put(None)
        elif message["id"] in contexts:
            contexts[message["id"]].cancelled = True

    def receive(messages: list[Message]) -> None:
        for message in messages:
            handle(message)

    listen(channel, receive)
    while (item := inbox.get()) is not None:
        message, context = item
        try:
            reply = result_reply(handler(message["text"], context), max_output_characters)
        except BaseException as error:
            # SystemExit too: when a handler calls sys.exit(), the attempt fails, not the child.
            reply = error_reply(error)
        reply["id"] = message["id"]
        unhealthy = None
        if reply["kind"] == "failed" and not context.cancelled:
            try:
                unhealthy = unhealthy_reason(call(handler, "healthy", runner))
            except BaseException as error:
                unhealthy = f"healthy() raised {type(error).__name__}"
        del contexts[message["id"]]
        if unhealthy:
            exit_unhealthy(channel, unhealthy, reply)
        send(channel, reply)


async def serve_async(handler: Any, channel: socket.socket, max_output_characters: int) -> None:
    """Run segments concurrently, as many as the parent sends, until it sends "close"."""
    loop = asyncio.get_running_loop()
    closing = asyncio.Event()
    running: dict[int, tuple[asyncio.Task[None], Context]] = {}
    replies: list[Message] = []

    def flush() -> None:
        send(channel, *replies)
        replies.clear()

    def reply_with(reply: Message) -> None:
        # All results of one turn of the event loop go in one write.
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
        unhealthy = None
        if reply["kind"] == "failed" and not context.cancelled and hasattr(handler, "healthy"):
            try:
                healthy = handler.healthy()
                unhealthy = unhealthy_reason(
                    await healthy if inspect.isawaitable(healthy) else healthy
                )
            except BaseException as error:
                unhealthy = f"healthy() raised {type(error).__name__}"
        if unhealthy:
            exit_unhealthy(channel, unhealthy, *replies, reply)
        reply_with(reply)

    def remove(number: int, task: asyncio.Task[None]) -> None:
        del running[number]
        if task.cancelled():
            # It was cancelled before it started, so run() could not reply.
            reply_with({"kind": "failed", "id": number, "error": "cancelled"})

    def handle(message: Message) -> None:
        if message["kind"] == "run":
            number, context = message["id"], context_of(message)
            task = loop.create_task(run(message, context))
            running[number] = (task, context)
            task.add_done_callback(lambda task: remove(number, task))
        elif message["kind"] == "close":
            closing.set()
        elif message["id"] in running:
            task, context = running[message["id"]]
            context.cancelled = True
            task.cancel()

    def receive(messages: list[Message]) -> None:
        for message in messages:
            handle(message)

    listen(channel, lambda messages: loop.call_soon_threadsafe(receive, messages))
    await closing.wait()
    for task, _ in running.values():
        task.cancel()
    await asyncio.gather(*(task for task, _ in running.values()), return_exceptions=True)


def main(channel: socket.socket, max_output_characters: int, name: str) -> None:
    """Set up the handler, report the result, run what the parent sends, and close the handler."""
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


def run() -> None:
    """Run the handler that the arguments name, until the parent says that the child closes."""
    channel_number, parent_id, max_output_characters, name = sys.argv[1:]
    # The parent has checked this setting. Reading settings again would take longer than the rest of
    # the start. WARNING, because httpx logs whole URLs at INFO, which can contain texts.
    start_log("worker", os.environ.get("PARTWAY_LOG_FORMAT", "auto"), logging.WARNING)
    end_with_parent(int(parent_id))
    leave_signals_to_parent()
    # The handler's folder comes last, so that no file in it replaces a module of Partway, of Python
    # or of a library. A folder that was deleted holds no handler.
    with contextlib.suppress(FileNotFoundError):
        sys.path.append(os.getcwd())
    parent = socket.socket(fileno=int(channel_number))
    # A copy that nothing closes keeps the channel open until the process has ended: the parent
    # kills a child whose channel is closed, and exit hooks may need some time.
    os.dup(parent.fileno())
    # A program that a handler starts must not keep the socket open after this process has ended.
    parent.set_inheritable(False)
    main(parent, int(max_output_characters), name)
