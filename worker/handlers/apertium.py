"""Real machine translation needs no network: Apertium, kept running, takes 6 ms for a sentence.

Starting its eleven programs takes 290 ms, so each child starts them once for a language pair and
sends text after text through them. They hand on what they have whenever a NUL comes.
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
    """Where Apertium is, and what it translates for a request that does not say."""

    model_config = SettingsConfigDict(env_prefix="PARTWAY_APERTIUM_")

    modes: Path = Field(
        Path("/usr/share/apertium/modes"),
        description="The folder with the .mode files of the installed language pairs.",
    )
    source: str = Field("eng", description="The language to translate from, unless params say.")
    target: str = Field("spa", description="The language to translate to, unless params say.")


class PipelineBroken(Exception):
    """A pipeline gave no usable answer and has been ended; the message says what happened."""


# Reading the dictionaries takes a third of a second, or a few on a busy machine.
START_SECONDS = 30.0


class Apertium:
    """Translates from `params["source"]` to `params["target"]`."""

    def setup(self) -> None:
        """Start the pair of the settings, so that no segment waits for it; an error if it fails."""
        self.settings = read_settings(ApertiumSettings)
        self.pipelines: dict[str, Pipeline] = {}
        pair = f"{self.settings.source}-{self.settings.target}"
        if pair not in self.installed():
            raise ValueError(self.lacking(pair))
        self.translate(pair, "", START_SECONDS)

    def __call__(self, text: str, ctx: Context) -> str:
        """The translation, without marks on the words that Apertium does not know."""
        source = ctx.params.get("source", self.settings.source)
        target = ctx.params.get("target", self.settings.target)
        pair = f"{source}-{target}"
        # Looked up among what is there, since it comes from a caller and names a file.
        if pair not in self.installed():
            raise Reject("unknown_pair", self.lacking(pair))
        return self.translate(pair, text, ctx.remaining())

    def close(self) -> None:
        """End all pipelines."""
        for pipeline in self.pipelines.values():
            pipeline.end()

    def installed(self) -> list[str]:
        """The names of the language pairs, such as eng-spa."""
        return sorted(mode.stem for mode in self.settings.modes.glob("*.mode"))

    def lacking(self, pair: str) -> str:
        """A sentence that says what there is instead of the pair."""
        there = ", ".join(self.installed()) or "no pair"
        return f"{pair!r} is not installed; {there} found in {self.settings.modes}"

    def translate(self, pair: str, text: str, seconds: float) -> str:
        """The translation; PipelineBroken when it fails, and then the next text gets a new one."""
        if pair not in self.pipelines:
            self.pipelines[pair] = Pipeline(self.settings.modes / f"{pair}.mode")
        try:
            return self.pipelines[pair].translate(text, seconds)
        except BaseException:
            # Whatever it was: half an answer may still be on its way.
            self.pipelines.pop(pair).end()
            raise


class Pipeline:
    """The running programs of one language pair, each reading what the one before it writes."""

    def __init__(self, mode: Path) -> None:
        command_lines = programs_of(mode.read_text(encoding="utf-8"))
        self.names = [argv[0] for argv in command_lines]
        self.programs: list[subprocess.Popen[bytes]] = []
        for argv in command_lines:
            before = self.programs[-1].stdout if self.programs else None
            # The command lines are those of the installed pair, found on PATH as Apertium does it.
            program = subprocess.Popen(  # noqa: S603
                # A program that hangs would outlive a child that is killed.
                ["setpriv", "--pdeathsig", "KILL", "--", *argv],  # noqa: S607
                stdin=before or subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Apertium reads bytes as the locale says.
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )
            if before:
                # Ours; a program must see the end of its input when the one before it ends.
                before.close()
            self.programs.append(program)
        first, last = self.programs[0].stdin, self.programs[-1].stdout
        assert first is not None
        assert last is not None
        self.input, self.output = first, last
        os.set_blocking(self.input.fileno(), False)

    def translate(self, text: str, seconds: float) -> str:
        """The translation of the text; PipelineBroken when there is none in time."""
        # No program can read these two: NUL asks for what is there, U+FFFF is taken for the end.
        pieces = re.split("([\0\uffff])", text)
        # An answer belongs to its question when it ends with the same number.
        end = f"[{secrets.token_hex(8)}]\0".encode()
        question = "\0".join(to_stream(piece) for piece in pieces[::2]) + "\0"
        answer = self.exchange(question.encode() + end, end, seconds)
        translated = answer.decode().split("\0")[:-1]
        if len(translated) != len(pieces[::2]):
            raise PipelineBroken("the answer has another number of parts than the question")
        pieces[::2] = [from_stream(piece) for piece in translated]
        return "".join(pieces)

    def exchange(self, question: bytes, end: bytes, seconds: float) -> bytes:
        """What the pipeline answers before `end`; reads while it writes, or both would wait."""
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
                        raise PipelineBroken(self.who_ended())
                    answer += piece
                elif event & select.POLLERR:
                    raise PipelineBroken(self.who_ended())
                else:
                    unsent = unsent[os.write(number, unsent[: 1 << 16]) :]
                    if not unsent:
                        ready.unregister(number)
        return bytes(answer[: -len(end)])

    def who_ended(self) -> str:
        """A sentence about the program that ended by itself, as far as can be seen."""
        for name, program in zip(self.names, self.programs, strict=True):
            # The others end with 0 when their input ends, or by SIGPIPE when their reader does.
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
    """The command lines in a mode file, set to run for ever and to leave unknown words unmarked."""
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


# Apertium's marks; white space that is more than one blank; and ~, which it would swallow.
NOT_PLAIN = re.compile(r"[\[\]{}^$/\\@<>]|(?! (?!\s))\s+|~")


def to_stream(text: str) -> str:
    """The text in Apertium's notation, with the end of a sentence after it and at blank lines."""

    def noted(found: re.Match[str]) -> str:
        mark = found[0]
        if not (mark.isspace() or mark == "~"):
            return "\\" + mark
        return f".[][{mark}]" if mark.count("\n") > 1 else f"[{mark}]"

    return NOT_PLAIN.sub(noted, text) + ".[]"


# The stop that to_stream() added is part of a word where it made an abbreviation: "Mr".
NOTATION = re.compile(r"\\(.)|\.?\[\]|\[([^\]]*)\]", re.DOTALL)


def from_stream(answer: str) -> str:
    """The plain text of an answer."""
    return NOTATION.sub(lambda found: found[1] or found[2] or "", answer)
