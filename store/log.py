"""Operators read what a program decided: a line each, as JSON for machines, plain for people."""

import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

# What a line may say beside its event, in this order, given as `extra`. What is not named here is
# not written: documents belong to the callers, and a field for their text does not exist.
FIELDS = (
    "request_id",  # the caller's own, with the tenant that it belongs to
    "tenant",
    "request_no",  # the number in the rows, by which worker and batch know the request
    "index",
    "attempt",
    "owner",
    "outcome",
    "segments",
    "duration_ms",
)


def start_log(program: str, log_format: str, level: int = logging.INFO) -> None:
    """Send what happens to standard error, a line each; nothing comes back.

    `log_format` is that of LogSettings.
    """
    is_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(program, as_text if is_text else json.dumps))
    logging.basicConfig(level=level, handlers=[handler])
    # What ends a program is news like any other, and its message is kept back like any other.
    sys.excepthook = lambda _kind, error, _frames: logging.critical(
        "the program ends: a fault of its own", exc_info=error
    )


class LineFormatter(logging.Formatter):
    """What a record becomes; a class, since logging asks for one."""

    def __init__(self, program: str, written: Callable[[dict[str, Any]], str]) -> None:
        super().__init__()
        self._program = program
        self._written = written

    def format(self, record: logging.LogRecord) -> str:
        """The record, written with the members that apply."""
        error = record.exc_info[1] if record.exc_info else None
        line = {
            "ts": timestamp(record),
            "level": record.levelname.lower(),
            "program": self._program,
            # One line of it: asyncio adds others, which repeat the message of an exception.
            "event": record.getMessage().strip().partition("\n")[0],
            **{name: getattr(record, name, None) for name in FIELDS},
            "fault": "\n".join(stack_traces(error)) if error else None,
        }
        return self._written({name: value for name, value in line.items() if value is not None})


def as_text(line: dict[str, Any]) -> str:
    """The event first, then what applies to it; a fault has lines of its own."""
    at, level, program, event = (line.pop(name) for name in ("ts", "level", "program", "event"))
    fault = line.pop("fault", None)
    words = [f"{at} {level.upper()} {program}: {event}"]
    words += [f"{name}={value}" for name, value in line.items()]
    return " ".join(words) + (f"\n{fault}" if fault else "")


def timestamp(record: logging.LogRecord) -> str:
    """When it happened by this machine's clock, as the answers write times (RFC 3339, UTC)."""
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def stack_traces(error: BaseException) -> Iterator[str]:
    """The frames and the type of an exception, after those of what it came from and what is in it.

    Never a message: that of a refused statement or of a failed check repeats the text.
    """
    came_from = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for inner in (came_from, *within):
        if inner is not None:
            yield from stack_traces(inner)
    frames = "".join(traceback.format_tb(error.__traceback__))
    # A number is no text, and says of an error of the server or the system which it is.
    number = next((f" {word}" for word in error.args[:1] if isinstance(word, int)), "")
    yield f"Traceback (most recent call last):\n{frames}{type(error).__qualname__}{number}"
