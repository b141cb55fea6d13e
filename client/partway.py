"""Two clients with the same methods, one for programs with threads and one for asyncio."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing
from typing import Self, Unpack

import httpx
from httpx_sse import EventSource

from partway.client import call
from partway.client.answer import Answer, End, Event, Options
from partway.client.call import RETRY_SECONDS, Call, RetryPolicy, Stream, http_options, read_reply
from partway.client.problems import NotPartway, Problem

# For example text that is declared as gzip: something between the node and the client changed it.
UNDECODABLE = "{} answered with content that cannot be decoded"


class Partway:
    """A blocking client, which keeps its connections until it is closed.

    The defaults of `url` and `key` are PARTWAY_URL and PARTWAY_KEY. A call that fails for a
    temporary reason is retried for `retry_seconds` from its first failure on.
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self._http = httpx.Client(**http_options(url, key))
        self._retry_seconds = retry_seconds
        self.url = str(self._http.base_url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, document: str | Sequence[str], **options: Unpack[Options]) -> Answer:
        """Send a text, or a list of segments, and return what is done by its deadline."""
        return self._send(call.put(document, options))

    def get(self, id: str) -> Answer:
        """Return the current state of a request."""
        return self._send(call.get(id))

    def cancel(self, id: str) -> Answer:
        """Cancel a request, unless it is final, and return what is done."""
        return self._send(call.delete(id))

    def stream(
        self, document: str | Sequence[str], **options: Unpack[Options]
    ) -> Generator[Event, None, None]:
        """Send a request and yield its events, from Accepted to End, each once.

        When the server does not stream, End is the only event.
        """
        stream = Stream(call.put(document, options), RetryPolicy(self._retry_seconds))
        while True:
            try:
                with self._http.stream(**vars(stream.call)) as reply:
                    if not stream.is_event_stream(reply):
                        reply.read()
                        yield End(read_reply(reply))
                        return
                    for message in EventSource(reply).iter_sse():
                        event = stream.read(message)
                        if event is not None:
                            yield event
                        if isinstance(event, End):
                            return
                    raise httpx.ReadError("the stream ended before the End event")
            except httpx.DecodingError as error:
                raise NotPartway(UNDECODABLE.format(self.url)) from error
            except (httpx.TransportError, Problem) as error:
                time.sleep(stream.retry_policy.wait_seconds(error))

    def _send(self, request: Call) -> Answer:
        retry_policy = RetryPolicy(self._retry_seconds)
        while True:
            try:
                return read_reply(self._http.request(**vars(request)))
            except httpx.DecodingError as error:
                raise NotPartway(UNDECODABLE.format(self.url)) from error
            except (httpx.TransportError, Problem) as error:
                time.sleep(retry_policy.wait_seconds(error))


class AsyncPartway:
    """The same client for asyncio; see Partway."""

    def __init__(
        self, url: str | None = None, key: str | None = None, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self._http = httpx.AsyncClient(**http_options(url, key))
        self._retry_seconds = retry_seconds
        self.url = str(self._http.base_url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def submit(self, document: str | Sequence[str], **options: Unpack[Options]) -> Answer:
        """Send a text, or a list of segments, and return what is done by its deadline."""
        return await self._send(call.put(document, options))

    async def get(self, id: str) -> Answer:
        """Return the current state of a request."""
        return await self._send(call.get(id))

    async def cancel(self, id: str) -> Answer:
        """Cancel a request, unless it is final, and return what is done."""
        return await self._send(call.delete(id))

    async def stream(
        self, document: str | Sequence[str], **options: Unpack[Options]
    ) -> AsyncGenerator[Event, None]:
        """Send a request and yield its events, from Accepted to End, each once.

        When the server does not stream, End is the only event.
        """
        stream = Stream(call.put(document, options), RetryPolicy(self._retry_seconds))
        while True:
            try:
                async with self._http.stream(**vars(stream.call)) as reply:
                    if not stream.is_event_stream(reply):
                        await reply.aread()
                        yield End(read_reply(reply))
                        return
                    async with aclosing(EventSource(reply).aiter_sse()) as messages:
                        async for message in messages:
                            event = stream.read(message)
                            if event is not None:
                                yield event
                            if isinstance(event, End):
                                return
                    raise httpx.ReadError("the stream ended before the End event")
            except httpx.DecodingError as error:
                raise NotPartway(UNDECODABLE.format(self.url)) from error
            except (httpx.TransportError, Problem) as error:
                await asyncio.sleep(stream.retry_policy.wait_seconds(error))

    async def _send(self, request: Call) -> Answer:
        retry_policy = RetryPolicy(self._retry_seconds)
        while True:
            try:
                return read_reply(await self._http.request(**vars(request)))
            except httpx.DecodingError as error:
                raise NotPartway(UNDECODABLE.format(self.url)) from error
            except (httpx.TransportError, Problem) as error:
                await asyncio.sleep(retry_policy.wait_seconds(error))
