"""`partway send FILE`: send a document and write what is done by its deadline."""

import os
import signal
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import click

from partway.client.answer import ANSWER, Answer, End, Usage
from partway.client.call import DEFAULT_URL, KEY_SETTING, URL_SETTING, check_id
from partway.client.partway import Partway
from partway.client.problems import PartwayError, Problem, ServerUnavailable
from partway.client.progress import Bars
from partway.command import name_value, say, seconds

COMPLETE, FAILED, USAGE, PARTIAL = 0, 1, 2, 3

# Shorter than the default of the client: a person waits at the terminal, and should see the error.
RETRY_SECONDS = 10.0

# How long a cancel is retried when the id is unknown: it can arrive before the request is stored.
UNDERWAY_SECONDS = 2.0

# For each value of --partial: the option of the server, and the words for a person.
ON_MISSING: dict[str, tuple[Literal["null", "source", "omit"], str]] = {
    "source": ("source", "the source is written for missing segments"),
    "omit": ("omit", "missing segments are left out"),
    "fail": ("null", "nothing is written"),
}

# Click does not rewrap a paragraph that begins with \b.
EXAMPLES = f"""\b
Examples:
  partway send letter.txt --param source=eng --param target=spa > carta.txt
  partway send letter.txt --deadline 10 --partial fail || echo "not all of it"
  cat letter.txt | partway send - --json | jq .usage

\b
Settings:
  {URL_SETTING}    where the server is ({DEFAULT_URL})
  {KEY_SETTING}    your key, if the server requires one

\b
Ctrl-C and SIGTERM cancel the request, and show what is billed.
Exit status: 0 complete, 3 partial, 1 failed, 2 wrong usage, 130 cancelled
by Ctrl-C, 143 cancelled by SIGTERM."""


@dataclass(frozen=True)
class SendOptions:
    """The arguments and options of `partway send`."""

    file: str
    deadline: float = 30.0
    params: tuple[tuple[str, Any], ...] = ()
    language: str | None = None
    partial: str = "source"
    as_json: bool = False
    id: str | None = None
    url: str | None = None


