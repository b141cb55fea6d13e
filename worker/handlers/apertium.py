"""Translates with Apertium, which needs no network: 6 ms for a sentence while it keeps running.

To start its eleven programs takes 290 ms, so each child starts them once for a language pair and
sends all its texts through them. The programs flush their output whenever they read a NUL.
"""

import os
import re
import secrets
import select
import shlex
import signal
import subprocess
import time
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from partway.worker.handler import Context, Reject
from partway.worker.handlers import read_settings


class ApertiumSettings(BaseSettings):
    """Where Apertium is, and the languages of requests that do not name them."""

    model_config = SettingsConfigDict(env_prefix="PARTWAY_APERTIUM_")

    modes: Path = Field(
        Path("/usr/share/apertium/modes"),
        description="The folder with the .mode files of the installed language pairs.",
    )
    source: str = Field("eng", description="The language to translate from, unless params say.")
    target: str = Field("spa", description="The language to translate to, unless params say.")


class PipelineBroken(Exception):
    """A pipeline gave no usable answer and was ended. The message says what happened."""


# To read the dictionaries takes a third of a second, and some seconds on a busy machine.
START_SECONDS = 30.0


class Apertium:
    """Translates from `params["source"]` to `params["target"]`."""

    def setup(self) -> None:
        """Start the default language pair, so that no segment waits for it; raises if it fails."""
        self.settings = read_settings(ApertiumSettings)
        self.pipelines: dict[str, Pipeline] = {}
        pair = f"{self.settings.source}-{self.settings.target}"
        if pair not in self.installed():
            raise ValueError(self.missing_pair(pair))
        self.translate(pair, "", START_SECONDS)

    def __call__(self, text: str, ctx: Context) -> str:
        """Translate the text. Words that Apertium does not know are not marked."""
        source = ctx.params.get("source", self.settings.source)
        target = ctx.params.get("target", self.settings.target)
        pair = f"{source}-{target}"
        # The pair comes from a caller and names a file, so only installed pairs are accepted.
        if pair not in self.installed():
            raise Reject("unknown_pair", self.missing_pair(pair))
        return self.translate(pair, text, ctx.remaining())

    def close(self) -> None:
        """End all pipelines."""
        for pipeline in self.pipelines.values():
            pipeline.end()

    def installed(self) -> list[str]:
        """The names of the language pairs, such as eng-spa."""
        return sorted(mode.stem for mode in self.settings.modes.glob("*.mode"))

    def missing_pair(self, pair: str) -> str:
        """The error text for a missing pair, which names the installed pairs."""
        installed = ", ".join(self.installed()) or "no pair"
        return f"{pair!r} is not installed; {installed} found in {self.settings.modes}"

    def translate(self, pair: str, text: str, seconds: float) -> str:
        """Translate in the pipeline of the pair; PipelineBroken when it fails.

        After any error, the next text gets a new pipeline.
        """
        if pair not in self.pipelines:
            self.pipelines[pair] = Pipeline(self.settings.modes / f"{pair}.mode")
        try:
            return self.pipelines[pair].translate(text, seconds)
        except BaseException:
            # After any error, half an answer may still be in the pipeline.
            self.pipelines.pop(pair).end()
            raise


