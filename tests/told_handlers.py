"""Handlers that do what a text says, so that one segment can differ from its neighbours."""

import asyncio
import os
import signal
import threading
import time

from partway.worker.handler import Context, Reject, Retry


def told(text: str, ctx: Context) -> str:
    """The text in capitals, after doing what its first word says."""
    match text.split()[0]:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fail":
            raise ValueError("told to fail")
        case "reject":
            raise Reject("told", "told to reject")
        case "retry":
            if ctx.attempt == 1:
                raise Retry(after=0.1, why="told to")
        case "burn":
            until = time.monotonic() + float(text.split()[1])
            while time.monotonic() < until:
                pass
        case "swell":
            return text.upper() * int(text.split()[1])
    return text.upper()


async def told_later(text: str, ctx: Context) -> str:
    """The text in capitals, after the seconds that it names; without end for "for ever"."""
    if text.startswith("for ever"):
        await asyncio.Event().wait()
    if text.startswith("after"):
        await asyncio.sleep(float(text.split()[1]))
    return text.upper()


async def told_after(text: str, ctx: Context) -> str:
    """What `told` makes of the rest of the text, after the seconds that it begins with."""
    seconds, rest = text.split(" ", 1)
    await asyncio.sleep(float(seconds))
    return told(rest, ctx)


def told_slowly(text: str, ctx: Context) -> str:
    """The same in three times as many seconds, and deaf meanwhile."""
    seconds, rest = text.split(" ", 1)
    # Not time.sleep(), which fails where a library sets the clock wrong.
    threading.Event().wait(3 * float(seconds))
    return told(rest, ctx)
