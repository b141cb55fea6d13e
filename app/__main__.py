"""`python -m app` opens the database, serves the door, and ends its open calls in order."""

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Iterator

import uvicorn

from app.door import Door, build
from app.settings import AppSettings
from store.loop import start_log, stop_on_signals
from store.settings import DatabaseSettings, read_settings
from store.start import Refusal, opened

log = logging.getLogger("partway.app")

# Calls that may knock at once while the node is busy with others; uvicorn's own figure.
BACKLOG = 2048

# Time for the last answers to be read and sent after the drain.
LAST_ANSWERS_SECONDS = 5


class Server(uvicorn.Server):
    """uvicorn, told to stop by us: its own handler could not tell the open calls first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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
        raise Refusal(f"cannot listen on {place}: {error.strerror}") from error


async def serve(database: DatabaseSettings, settings: AppSettings) -> None:
    """Serve until told to stop, then end in order; nothing comes back."""
    stop = stop_on_signals()
    async with opened(database) as db:
        door = Door(db, settings)
        server = Server(
            uvicorn.Config(
                build(door),
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
        door.drain()
        server.should_exit = True
        stopping.cancel()
        await serving


def main() -> int:
    """The exit status of the program: 0, 1 (refused), or 2 (a setting is wrong)."""
    start_log()
    settings = read_settings(AppSettings, "app", sys.argv[1:])
    database = read_settings(DatabaseSettings, "app")
    try:
        asyncio.run(serve(database, settings))
    except Refusal as refusal:
        print(f"app: {refusal}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
