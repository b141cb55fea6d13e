"""Serves metrics and health of worker and batch, which have no HTTP API, on a port of their own."""

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

# An event loop that does not respond within this time does not renew leases in time either.
LIVE_SECONDS = 1.0

# A client that opens a connection and sends nothing must not keep a thread.
SILENT_SECONDS = 10.0


class MetricsSettings(BaseSettings):
    """Where worker and batch serve their metrics."""

    model_config = SettingsConfigDict(env_prefix="PARTWAY_METRICS_")

    # Off by default: several workers share a machine, and only one of them could use the port.
    port: int = Field(
        0,
        ge=0,
        le=65535,
        description="The port on which a worker or a batch serves /metrics and /livez; 0 for none.",
    )
    host: str = Field("127.0.0.1", description="The address of that port.")


class MetricsServer(socketserver.ThreadingTCPServer):
    """Answers in threads, and knows the event loop of its program.

    The standard library's HTTPServer is not used: at its start it makes a DNS lookup.
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
        """Whether the event loop of the program responds within LIVE_SECONDS."""
        responded = threading.Event()
        try:
            self.loop.call_soon_threadsafe(responded.set)
        except RuntimeError:  # The loop is closed.
            return False
        return responded.wait(LIVE_SECONDS)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error, unless the client disconnected or timed out."""
        if not isinstance(sys.exception(), OSError):
            log.exception("a metrics request failed")


class MetricsHandler(BaseHTTPRequestHandler):
    """Handles one HTTP request."""

    server: MetricsServer
    timeout = SILENT_SECONDS
    server_version = "partway"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer /metrics and /livez; every other path is 404."""
        match self.path.partition("?")[0]:
            case "/metrics":
                self.reply(200, render_metrics(self.server.own), TEXT)
            case "/livez" if self.server.is_live():
                self.reply(200, b"ok\n")
            case "/livez":
                self.reply(503, b"the event loop does not respond\n")
            case _:
                self.reply(404, b"not found; the paths are /metrics and /livez\n")

    def reply(
        self, status: int, body: bytes, media_type: str = "text/plain; charset=utf-8"
    ) -> None:
        """Send one response."""
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape every few seconds is not worth a line."""


@asynccontextmanager
async def serve_metrics(settings: MetricsSettings, own: CollectorRegistry) -> AsyncIterator[None]:
    """Serve the metrics and the health of this program for the length of the block.

    Serves nothing when the port is 0. Raises StartupError when the address cannot be used.
    """
    if settings.port == 0:
        yield
        return
    try:
        server = MetricsServer(settings, own, asyncio.get_running_loop())
    except OSError as error:
        place = f"{settings.host}:{settings.port}"
        raise StartupError(f"cannot serve metrics on {place}: {error.strerror}") from error
    # A daemon thread, so that an unhandled exception can end the program.
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