class Stopped(BaseException):
    """Ctrl-C or SIGTERM. It is not an Exception, so that no `except Exception` catches it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        # The exit status that a shell reports for a program that a signal has ended.
        self.status = 128 + number


def stop(number: int, _frame: FrameType | None) -> None:
    """Handle a signal: raise Stopped."""
    raise Stopped(number)


@click.command(epilog=EXAMPLES)
@click.argument("file", metavar="FILE")
@click.option(
    "--deadline",
    type=seconds,
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait.",
)
@click.option(
    "--param",
    "params",
    type=name_value,
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter for the handler, such as target=spa; repeatable.",
)
@click.option(
    "--language", help="The language of the text, which decides how it is split.  [default: en]"
)
@click.option(
    "--partial",
    type=click.Choice(list(ON_MISSING)),
    default="source",
    show_default=True,
    help="For segments that are not done: write their source, omit them, or write nothing at all "
    "(fail).",
)
@click.option("--json", "as_json", is_flag=True, help="Write the whole answer as JSON.")
@click.option(
    "--id",
    help="The id of the request; with the same id, a retry attaches or gets the same answer.",
)
@click.option("--url", help=f"Where the server is; overrides {URL_SETTING}.")
def send(**given: Any) -> int:
    """Send a document and a deadline; write what is done by then to standard output.

    FILE is a text in UTF-8; - is standard input.
    """
    stops = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) == signal.SIG_DFL]
    try:
        for number in stops:
            signal.signal(number, stop)
        return send_and_wait(SendOptions(**given))
    except Stopped as stopped:
        # Before the request was sent, or after the answer was written.
        return stopped.status
    finally:
        for number in stops:
            signal.signal(number, signal.SIG_DFL)


def send_and_wait(options: SendOptions) -> int:
    """Send, wait and write the answer, or say why there is none; returns the exit status."""
    try:
        id = check_id(options.id or str(uuid.uuid4()))
        text = read_text(options.file)
        partway = Partway(options.url, retry_seconds=RETRY_SECONDS)
    except ValueError as error:
        say("partway", str(error))
        return USAGE
    with partway:
        try:
            return write_answer(wait(partway, text, id, options), options)
        except Stopped as stopped:
            return cancel_after_signal(partway, id, stopped)
        except PartwayError as error:
            say("partway", explain(error, partway.url))
            return FAILED


def read_text(file: str) -> str:
    """The text of a file, or of standard input; ValueError when there is none."""
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 at byte {error.start}") from None


def billed(usage: Usage) -> str:
    """Say in words what is billed."""
    if not usage.billed:
        return "nothing is billed"
    figures = f"billed: {usage.input_characters} characters in, {usage.output_characters} out"
    return figures if usage.final else f"{figures}, plus running segments if they finish"


def summary(answer: Answer) -> str:
    """Say in one line how a request ended."""
    counts = answer.counts
    missing = {
        "failed": counts.failed,
        "timed out": counts.timed_out,
        "cancelled": counts.cancelled,
    }
    parts = [f"{counts.done} of {counts.total} segments"]
    parts += [f"{count} {name}" for name, count in missing.items() if count]
    failed = next((segment for segment in answer.segments if segment.error), None)
    if failed is not None:
        parts.append(f"segment {failed.index}: {failed.error}")
    return f"{answer.status}: {', '.join(parts)}; {billed(answer.usage)}"


def wait(partway: Partway, text: str, id: str, options: SendOptions) -> Answer:
    """Send the text and wait for the answer, while bars show the progress."""
    language: dict[str, Any] = {"language": options.language} if options.language else {}
    accepted = False
    try:
        with Bars(options.deadline) as bars:
            for event in partway.stream(
                text,
                id=id,
                params=dict(options.params),
                deadline_ms=round(options.deadline * 1000),
                on_missing=ON_MISSING[options.partial][0],
                **language,
            ):
                accepted = True
                bars.show(event)
                if isinstance(event, End):
                    return event.answer
    except ServerUnavailable as error:
        if not accepted:
            raise
        raise ServerUnavailable(
            f"{error}; the request continues: retry with --id {id} to attach to it"
        ) from error
    raise AssertionError("the stream ended without its End event")


def cancel(partway: Partway, id: str) -> str:
    """Cancel the request and say in one line how it ended."""
    ends_at = time.monotonic() + UNDERWAY_SECONDS
    while True:
        try:
            return summary(partway.cancel(id))
        except Problem as problem:
            if problem.status != 404:
                raise
            if time.monotonic() > ends_at:
                return "cancelled before it was stored; nothing is billed"
            time.sleep(0.1)


def is_written(text: str) -> bool:
    """Write the text to standard output; False when that failed."""
    try:
        # Bytes, so that neither the locale nor the line ends of the platform change the text.
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
    except OSError as error:
        # Otherwise Python would flush again at exit, and print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader that closes the pipe has read enough: this is not an error to report.
        if not isinstance(error, BrokenPipeError):
            say("partway", f"standard output: {error.strerror}")
        return False
    return True


def write_answer(answer: Answer, options: SendOptions) -> int:
    """Write the answer to standard output, and its summary if needed; returns the exit status."""
    is_complete = answer.status == "completed"
    text = answer.document or ""
    message = summary(answer)
    if options.as_json:
        text = ANSWER.dump_json(answer).decode() + "\n"
    elif not is_complete:
        message += f"; {ON_MISSING[options.partial][1]}"
    if not is_written(text):
        return FAILED
    if not is_complete or sys.stderr.isatty():
        say("partway", message)
    return COMPLETE if is_complete else PARTIAL


def explain(error: PartwayError, url: str) -> str:
    """Say in one line why there is no answer, and what the caller can do."""
    match error:
        case ServerUnavailable():
            return f"no answer from {url}: {error}"
        case Problem(status=401):
            return f"{url} requires a valid key; set {KEY_SETTING}"
        case Problem(retry_after_seconds=int(later)):
            return f"refused ({error.status}): {error} (try again in {later} s)"
        case Problem():
            return f"refused ({error.status}): {error}"
    return str(error)


def cancel_after_signal(partway: Partway, id: str, stopped: Stopped) -> int:
    """Cancel after Ctrl-C or SIGTERM, and say what is billed; returns the exit status."""
    say("partway", "cancelling; press Ctrl-C again to leave it running")
    try:
        say("partway", cancel(partway, id))
    except Stopped as again:
        say(
            "partway",
            f"not cancelled; the request continues: retry with --id {id} to attach to it",
        )
        return again.status
    except PartwayError as error:
        say("partway", f"not cancelled: {explain(error, partway.url)}")
        return FAILED
    return stopped.status
