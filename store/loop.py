"""Repeats a step until the program is stopped, with idle waits when there was nothing to do."""

import asyncio
import contextlib
import random
import signal
from collections.abc import Awaitable, Callable

from partway.store.database import Unavailable

# The first idle wait is short, since work often comes in bursts. Each further one is twice as long.
FIRST_WAIT_SECONDS = 0.02


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)
        # Otherwise a second Ctrl-C would be an exception, and the end a fault with its stack.
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stop


async def wait_for_any(seconds: float, *events: asyncio.Event) -> None:
    """Wait until one of the events is set, but at most `seconds`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def until_idle(step: Callable[[], Awaitable[bool]], stop: asyncio.Event) -> None:
    """Run `step` until it returns False or `stop` is set; raises Unavailable if `step` does."""
    while not stop.is_set() and await step():
        pass


async def repeat(
    step: Callable[[], Awaitable[bool]],
    idle_seconds: Callable[[], float],
    stop: asyncio.Event,
    wake: asyncio.Event | None = None,
    first_seconds: float = FIRST_WAIT_SECONDS,
) -> None:
    """Run `step` until `stop` is set: again at once when it returns True, else after an idle wait.

    Idle waits grow from first_seconds to idle_seconds(). They are random, so that idle programs do
    not poll at the same time. `wake` ends an idle wait early. When the database is unavailable, the
    loop waits too; the Database has logged it once.
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
