"""Runs one node: opens the database, serves HTTP, and ends open calls in order."""

import asyncio
import contextlib
import gc
import json
import logging
import socket
from collections.abc import Iterator

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from partway.app.api.access import has_any_key
from partway.app.application import build
from partway.app.metrics import PROBLEMS
from partway.app.problems import NO_TYPE, PROBLEM_MEDIA_TYPE, plain_document
from partway.app.requests.service import RequestService
from partway.app.settings import AppSettings
from partway.store.loop import stop_on_signals
from partway.store.settings import DatabaseSettings
from partway.store.start import StartupError, open_database

log = logging.getLogger("partway.app")

# Calls that may knock at once while the node is busy with others; uvicorn's own figure.
BACKLOG = 2048

# A full collection stops every call while it looks through all that waiting calls hold: 256 ms with
# 2,000 of them. What is young is collected as ever, and what is there at the start is frozen.
GC_THRESHOLD = 10_000, 10, 1_000

# After the drain: a silent database is given up, and the last answers are read and sent. The server
# would break a call off with a stack for a word.
LAST_ANSWERS_SECONDS = 15


class Server(uvicorn.Server):
    """uvicorn, told to stop by us: its own handler could not tell the open calls first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Protocol(H11Protocol):
    """uvicorn's HTTP, with a problem document for what cannot be read: its own is plain text."""

    def send_400_response(self, msg: str) -> None:
        """Say so and end the connection; just end it where an answer has begun already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            PROBLEMS[NO_TYPE].inc()
            said = json.dumps(plain_document(400) | {"detail": msg}).encode()
            headers = [("Content-Type", PROBLEM_MEDIA_TYPE), ("Content-Length", str(len(said)))]
            for event in (
                h11.Response(
                    status_code=400,
                    headers=[*headers, ("Connection", "close")],
                    reason="Bad Request",
                ),
                h11.Data(data=said),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def listening(settings: AppSettings) -> socket.socket:
    """The socket of this node; Refusal when its address cannot be used."""
    # uvicorn would end the process from inside a task, with a stack for a word.
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named as TCP, or asyncio leaves the delay of small packets on: measured, 40 ms an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        place = f"{settings.host}:{settings.port}"
        raise StartupError(f"cannot listen on {place}: {error.strerror}") from error


async def serve(database: DatabaseSettings, settings: AppSettings) -> None:
    """Serve until told to stop, then end in order; nothing comes back."""
    stop = stop_on_signals()
    async with open_database(database) as db:
        if not settings.keyless and not await has_any_key(db):
            log.warning("there is no key yet: partway keys create --tenant NAME makes one")
        service = RequestService(db, settings)
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLD)
        server = Server(
            uvicorn.Config(
                build(service),
                http=Protocol,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=settings.keep_alive_seconds,
                timeout_graceful_shutdown=int(settings.drain_seconds) + LAST_ANSWERS_SECONDS,
            )
        )
        serving = asyncio.create_task(server.serve([listening(settings)]))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        service.drain()
        server.should_exit = True
        stopping.cancel()
        await serving
        await service.end()
