"""A handler's author needs these few words: what comes beside the text, and what to raise."""

import importlib
import math
import time
from dataclasses import dataclass
from typing import Any

# By their names alone: to import them here would make every handler's child load what they need.
BUILT_IN = {
    "apertium": "partway.worker.handlers.apertium:Apertium",
    "http": "partway.worker.handlers.http:Http",
    "sleep": "partway.worker.handlers.sleep:Sleep",
}


class HandlerError(Exception):
    """The handler cannot be used; the message says which and why, in one line."""


class Retry(Exception):
    """Raised by a handler: not now; the segment waits `after` seconds before its next attempt."""

    def __init__(self, after: float, why: str = "") -> None:
        if not (math.isfinite(after) and after >= 0):
            raise ValueError(f"Retry(after={after!r}): after must be a number of seconds from 0 up")
        super().__init__(why)
        self.after = float(after)


class Reject(Exception):
    """Raised by a handler: this segment can never be done, so no further attempt is made."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(f"{code}: {why}")


@dataclass
class Context:
    """What a handler may know about the attempt it makes."""

    params: dict[str, Any]
    index: int
    attempt: int
    # By the monotonic clock, which is the same in every process of one machine.
    ends_at: float
    # Becomes true while the handler runs, when nobody waits for its result any more.
    cancelled: bool = False
    # The trace that the caller is in (W3C trace context); None when it sent none.
    traceparent: str | None = None

    def remaining(self) -> float:
        """The seconds until the handler will be ended, 0.0 when there are none."""
        return max(0.0, self.ends_at - time.monotonic())


def load(name: str) -> Any:
    """The function, class or object called `name`; HandlerError when there is no such handler.

    A name is "package.module:name", looked for in the current directory first, or the short
    name of a handler that comes with Partway.
    """
    module_name, colon, attribute = BUILT_IN.get(name, name).partition(":")
    if not (module_name and colon and attribute):
        shipped = ", ".join(sorted(BUILT_IN))
        raise HandlerError(f"handler {name!r} is neither package.module:name nor one of {shipped}")
    try:
        handler = getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:
        # Importing runs whatever stands in the module, so anything can come out of it.
        raise HandlerError(
            f"handler {name!r} cannot be imported: {describe_error(error)}"
        ) from error
    if not callable(handler):
        kind = type(handler).__name__
        raise HandlerError(f"handler {name!r} cannot be called: it is of type {kind}")
    return handler


LONGEST_ERROR_CHARACTERS = 500


def describe_error(error: BaseException) -> str:
    """`TypeName: message` in one line that can be stored, cut to 500 characters."""
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:
        # The message is the author's code too.
        message = "its message could not be read"
    return one_line(f"{name}: {message}" if message else name)


def one_line(text: str) -> str:
    """The text without line breaks or lone surrogates, cut to 500 characters."""
    storable = text.encode("utf-8", "replace").decode("utf-8")
    return " ".join(storable.split())[:LONGEST_ERROR_CHARACTERS]
