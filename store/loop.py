"""Worker and batch repeat a step until told to stop, and rest when there was nothing to do."""

import asyncio
import contextlib
import random
import signal
from collections.abc import Awaitable, Callable

from partway.store.database import Unavailable

# The first rest is short, since work often comes in bursts; each further one doubles.
FIRST_WAIT_SECONDS = 0.02


def stop_on_signals() -> asyncio.Event:
    """The event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told, number)
    return stop


async def wait_for_any(seconds: float, *events: asyncio.Event) -> None:
    """Come back when one of the events is set, and after `seconds` in any case."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def until_idle(step: Callable[[], Awaitable[bool]], stop: asyncio.Event) -> None:
    """Run step until it finds nothing to do or stop is set; raises Unavailable as it does."""
    while not stop.is_set() and await step():
        pass


async def repeat(
    step: Callable[[], Awaitable[bool]],
    idle_seconds: Callable[[], float],
    stop: asyncio.Event,
    wake: asyncio.Event | None = None,
    first_seconds: float = FIRST_WAIT_SECONDS,
) -> None:
    """Run step again and again until stop is set: at once while it returns True, else after a rest.

    Rests grow from first_seconds to idle_seconds() and are uneven, so that idle programs do not
    knock in step. `wake` ends a rest early. An unreachable database is a rest too: the store has
    said so once.
    """
    events = (stop,) if wake is None else (stop, wake)
    pause = first_seconds
    while not stop.is_set():
        if wake is not None:
            wake.clear()
        again = False
        with contextlib.suppress(Unavailable):
            again = await step()
        if again:
            pause = first_seconds
            continue
        longest = idle_seconds()
        await wait_for_any(min(pause, longest) * random.uniform(0.5, 1.0), *events)
        pause = min(pause * 2, longest)
        if wake is not None and wake.is_set():
            pause = first_seconds
