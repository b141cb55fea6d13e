"""What the author of a handler needs: the context of an attempt, and the exceptions to raise."""

import importlib
import math
import sys
import time
from dataclasses import dataclass
from typing import Any

# Only their names: importing them here would load their dependencies into every child.
BUILT_IN = {
    "apertium": "partway.worker.handlers.apertium:Apertium",
    "http": "partway.worker.handlers.http:Http",
    "sleep": "partway.worker.handlers.sleep:Sleep",
}


class HandlerError(Exception):
    """The handler cannot be used. The message says which and why, in one line."""


class Retry(Exception):
    """Raised by a handler to ask for another attempt, no sooner than in `after` seconds."""

    def __init__(self, after: float, why: str = "") -> None:
        if not (math.isfinite(after) and after >= 0):
            raise ValueError(f"Retry(after={after!r}): after must be a number of seconds from 0 up")
        super().__init__(why)
        self.after = float(after)


class Reject(Exception):
    """Raised by a handler when the segment can never be done: no further attempt is made."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(f"{code}: {why}")


@dataclass
class Context:
    """What a handler can know about the current attempt."""

    params: dict[str, Any]
    index: int
    attempt: int
    # On the monotonic clock, which is the same in every process of one machine.
    ends_at: float
    # Becomes true while the handler runs, when its result is no longer needed.
    cancelled: bool = False
    # The trace of the caller (W3C trace context); None when it sent none.
    traceparent: str | None = None

    def remaining(self) -> float:
        """How many seconds are left until the handler is stopped; 0.0 when none are."""
        return max(0.0, self.ends_at - time.monotonic())


def load(name: str) -> Any:
    """Import the handler called `name`; HandlerError when there is none.

    A name is "package.module:name", or the short name of a handler that comes with Partway. A child
    searches its folder last: a module of Python or of an installed package is found before a file
    that has the same name.
    """
    module_name, colon, attribute = BUILT_IN.get(name, name).partition(":")
    if not (module_name and colon and attribute):
        shipped = ", ".join(sorted(BUILT_IN))
        raise HandlerError(f"handler {name!r} is neither package.module:name nor one of {shipped}")
    try:
        handler = getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:
        # An import runs the code of the module, which can raise anything.
        why = describe_error(error)
        if module_name in sys.modules:
            # It was imported, perhaps from another place than the author thinks.
            why += f" ({getattr(sys.modules[module_name], '__file__', None) or 'built in'})"
        raise HandlerError(f"handler {name!r} cannot be imported: {why}") from error
    if not callable(handler):
        kind = type(handler).__name__
        raise HandlerError(f"handler {name!r} cannot be called: it is of type {kind}")
    return handler


LONGEST_ERROR_CHARACTERS = 500


def describe_error(error: BaseException) -> str:
    """The exception as `TypeName: message` in one storable line, cut to 500 characters."""
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:
        # The code that makes the message belongs to the handler too, and can fail.
        message = "its message could not be read"
    return one_line(f"{name}: {message}" if message else name)


def one_line(text: str) -> str:
    """The text without line breaks or lone surrogates, cut to 500 characters."""
    storable = text.encode("utf-8", "replace").decode("utf-8")
    return " ".join(storable.split())[:LONGEST_ERROR_CHARACTERS]
