"""Worker and batch have no door, so graphs and probes ask them on a port of their own."""

import asyncio
import logging
import socket
import socketserver
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from prometheus_client import CollectorRegistry
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from partway.store.metrics import TEXT, render_metrics
from partway.store.start import StartupError

log = logging.getLogger("partway.store")

# A loop that has not come round within this does not renew leases in time either.
LIVE_SECONDS = 1.0

# Who opens a connection and is silent must not keep a thread.
SILENT_SECONDS = 10.0


class MetricsSettings(BaseSettings):
    """Where worker and batch serve their metrics."""

    model_config = SettingsConfigDict(env_prefix="PARTWAY_METRICS_")

    # Several workers share a machine, and only one of them would get a port that is set by default.
    port: int = Field(
        0,
        ge=0,
        le=65535,
        description="The port on which a worker or a batch serves /metrics and /livez; 0 for none.",
    )
    host: str = Field("127.0.0.1", description="The address of that port.")


class MetricsServer(socketserver.ThreadingTCPServer):
    """Answers in threads, and knows the loop of the program that it answers for.

    Not the server of the standard library for HTTP: that asks a name server for its own name first.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(
        self, settings: MetricsSettings, own: CollectorRegistry, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.own = own
        self.loop = loop
        self.address_family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        super().__init__((settings.host, settings.port), MetricsHandler)

    def is_live(self) -> bool:
        """Whether the program's loop comes round within LIVE_SECONDS."""
        came_round = threading.Event()
        try:
            self.loop.call_soon_threadsafe(came_round.set)
        except RuntimeError:  # It has ended.
            return False
        return came_round.wait(LIVE_SECONDS)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what went wrong; who has left, or was silent, is no news."""
        if not isinstance(sys.exception(), OSError):
            log.exception("a call for metrics failed")


class MetricsHandler(BaseHTTPRequestHandler):
    """One call; a class, since the standard library asks for one."""

    server: MetricsServer
    timeout = SILENT_SECONDS
    server_version = "partway"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer /metrics and /livez, and 404 for all else."""
        match self.path.partition("?")[0]:
            case "/metrics":
                self.reply(200, render_metrics(self.server.own), TEXT)
            case "/livez" if self.server.is_live():
                self.reply(200, b"ok\n")
            case "/livez":
                self.reply(503, b"the loop does not come round\n")
            case _:
                self.reply(404, b"there are /metrics and /livez\n")

    def reply(
        self, status: int, body: bytes, media_type: str = "text/plain; charset=utf-8"
    ) -> None:
        """Send one answer; nothing comes back."""
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: who asks every few seconds is no decision of ours."""


@asynccontextmanager
async def serve_metrics(settings: MetricsSettings, own: CollectorRegistry) -> AsyncIterator[None]:
    """Serve for as long as the block lasts what this program counts and whether its loop is live.

    Raises Refusal when its address cannot be used.
    """
    if settings.port == 0:
        yield
        return
    try:
        server = MetricsServer(settings, own, asyncio.get_running_loop())
    except OSError as error:
        place = f"{settings.host}:{settings.port}"
        raise StartupError(f"cannot serve metrics on {place}: {error.strerror}") from error
    # A daemon, so that a program that ends by a fault of its own ends.
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