class Pipeline:
    """The running programs of one language pair; each reads the output of the one before it."""

    def __init__(self, mode: Path) -> None:
        command_lines = programs_of(mode.read_text(encoding="utf-8"))
        self.names = [argv[0] for argv in command_lines]
        self.programs: list[subprocess.Popen[bytes]] = []
        for argv in command_lines:
            before = self.programs[-1].stdout if self.programs else None
            # S603, S607: the command lines come from the installed pair, and PATH is used, as
            # Apertium itself does.
            program = subprocess.Popen(  # noqa: S603
                # Without setpriv, a program that hangs would outlive a child that is killed.
                ["setpriv", "--pdeathsig", "KILL", "--", *argv],  # noqa: S607
                stdin=before or subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Apertium decodes its input with the encoding of the locale.
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )
            if before:
                # This process must close its copy, so that a program sees the end of its input
                # when the program before it ends.
                before.close()
            self.programs.append(program)
        first, last = self.programs[0].stdin, self.programs[-1].stdout
        assert first is not None
        assert last is not None
        self.input, self.output = first, last
        os.set_blocking(self.input.fileno(), False)

    def translate(self, text: str, seconds: float) -> str:
        """Translate the text; PipelineBroken when there is no answer in time."""
        # The programs cannot read these two: NUL is a flush, and U+FFFF is read as end of file.
        pieces = re.split("([\0\uffff])", text)
        # An answer belongs to this question when it ends with the same random number.
        end = f"[{secrets.token_hex(8)}]\0".encode()
        question = "\0".join(to_stream(piece) for piece in pieces[::2]) + "\0"
        answer = self.exchange(question.encode() + end, end, seconds)
        translated = answer.decode().split("\0")[:-1]
        if len(translated) != len(pieces[::2]):
            raise PipelineBroken("the answer has another number of parts than the question")
        pieces[::2] = [from_stream(piece) for piece in translated]
        return "".join(pieces)

    def exchange(self, question: bytes, end: bytes, seconds: float) -> bytes:
        """The answer of the pipeline up to `end`. It reads while it writes, to avoid a deadlock."""
        until = time.monotonic() + seconds
        unsent = memoryview(question)
        answer = bytearray()
        ready = select.poll()
        ready.register(self.input, select.POLLOUT)
        ready.register(self.output, select.POLLIN)
        while not answer.endswith(end):
            left = until - time.monotonic()
            events = ready.poll(left * 1000) if left > 0 else []
            if not events:
                raise PipelineBroken(f"Apertium gave no answer in {seconds:.1f} s")
            for number, event in events:
                if number == self.output.fileno():
                    piece = os.read(number, 1 << 16)
                    if not piece:
                        raise PipelineBroken(self.describe_end())
                    answer += piece
                elif event & select.POLLERR:
                    raise PipelineBroken(self.describe_end())
                else:
                    unsent = unsent[os.write(number, unsent[: 1 << 16]) :]
                    if not unsent:
                        ready.unregister(number)
        return bytes(answer[: -len(end)])

    def describe_end(self) -> str:
        """The error text for a pipeline that ended; it names the program that failed, if known."""
        for name, program in zip(self.names, self.programs, strict=True):
            # The others exit with 0 when their input ends, or by SIGPIPE when their reader ends.
            if program.poll() not in (None, 0, -signal.SIGPIPE):
                return f"{name} ended with status {program.returncode}"
        return "an Apertium program ended"

    def end(self) -> None:
        """End all programs."""
        for program in self.programs:
            program.kill()
        self.input.close()
        self.output.close()
        for program in self.programs:
            program.wait()


def programs_of(mode: str) -> list[list[str]]:
    """Parse a mode file into command lines that keep running and do not mark unknown words."""
    programs: list[list[str]] = [[]]
    for word in shlex.split(mode):
        if word == "|":
            programs.append([])
        elif word == "$1":
            programs[-1].append("-n")
        elif word != "$2":
            programs[-1].append(word)
        if len(programs[-1]) == 1:
            programs[-1].append("-z")
    return programs


# The special characters of Apertium's format, white space other than one space, and ~, which
# Apertium would drop.
NOT_PLAIN = re.compile(r"[\[\]{}^$/\\@<>]|(?! (?!\s))\s+|~")


def to_stream(text: str) -> str:
    """Encode text in Apertium's format; sentences end at blank lines and at the end of the text."""

    def escape(match: re.Match[str]) -> str:
        special = match[0]
        if not (special.isspace() or special == "~"):
            return "\\" + special
        return f".[][{special}]" if special.count("\n") > 1 else f"[{special}]"

    return NOT_PLAIN.sub(escape, text) + ".[]"


# The full stop that to_stream() added is missing where Apertium read it as part of an abbreviation,
# such as "Mr".
NOTATION = re.compile(r"\\(.)|\.?\[\]|\[([^\]]*)\]", re.DOTALL)


def from_stream(answer: str) -> str:
    """Decode an answer to plain text."""
    return NOTATION.sub(lambda match: match[1] or match[2] or "", answer)
