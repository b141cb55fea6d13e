"""A caller can read its answer as server-sent events, and resume a stream that broke off."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import cast

from fastapi import Request as Call
from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask
from starlette.types import Send

from partway.app.api.prefer import read_quality
from partway.app.api.replies import content_location
from partway.app.metrics import OpenCall
from partway.app.requests.answer import Request
from partway.app.requests.events import EVENTS, StreamPosition, stream, unknown_position
from partway.app.requests.service import Begun, RequestService

# So much is held in memory for a slow reader, besides its socket buffer, never a whole answer.
PIECE_BYTES = 65_536

# A proxy must neither store the events nor send them to another caller.
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """A response of events in pieces. Their generator is closed when the reader disconnects."""

    async def stream_response(self, send: Send) -> None:
        """Send the pieces, then close the generator."""
        async with aclosing(cast(AsyncGenerator[bytes, None], self.body_iterator)):
            await super().stream_response(send)


def wants_events(call: Call) -> bool:
    """Whether the Accept header prefers events to one answer."""
    accept = ",".join(call.headers.getlist("accept"))
    return read_quality(accept, EVENTS) > read_quality(accept, "application/json")


@contextlib.asynccontextmanager
async def disconnecting(call: Call) -> AsyncIterator[Callable[[], bool]]:
    """A function that says whether the caller has disconnected, for as long as the block lasts.

    Only for a call whose body was read.
    """
    # After the body only the disconnect can be received. One task that waits for it costs nothing.
    # To ask at each poll took a quarter of a node's time with many waiting calls.
    message = asyncio.ensure_future(call.receive())
    try:
        yield lambda: message.done() and message.result()["type"] == "http.disconnect"
    finally:
        message.cancel()


def events_reply(
    service: RequestService,
    tenant: str,
    request: Request,
    position: StreamPosition | None,
    begun: Begun | None = None,
    open_call: OpenCall | None = None,
) -> Response:
    """The events that a reader at this position lacks; 204 when it has read the `end` already.

    `begun` says how the call began its request, and `open_call` counts the call. Both are None for
    a call that only reads.
    """
    known = position.indexes(request.segments) if position is not None else None
    if position is not None and position.is_end:
        if request.status == "active":
            raise unknown_position()
        if open_call is not None:
            open_call.outcome = request.status
        # A browser reconnects when a stream has ended; a 204 stops it.
        return Response(status_code=204)
    if open_call is not None and request.status == "active":
        open_call.due_at = request.ends_at
    has_ended = False

    async def pieces() -> AsyncGenerator[bytes, None]:
        nonlocal has_ended
        with service.subscriptions.watching(tenant, request) as subscription:
            async for event in stream(subscription, known, lambda: service.stops_at):
                for first in range(0, len(event), PIECE_BYTES):
                    yield event[first : first + PIECE_BYTES]
        has_ended = True
        if open_call is not None:
            # A stream that ends without an answer leaves the request running, to be resumed.
            answer = subscription.answer
            open_call.end(answer.status if answer is not None else "running")

    async def after_disconnect() -> None:
        if begun is None or has_ended:
            return
        if open_call is not None:
            open_call.end("client_gone")
        if begun.ends_with_its_caller:
            await service.abandon(request)
        else:
            service.detached.track(request)

    return EventStream(
        pieces(),
        media_type=EVENTS,
        headers=STREAM_HEADERS | content_location(request.public_id),
        background=BackgroundTask(after_disconnect),
    )
