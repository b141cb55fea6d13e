"""`python -m app` opens the database, serves the door, and ends its open calls in order."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Iterator

import uvicorn

from app.door import Door, build
from app.settings import AppSettings
from store.loop import start_log, stop_on_signals
from store.settings import DatabaseSettings, read_settings
from store.start import Refusal, opened

log = logging.getLogger("partway.app")

# Time for the last answers to be read and sent after the drain.
LAST_ANSWERS_SECONDS = 5


class Server(uvicorn.Server):
    """uvicorn, told to stop by us: its own handler could not tell the open calls first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(database: DatabaseSettings, settings: AppSettings) -> int:
    """The exit status: 0 after a stop, 1 when the address cannot be used."""
    stop = stop_on_signals()
    async with opened(database) as db:
        door = Door(db, settings)
        server = Server(
            uvicorn.Config(
                build(door),
                host=settings.host,
                port=settings.port,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=settings.keep_alive_seconds,
                timeout_graceful_shutdown=int(settings.drain_seconds) + LAST_ANSWERS_SECONDS,
            )
        )
        serving = asyncio.create_task(server.serve())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        door.drain()
        server.should_exit = True
        stopping.cancel()
        await serving
        return 0 if stop.is_set() else 1


def main() -> int:
    """The exit status of the program: 0, 1 (refused), or 2 (a setting is wrong)."""
    start_log()
    settings = read_settings(AppSettings, "app", sys.argv[1:])
    database = read_settings(DatabaseSettings, "app")
    try:
        return asyncio.run(serve(database, settings))
    except Refusal as refusal:
        print(f"app: {refusal}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
