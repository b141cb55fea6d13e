"""Two clients that say the same, one for programs that wait in threads and one for asyncio."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing
from typing import Self, Unpack

import httpx
from httpx_sse import EventSource

from partway.client import call
from partway.client.answer import Answer, End, Event, Options
from partway.client.call import RETRY_SECONDS, Call, RetryPolicy, Stream, connection, read_reply
from partway.client.problems import Problem


class Partway:
    """A client that waits; its connections are kept until it is closed.

    `url` and `key` are those of PARTWAY_URL and PARTWAY_KEY where they are not given. A call that
    fails for a passing reason is made again, for `retry_seconds` from its first failure on.
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self._http = httpx.Client(**connection(url, key))
        self._retry_seconds = retry_seconds
        self.url = str(self._http.base_url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; nothing comes back."""
        self._http.close()

    def submit(self, document: str | Sequence[str], **options: Unpack[Options]) -> Answer:
        """What is done of a text, or of a list of segments, by its deadline."""
        return self._ask(call.put(document, options))

    def get(self, id: str) -> Answer:
        """What is there now of a request."""
        return self._ask(call.get(id))

    def cancel(self, id: str) -> Answer:
        """What stands of a request that is cancelled, or was final already."""
        return self._ask(call.delete(id))

    def stream(
        self, document: str | Sequence[str], **options: Unpack[Options]
    ) -> Generator[Event, None, None]:
        """The events of a request from the accepted one to the end, each once.

        A server that knows no events gives the end only.
        """
        stream = Stream(call.put(document, options), RetryPolicy(self._retry_seconds))
        while True:
            try:
                with self._http.stream(**vars(stream.call)) as reply:
                    if not stream.is_in(reply):
                        reply.read()
                        yield End(read_reply(reply))
                        return
                    for message in EventSource(reply).iter_sse():
                        event = stream.read(message)
                        if event is not None:
                            yield event
                        if isinstance(event, End):
                            return
                    raise httpx.ReadError("the events ended before the end")
            except (httpx.TransportError, Problem) as error:
                time.sleep(stream.retry_policy.wait_seconds(error))

    def _ask(self, what: Call) -> Answer:
        retry_policy = RetryPolicy(self._retry_seconds)
        while True:
            try:
                return read_reply(self._http.request(**vars(what)))
            except (httpx.TransportError, Problem) as error:
                time.sleep(retry_policy.wait_seconds(error))


class AsyncPartway:
    """The same for asyncio; see Partway."""

    def __init__(
        self, url: str | None = None, key: str | None = None, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self._http = httpx.AsyncClient(**connection(url, key))
        self._retry_seconds = retry_seconds
        self.url = str(self._http.base_url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; nothing comes back."""
        await self._http.aclose()

    async def submit(self, document: str | Sequence[str], **options: Unpack[Options]) -> Answer:
        """What is done of a text, or of a list of segments, by its deadline."""
        return await self._ask(call.put(document, options))

    async def get(self, id: str) -> Answer:
        """What is there now of a request."""
        return await self._ask(call.get(id))

    async def cancel(self, id: str) -> Answer:
        """What stands of a request that is cancelled, or was final already."""
        return await self._ask(call.delete(id))

    async def stream(
        self, document: str | Sequence[str], **options: Unpack[Options]
    ) -> AsyncGenerator[Event, None]:
        """The events of a request from the accepted one to the end, each once.

        A server that knows no events gives the end only.
        """
        stream = Stream(call.put(document, options), RetryPolicy(self._retry_seconds))
        while True:
            try:
                async with self._http.stream(**vars(stream.call)) as reply:
                    if not stream.is_in(reply):
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
                    raise httpx.ReadError("the events ended before the end")
            except (httpx.TransportError, Problem) as error:
                await asyncio.sleep(stream.retry_policy.wait_seconds(error))

    async def _ask(self, what: Call) -> Answer:
        retry_policy = RetryPolicy(self._retry_seconds)
        while True:
            try:
                return read_reply(await self._http.request(**vars(what)))
            except (httpx.TransportError, Problem) as error:
                await asyncio.sleep(retry_policy.wait_seconds(error))
