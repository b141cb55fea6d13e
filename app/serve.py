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

# Connections that the system accepts while the node is busy; the default of uvicorn.
BACKLOG = 2048

# A full garbage collection visits all objects of waiting calls and stops every call meanwhile: for
# 256 ms with 2,000 calls. So it runs rarely, and the objects of the start are frozen. Collections
# of young objects run as usual.
GC_THRESHOLD = 10_000, 10, 1_000

# The time after the drain in which a silent database is given up and the last answers are sent.
# After it uvicorn would break a call off and log a stack.
LAST_ANSWERS_SECONDS = 15


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: this module stops it, after the open calls know."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Protocol(H11Protocol):
    """uvicorn's HTTP, but unreadable calls get a problem document instead of plain text."""

    def send_400_response(self, msg: str) -> None:
        """Send the problem and close the connection; only close it if an answer has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            PROBLEMS[NO_TYPE].inc()
            body = json.dumps(plain_document(400) | {"detail": msg}).encode()
            headers = [("Content-Type", PROBLEM_MEDIA_TYPE), ("Content-Length", str(len(body)))]
            for event in (
                h11.Response(
                    status_code=400,
                    headers=[*headers, ("Connection", "close")],
                    reason="Bad Request",
                ),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def listening(settings: AppSettings) -> socket.socket:
    """The socket that this node listens on. Raises StartupError when its address is unusable."""
    # If uvicorn opened the socket, a failure would end the process in a task and log a stack.
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio turns TCP_NODELAY on only for a socket that names TCP. Without it an answer took
    # 40 ms longer, as measured.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        address = f"{settings.host}:{settings.port}"
        raise StartupError(f"cannot listen on {address}: {error.strerror}") from error


async def serve(database: DatabaseSettings, settings: AppSettings) -> None:
    """Serve until SIGTERM or SIGINT, then answer the open calls and stop."""
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
