"""`partway send FILE`: a document goes in, and what is done by its deadline comes out."""

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

# Somebody sits there and waits: what is not back by then is worth a word.
RETRY_SECONDS = 10.0

# An id that is not there yet may still be on its way, since the cancel overtakes the sending.
UNDERWAY_SECONDS = 2.0

# What is done about missing segments, for the server and in words.
ON_MISSING: dict[str, tuple[Literal["null", "source", "omit"], str]] = {
    "source": ("source", "the source stands for what is missing"),
    "omit": ("omit", "what is missing is left out"),
    "fail": ("null", "nothing is written"),
}

# Click fills lines up to the width, but for a paragraph that begins with this mark.
EXAMPLES = f"""\b
Examples:
  partway send letter.txt --param source=eng --param target=spa > carta.txt
  partway send letter.txt --deadline 10 --partial fail || echo "not all of it"
  cat letter.txt | partway send - --json | jq .usage

\b
Settings:
  {URL_SETTING}    where the server is ({DEFAULT_URL})
  {KEY_SETTING}    your key, where the server asks for one

\b
Ctrl-C and SIGTERM cancel the request and say what is billed.
Exit status: 0 complete, 3 partial, 1 failed, 2 wrongly called, 130 cancelled
by Ctrl-C, 143 cancelled by SIGTERM."""


@dataclass(frozen=True)
class Sending:
    """What is sent, and what becomes of the answer."""

    file: str
    deadline: float = 30.0
    params: tuple[tuple[str, Any], ...] = ()
    language: str | None = None
    partial: str = "source"
    as_json: bool = False
    id: str | None = None
    url: str | None = None


class Stopped(BaseException):
    """Ctrl-C, or SIGTERM. No Exception, so that nothing on the way takes it for an error."""

    def __init__(self, number: int) -> None:
        super().__init__()
        # What a shell makes of a program that a signal has ended.
        self.status = 128 + number


def stop(number: int, _frame: FrameType | None) -> None:
    """Interrupt what is being done; nothing comes back."""
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
    help="For the handler, such as target=spa; repeatable.",
)
@click.option("--language", help="The language of the text, for splitting it.  [default: en]")
@click.option(
    "--partial",
    type=click.Choice(list(ON_MISSING)),
    default="source",
    show_default=True,
    help="What becomes of segments that are not done: their source is written, they are left out, "
    "or nothing is written at all.",
)
@click.option("--json", "as_json", is_flag=True, help="Write the whole answer as JSON.")
@click.option(
    "--id", help="The id of the request; the same again attaches to it or gets the same answer."
)
@click.option("--url", help=f"Where the server is, before {URL_SETTING}.")
def send(**given: Any) -> int:
    """Send a document and a deadline; write what is done by then to standard output.

    FILE is a text in UTF-8; - is standard input.
    """
    stops = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) == signal.SIG_DFL]
    try:
        for number in stops:
            signal.signal(number, stop)
        return send_and_wait(Sending(**given))
    except Stopped as stopped:
        # Before anything was sent, or after all of it was said.
        return stopped.status
    finally:
        for number in stops:
            signal.signal(number, signal.SIG_DFL)


def send_and_wait(sending: Sending) -> int:
    """The exit status, once the answer is written or it is said why there is none."""
    try:
        id = check_id(sending.id or str(uuid.uuid4()))
        text = read_text(sending.file)
        partway = Partway(sending.url, retry_seconds=RETRY_SECONDS)
    except ValueError as error:
        say("partway", str(error))
        return USAGE
    with partway:
        try:
            return show(wait(partway, text, id, sending), sending)
        except Stopped as stopped:
            return cancelled(partway, id, stopped)
        except PartwayError as error:
            say("partway", refusal(error, partway.url))
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
    """What is billed, in words."""
    if not usage.billed:
        return "nothing is billed"
    figures = f"billed: {usage.input_characters} characters in, {usage.output_characters} out"
    return figures if usage.final else f"{figures}, and whatever still becomes done"


def summary(answer: Answer) -> str:
    """How a request ended, in words."""
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


def wait(partway: Partway, text: str, id: str, sending: Sending) -> Answer:
    """The answer, once it is there; bars show how it grows."""
    options: dict[str, Any] = {"language": sending.language} if sending.language else {}
    accepted = False
    try:
        with Bars(sending.deadline) as bars:
            for event in partway.stream(
                text,
                id=id,
                params=dict(sending.params),
                deadline_ms=round(sending.deadline * 1000),
                on_missing=ON_MISSING[sending.partial][0],
                **options,
            ):
                accepted = True
                bars.show(event)
                if isinstance(event, End):
                    return event.answer
    except ServerUnavailable as error:
        if not accepted:
            raise
        raise ServerUnavailable(
            f"{error}; it goes on, and the same with --id {id} attaches to it"
        ) from error
    raise AssertionError("a stream ends with its end")


def cancel(partway: Partway, id: str) -> str:
    """What became of a request that is no longer wanted, in words."""
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
    """Whether standard output took all of the text."""
    try:
        # Bytes, so that neither the locale nor the line ends of a platform change the text.
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
    except OSError as error:
        # Python would try again at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Who closes a pipe has read enough, and wants to hear no more.
        if not isinstance(error, BrokenPipeError):
            say("partway", f"standard output: {error.strerror}")
        return False
    return True


def show(answer: Answer, sending: Sending) -> int:
    """Write the answer where it belongs; the exit status."""
    is_complete = answer.status == "completed"
    text = answer.document or ""
    words = summary(answer)
    if sending.as_json:
        text = ANSWER.dump_json(answer).decode() + "\n"
    elif not is_complete:
        words += f"; {ON_MISSING[sending.partial][1]}"
    if not is_written(text):
        return FAILED
    if not is_complete or sys.stderr.isatty():
        say("partway", words)
    return COMPLETE if is_complete else PARTIAL


def refusal(error: PartwayError, url: str) -> str:
    """Why there is no answer, in one line that says what can be done about it."""
    match error:
        case ServerUnavailable():
            return f"no answer from {url}: {error}"
        case Problem(status=401):
            return f"{url} asks for a key that it knows; set {KEY_SETTING}"
        case Problem(retry_after_seconds=int(later)):
            return f"refused ({error.status}): {error} (try again in {later} s)"
        case Problem():
            return f"refused ({error.status}): {error}"
    return str(error)


def cancelled(partway: Partway, id: str, stopped: Stopped) -> int:
    """Cancel after Ctrl-C or SIGTERM and say what that costs; the exit status."""
    say("partway", "cancelling; Ctrl-C again leaves it running")
    try:
        say("partway", cancel(partway, id))
    except Stopped as again:
        say("partway", f"not cancelled; it goes on, and the same with --id {id} attaches to it")
        return again.status
    except PartwayError as error:
        say("partway", f"not cancelled: {refusal(error, partway.url)}")
        return FAILED
    return stopped.status
