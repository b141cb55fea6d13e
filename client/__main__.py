"""`python -m client FILE`, installed as `partway`: a document goes in, what is done comes out."""

import argparse
import json
import math
import os
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from partway.client.answer import ANSWER, Answer, End, Usage
from partway.client.call import DEFAULT_URL, KEY_SETTING, URL_SETTING, check_id
from partway.client.partway import Partway
from partway.client.problems import PartwayError, Problem, ServerUnavailable
from partway.client.progress import Bars

COMPLETE, FAILED, USAGE, PARTIAL = 0, 1, 2, 3

# What a shell makes of a program that Ctrl-C has ended.
CANCELLED = 130

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

ABOUT = "Send a document and a deadline; write what is done by then to standard output."

EXAMPLES = f"""examples:
  partway letter.txt --param source=eng --param target=spa > carta.txt
  partway letter.txt --deadline 10 --partial fail || echo "not all of it"
  cat letter.txt | partway - --json | jq .usage

settings:
  {URL_SETTING}    where the server is ({DEFAULT_URL})
  {KEY_SETTING}    your key, where the server asks for one

Ctrl-C cancels the request and says what is billed.
exit status: 0 complete, 3 partial, 1 failed, 2 wrongly called, 130 cancelled by Ctrl-C"""


class Flags(argparse.ArgumentParser):
    """The flags; a wrong one is refused in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"partway: {message}\n")


def param(argument: str) -> tuple[str, Any]:
    """The name and the value of NAME=VALUE; a value that is no JSON is the text it looks like."""
    name, equals, value = argument.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{argument!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def seconds(argument: str) -> float:
    """A number of seconds above 0."""
    number = float(argument)
    if not 0.001 <= number < math.inf:
        raise argparse.ArgumentTypeError("must be 0.001 or more")
    return number


def flags() -> Flags:
    """The flags that there are."""
    parser = Flags(
        prog="partway",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help="a text in UTF-8; - is standard input")
    parser.add_argument(
        "--deadline", type=seconds, default=30.0, metavar="SECONDS", help="how long to wait (30)"
    )
    parser.add_argument(
        "--param",
        type=param,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for the handler, such as target=spa; repeatable",
    )
    parser.add_argument("--language", help="the language of the text, for splitting it (en)")
    parser.add_argument(
        "--partial",
        choices=ON_MISSING,
        default="source",
        help="what becomes of segments that are not done: their source is written, they are left "
        "out, or nothing is written at all (source)",
    )
    parser.add_argument("--json", action="store_true", help="write the whole answer as JSON")
    parser.add_argument(
        "--id", help="the id of the request; the same again joins it or gets the same answer"
    )
    parser.add_argument("--url", help=f"where the server is, before {URL_SETTING}")
    return parser


def read_text(file: str) -> str:
    """The text of a file, or of standard input; ValueError when there is none."""
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 at byte {error.start}") from None


def say(words: str) -> None:
    """One line for who is there, on standard error; nothing comes back."""
    # What a handler or a server said may hold line ends, or move the cursor of a terminal.
    line = "".join(letter if letter.isprintable() else " " for letter in words)
    print(f"partway: {line}", file=sys.stderr)


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


def wait(partway: Partway, text: str, given: argparse.Namespace) -> Answer:
    """The answer, once it is there; bars show how it grows."""
    options: dict[str, Any] = {"language": given.language} if given.language else {}
    accepted = False
    try:
        with Bars(given.deadline) as bars:
            for event in partway.stream(
                text,
                id=given.id,
                params=dict(given.param),
                deadline_ms=round(given.deadline * 1000),
                on_missing=ON_MISSING[given.partial][0],
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
            f"{error}; it goes on, and the same with --id {given.id} joins it"
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
            say(f"standard output: {error.strerror}")
        return False
    return True


def show(answer: Answer, given: argparse.Namespace) -> int:
    """Write the answer where it belongs; the exit status."""
    is_complete = answer.status == "completed"
    text = answer.document or ""
    words = summary(answer)
    if given.json:
        text = ANSWER.dump_json(answer).decode() + "\n"
    elif not is_complete:
        words += f"; {ON_MISSING[given.partial][1]}"
    if not is_written(text):
        return FAILED
    if not is_complete or sys.stderr.isatty():
        say(words)
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


def cancelled(partway: Partway, id: str) -> int:
    """Cancel after Ctrl-C and say what that costs; the exit status."""
    say("cancelling; Ctrl-C again leaves it running")
    try:
        say(cancel(partway, id))
    except KeyboardInterrupt:
        say(f"not cancelled; it goes on, and the same with --id {id} joins it")
    except PartwayError as error:
        say(f"not cancelled: {refusal(error, partway.url)}")
        return FAILED
    return CANCELLED


def main(words: Sequence[str] | None = None) -> int:
    """The exit status; wrong flags end the process with 2."""
    given = flags().parse_args(words)
    try:
        given.id = check_id(given.id or str(uuid.uuid4()))
        text = read_text(given.file)
        partway = Partway(given.url, retry_seconds=RETRY_SECONDS)
    except ValueError as error:
        say(str(error))
        return USAGE
    except KeyboardInterrupt:
        return CANCELLED
    with partway:
        try:
            return show(wait(partway, text, given), given)
        except KeyboardInterrupt:
            return cancelled(partway, given.id)
        except PartwayError as error:
            say(refusal(error, partway.url))
            return FAILED


if __name__ == "__main__":
    sys.exit(main())
