"""Handlers that misbehave in every way that the tests of compute must see survived."""

import asyncio
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from partway.worker.handler import Context, Reject, Retry


class Unprintable(Exception):
    """An exception whose own message fails."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


def act(text: str, ctx: Context) -> Any:
    """Do what `params["do"]` says, at once."""
    match ctx.params.get("do", "echo"):
        case "echo":
            return text
        case "context":
            return f"{ctx.index} {ctx.attempt} {ctx.params['mark']} {ctx.remaining():.3f}"
        case "none":
            pass
        case "int":
            return 7
        case "surrogate":
            return "a\ud800b"
        case "nul":
            return "\ufeffa\0b"
        case "empty":
            return ""
        case "repeat":
            return text * ctx.params["times"]
        case "print":
            print('{"kind": "done", "id": 1, "result": "printed"}')
            return text
        case "retry":
            raise Retry(2.5, "later")
        case "retry badly":
            raise Retry(float("nan"))
        case "reject":
            raise Reject("bad_words", "no such\nwords")
        case "raise":
            raise KeyError("x" * 1000 + "\n\ud800")
        case "unprintable":
            raise Unprintable
        case "sys.exit":
            sys.exit(4)
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "spin":
            while True:
                pass
        case "pid":
            return str(os.getpid())
        case other:
            raise ValueError(other)
    return None


def odd(text: str, ctx: Context) -> Any:
    """The sync handler: whatever it does, it does in the main thread."""
    if "begun" in ctx.params:
        Path(ctx.params["begun"]).touch()
    match ctx.params.get("do"):
        case "sleep":
            time.sleep(ctx.params["seconds"])
            return text
        case "look":
            until = time.monotonic() + 30
            while not ctx.cancelled and time.monotonic() < until:
                time.sleep(0.005)
            return "let go"
        case "fork and die":
            if os.fork() == 0:
                # Holds the socket to the parent open, longer than the test takes.
                time.sleep(5)
                os._exit(0)
            os._exit(3)
        case "hold the GIL":
            # Backtracks for years inside one call into C.
            return str(re.match(r"(a+)+$", "a" * 60 + "b"))
        case _:
            return act(text, ctx)


async def odd_async(text: str, ctx: Context) -> Any:
    """The async handler, which shares its process with its neighbours."""
    match ctx.params.get("do"):
        case "sleep":
            await asyncio.sleep(ctx.params["seconds"])
            return text
        case "block":
            time.sleep(ctx.params["seconds"])
            return text
        case "swallow":
            until = time.monotonic() + 30
            while time.monotonic() < until:
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    continue
        case "kill later":
            await asyncio.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            return act(text, ctx)
    return None


class SetUp:
    """Fails to set up while the file ODD_BROKEN exists; its close writes the file ODD_CLOSED."""

    async def setup(self) -> None:
        """Fail while told to."""
        if Path(os.environ["ODD_BROKEN"]).exists():
            raise ConnectionError("no server")
        self.ready = True

    def __call__(self, text: str, ctx: Context) -> Any:
        """Act, if set up."""
        assert self.ready
        return act(text, ctx)

    async def close(self) -> None:
        """Leave a trace."""
        Path(os.environ["ODD_CLOSED"]).write_text("closed")


class Unwell:
    """Is unhealthy after its first failure."""

    def healthy(self) -> bool:
        """Never."""
        return False

    async def __call__(self, text: str, ctx: Context) -> Any:
        """Act, or wait like odd_async."""
        return await odd_async(text, ctx)


class UnwellSync(Unwell):
    """The same in a process for each seat, and its health cannot even be asked for."""

    def healthy(self) -> bool:
        """Never."""
        raise OSError("gone")

    def __call__(self, text: str, ctx: Context) -> Any:
        """Act."""
        return act(text, ctx)


class NeedsAnArgument:
    """Cannot be made without an argument."""

    def __init__(self, needed: str) -> None: ...

    def __call__(self, text: str, ctx: Context) -> str:
        """The text."""
        return text


not_callable = 5
