"""Between a program and its database lies a network, which can cut, stall and come back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from partway.store.settings import read_address

# The packets of PyMySQL's begin(), commit() and rollback(): length, number, COM_QUERY, text.
BEGIN = b"\x06\x00\x00\x00\x03BEGIN"
COMMIT = b"\x07\x00\x00\x00\x03COMMIT"
ROLLBACK = b"\x09\x00\x00\x00\x03ROLLBACK"

# A statement that the server commits by itself, such as the close.
UPDATE = b"UPDATE "
TEXT_AT = 5

Cut = Literal["before the commit", "after the commit"]


class Link:
    """One connection through a proxy, and whether either side still hears of the other."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        # Its next answer ends it instead of reaching the client.
        self.is_silent = False
        # Neither side is told anything more, not even that the other has gone.
        self.is_half_open = False


class Proxy:
    """One TCP port that stands for the server's, and what it is to do to who comes through it."""

    def __init__(self, host: str, port: int) -> None:
        self._server_at = host, port
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._is_cut = False
        self._delay_seconds = 0.0
        self._cuts: list[Cut] = []
        self._links: set[Link] = set()
        self.port = 0
        self.links_made = 0

    def url(self, url: str) -> str:
        """The URL of a database on the server, through this proxy."""
        place = read_address(url)
        return f"mysql://{place.user}:{place.password}@127.0.0.1:{self.port}/{place.database}"

    def stall(self) -> None:
        """Pass nothing on from now, and take new connections all the same."""
        self._flowing.clear()

    def flow(self) -> None:
        """Pass on what was stalled, and what comes, as fast as it comes."""
        self._flowing.set()
        self._is_cut = False
        self._delay_seconds = 0.0

    def slow(self, delay_seconds: float) -> None:
        """Pass everything on so much later, until told to flow."""
        self._delay_seconds = delay_seconds

    def cut(self) -> None:
        """End every connection, and each that comes, until told to flow."""
        self._is_cut = True
        for link in self._links:
            link.task.cancel()

    def half_open(self) -> None:
        """Let those who are connected now never hear of each other again; new ones do."""
        for link in self._links:
            link.is_half_open = True

    def cut_at_commit(self, *cuts: Cut) -> None:
        """Cut the next connections that commit something, each as told, once."""
        self._cuts += cuts

    @property
    def cuts_left(self) -> int:
        """How many of the cuts that were asked for have not happened yet."""
        return len(self._cuts)

    async def carry(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """One connection, from its beginning until either side ends it or it is cut."""
        task = asyncio.current_task()
        assert task is not None
        link = Link(task)
        self._links.add(link)
        self.links_made += 1
        try:
            await self._flowing.wait()
            if not self._is_cut:
                await self._carry(link, client, back)
        except (OSError, asyncio.CancelledError):
            # Cut, or the server is not there: the client hears of it by its connection's end. Not
            # raised, since asyncio asks a cancelled link what it failed with, and fails itself.
            return
        finally:
            back.close()
            self._links.discard(link)

    async def _carry(
        self, link: Link, client: asyncio.StreamReader, back: asyncio.StreamWriter
    ) -> None:
        answers, server = await asyncio.open_connection(*self._server_at)
        ways = [
            asyncio.create_task(self._ask(link, client, server)),
            asyncio.create_task(self._answer(link, answers, back)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            server.close()
            # A side that was reset says so here.
            await asyncio.gather(*ways, return_exceptions=True)

    async def _ask(
        self, link: Link, client: asyncio.StreamReader, server: asyncio.StreamWriter
    ) -> None:
        begun = False
        while words := await client.read(65_536):
            await self._hold()
            if link.is_half_open:
                continue
            # Each new connection of the driver commits once by itself; that is no transaction.
            commits = words == COMMIT if begun else words[TEXT_AT:].lstrip().startswith(UPDATE)
            begun = words == BEGIN or (begun and words not in (COMMIT, ROLLBACK))
            if commits and self._cuts:
                if self._cuts.pop(0) == "before the commit":
                    return
                link.is_silent = True
            server.write(words)

    async def _answer(
        self, link: Link, answers: asyncio.StreamReader, back: asyncio.StreamWriter
    ) -> None:
        # A server that resets has ended too.
        with contextlib.suppress(OSError):
            while words := await answers.read(65_536):
                await self._hold()
                # The server has answered, so it is done; the client is not told.
                if link.is_silent:
                    return
                if not link.is_half_open:
                    back.write(words)
        await self._hold()
        if link.is_half_open:
            await asyncio.Event().wait()

    async def _hold(self) -> None:
        """Come back when what is on its way here may go on."""
        if self._delay_seconds:
            await asyncio.sleep(self._delay_seconds)
        await self._flowing.wait()

    async def end(self) -> None:
        """End every connection."""
        tasks = [link.task for link in self._links]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """A proxy before the server of this URL, for as long as the block lasts."""
    place = read_address(url)
    proxy = Proxy(place.host, place.port)
    listening = await asyncio.start_server(proxy.carry, "127.0.0.1", 0)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
        await proxy.end()
