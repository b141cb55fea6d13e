"""What a client meets on the way no real server does on demand, so a script says it."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

SEGMENTS: list[dict[str, object]] = [
    {"index": 0, "status": "done", "result": "Uno.\u2028", "error": None, "attempts": 1},
    {"index": 1, "status": "timed_out", "result": None, "error": None, "attempts": None},
]

ANSWER: dict[str, object] = {
    "id": "mine",
    "status": "partial",
    "created_at": "2026-11-30T19:47:03.746925Z",
    "deadline_at": "2026-11-30T19:47:06.246925Z",
    "finished_at": "2026-11-30T19:47:06.250222Z",
    "counts": {"total": 2, "done": 1, "failed": 0, "timed_out": 1, "cancelled": 0},
    "usage": {
        "segments": 1,
        "input_characters": 4,
        "output_characters": 5,
        "billed": True,
        "final": True,
    },
    "document": None,
    "segments": SEGMENTS,
}

# What is sent over one connection before it is closed; at an Event, first the event is waited for.
Reply = bytes | Sequence[bytes | asyncio.Event]


def reply(status: int, kind: str, body: str, *headers: str) -> bytes:
    """A whole HTTP reply, as it goes over the wire."""
    raw = body.encode()
    lines = (f"HTTP/1.1 {status} .", f"Content-Type: {kind}", f"Content-Length: {len(raw)}")
    return "\r\n".join((*lines, *headers)).encode() + b"\r\n\r\n" + raw


def answer(**members: object) -> bytes:
    """A reply that is an answer."""
    return reply(200, "application/json", json.dumps(ANSWER | members))


def problem(status: int, *headers: str, **members: object) -> bytes:
    """A reply that is a problem."""
    said = {"title": "No", "status": status, "detail": "It is not to be.", **members}
    return reply(status, "application/problem+json", json.dumps(said), *headers)


EVENTS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def events(*messages: str) -> bytes:
    """The beginning of a reply of events, which is broken off when the connection is closed."""
    return EVENTS + more(*messages)


def more(*messages: str) -> bytes:
    """Further events, in pieces of a few bytes, so that lines and characters are torn."""
    text = "".join(messages).encode()
    parts = [text[i : i + 7] for i in range(0, len(text), 7)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def message(name: str, said: object, id: str | None = None) -> str:
    """An event, as it goes over the wire."""
    head = f"event: {name}\n" if id is None else f"id: {id}\nevent: {name}\n"
    return f"{head}data: {json.dumps(said, ensure_ascii=False)}\n\n"


OK = answer()
CUT = b""
ACCEPTED = message(
    "accepted", {"id": "mine", "deadline_at": ANSWER["deadline_at"], "total": 2}, "0:"
)
WORKING = message("working", {"indexes": [0, 1]})
DONE = message("segment", SEGMENTS[0], "1:0")
END = message("end", ANSWER, "1:end")
PING = ": ping\n\n"


class Scripted:
    """A server that gives these replies, one a connection, and keeps what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self._open: set[asyncio.Task[None]] = set()
        self.url = ""
        self.listening: asyncio.Server
        self.asked: list[tuple[str, dict[str, str], Any]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: a request is read, and the next reply is given."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        # A caller may leave in the middle, and a test ends what it lets wait.
        with suppress(OSError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {
                name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:-2])
            }
            raw = await reader.readexactly(int(headers.get("content-length", 0)))
            said = self._replies.pop(0)
            self.asked.append(
                (head[0].removesuffix(" HTTP/1.1"), headers, json.loads(raw) if raw else None)
            )
            for part in [said] if isinstance(said, bytes) else said:
                if isinstance(part, bytes):
                    writer.write(part)
                    await writer.drain()
                else:
                    await part.wait()
        writer.close()
        self._open.discard(task)

    @property
    def lines(self) -> list[str]:
        """The method and the path of each request so far."""
        return [line for line, _, _ in self.asked]

    async def was_asked(self, line: str) -> bool:
        """Whether this method and path were asked for."""
        return line in self.lines

    def stop(self) -> None:
        """Take no more connections; those that are open go on."""
        self.listening.close()

    def end(self) -> None:
        """End the replies that still wait."""
        for task in self._open:
            task.cancel()


@asynccontextmanager
async def scripted(*replies: Reply) -> AsyncIterator[Scripted]:
    """Such a server, for as long as the block lasts; in it every reply must be asked for."""
    server = Scripted(*replies)
    server.listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{server.listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        server.stop()
        server.end()
    assert len(server.asked) == len(replies)
