"""Writes one log line per event: JSON for machines, plain text for people."""

import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

# The fields that a line can have beside its event, in this order, passed as `extra`. No other field
# is written, so that the text of a document can never get into a log.
FIELDS = (
    "request_id",  # the public id, which is unique within its tenant
    "tenant",
    "request_no",  # requests.id, the internal number
    "index",
    "attempt",
    "owner",
    "outcome",
    "segments",
    "duration_ms",
)


def start_log(program: str, log_format: str, level: int = logging.INFO) -> None:
    """Log to standard error, one line per event; `log_format` is that of LogSettings."""
    is_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(program, as_text if is_text else json.dumps))
    logging.basicConfig(level=level, handlers=[handler])
    # An unhandled exception is logged like any other event, and its message is left out.
    sys.excepthook = lambda _kind, error, _frames: logging.critical(
        "unhandled exception, exiting", exc_info=error
    )


class LineFormatter(logging.Formatter):
    """Formats a log record as one line."""

    def __init__(self, program: str, write: Callable[[dict[str, Any]], str]) -> None:
        super().__init__()
        self._program = program
        self._write = write

    def format(self, record: logging.LogRecord) -> str:
        """Format the record, with the fields that it has."""
        error = record.exc_info[1] if record.exc_info else None
        line = {
            "ts": timestamp(record),
            "level": record.levelname.lower(),
            "program": self._program,
            # The first line only: asyncio adds others, which repeat the message of an exception.
            "event": record.getMessage().strip().partition("\n")[0],
            **{name: getattr(record, name, None) for name in FIELDS},
            "fault": "\n".join(stack_traces(error)) if error else None,
        }
        return self._write({name: value for name, value in line.items() if value is not None})


def as_text(line: dict[str, Any]) -> str:
    """The event first, then its fields; a stack trace follows on lines of its own."""
    at, level, program, event = (line.pop(name) for name in ("ts", "level", "program", "event"))
    fault = line.pop("fault", None)
    parts = [f"{at} {level.upper()} {program}: {event}"]
    parts += [f"{name}={value}" for name, value in line.items()]
    return " ".join(parts) + (f"\n{fault}" if fault else "")


def timestamp(record: logging.LogRecord) -> str:
    """The time of the record on this machine's clock, in the format of answers (RFC 3339, UTC)."""
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def stack_traces(error: BaseException) -> Iterator[str]:
    """The stack and the type of an exception, after those of its causes and of its group.

    Messages are left out: the message of a refused statement or a failed check repeats the text of
    a document.
    """
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for inner in (cause, *members):
        if inner is not None:
            yield from stack_traces(inner)
    frames = "".join(traceback.format_tb(error.__traceback__))
    # The number of an error of the database or the system contains no text of a document.
    number = next((f" {value}" for value in error.args[:1] if isinstance(value, int)), "")
    yield f"Traceback (most recent call last):\n{frames}{type(error).__qualname__}{number}"
