"""Apertium stays resident, gives each question its own answer, and no text can break it."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partway.worker.handler import Context, Reject
from partway.worker.handlers.apertium import Apertium, Pipeline, PipelineBroken, programs_of
from tests.worker.test_compute import computing, is_gone, until, work


@pytest.fixture(scope="module")
def apertium() -> Iterator[Apertium]:
    """The handler, set up once, as in a child."""
    handler = Apertium()
    handler.setup()
    yield handler
    handler.close()


def translate(handler: Apertium, text: str, seconds: float = 20, **params: Any) -> str:
    """The translation of one segment."""
    return handler(text, Context(params, 0, 1, time.monotonic() + seconds))


def running(handler: Apertium) -> Pipeline:
    """The pipeline of the pair of the settings, running."""
    translate(handler, "Hello.")
    return handler.pipelines["eng-spa"]


SENTENCES = [
    "The cat sat on the mat.",
    "The red house is bigger than the old one, isn't it?",
    "We have not seen Xyzzy for 3.5 years!",
    "Mr. Smith takes off his hat; Mrs. Smith doesn't.",
    '"Where do you live?" she asked (twice).',
    "No full stop",
    "Two sentences. In one segment.",
    "the cat\n\ndog",
]


@pytest.mark.parametrize("text", SENTENCES)
def test_it_says_what_the_apertium_command_says(apertium: Apertium, text: str) -> None:
    command = ["apertium", "-u", "eng-spa"]
    said = subprocess.run(
        command, input=text, capture_output=True, text=True, check=True, timeout=60
    )

    assert translate(apertium, text) == said.stdout


def test_the_other_direction_is_a_matter_of_params(apertium: Apertium) -> None:
    assert translate(apertium, "El gato.", source="spa", target="eng") == "The cat."
    assert translate(apertium, "The cat.") == "El gato."


@pytest.mark.parametrize("source", ["fra", "../modes/eng", 5, None, ["eng"]])
def test_a_pair_that_is_not_installed_is_rejected(apertium: Apertium, source: Any) -> None:
    with pytest.raises(Reject, match=r"^unknown_pair: .* is not installed; .*eng-spa, spa-eng"):
        translate(apertium, "x", source=source)


@pytest.mark.parametrize(
    "text, result",
    [
        ("a\n\nb", "Un\n\nb"),
        ("The cat.\n\n\n \tThe house.\r\n\r\nThe cat.\n", None),
        ("  The\tred \n house  ", None),
        ("\n\nHello\n\n", "\n\nHola\n\n"),
        ("The\u00a0cat.\u3000The\u2028house.", None),
        ("", ""),
        (" ", " "),
        ("\n", "\n"),
        (" " * 5000, " " * 5000),
    ],
)
def test_white_space_stays_where_it_was(apertium: Apertium, text: str, result: str | None) -> None:
    translated = translate(apertium, text)

    assert "".join(filter(str.isspace, translated)) == "".join(filter(str.isspace, text))
    assert result is None or translated == result


SAME = ["[", "]", "{", "}", "^", "$", "/", "\\", "@", "<", ">", "*", "~", "#", "+", "&", "\0"]
SAME += ["\uffff", "\ufffe", "\ufeff", "[]", ".[]", "[[]]", "\\[", "\\\\", "C:\\x", "\0\0", "\\\0"]
SAME += ["😀", "e\u0301", "中文", "\U0010ffff", "\x01\x7f", "^x/y$", "x" * 5000, "[" * 5000, "..."]


@pytest.mark.parametrize("text", SAME, ids=lambda text: ascii(text)[:20])
def test_marks_of_the_stream_come_through_as_text(apertium: Apertium, text: str) -> None:
    assert translate(apertium, text) == text
    # A mark that broke the stream would show in the next answer at the latest.
    assert translate(apertium, f"The {text} cat.").endswith("ato.")
    assert translate(apertium, "The cat.") == "El gato."


def test_marks_around_words_leave_the_words_translated(apertium: Apertium) -> None:
    assert translate(apertium, "^a$") == "^Un$"
    assert translate(apertium, "a\0b") == "Un\0b"
    assert translate(apertium, "{[cat]}~cat") == "{[Gato]}~gato"
    assert translate(apertium, "the *cat") == "El *gato"


def test_no_mark_is_lost_or_made_in_300_hostile_texts(apertium: Apertium) -> None:
    chance = random.Random(11)
    marks = "[]{}^$/\\@<>*~#+&\0\uffff"
    for _ in range(300):
        text = "".join(chance.choice(marks + " \n\tab.") for _ in range(chance.randint(1, 60)))
        translated = translate(apertium, text)

        assert sorted(c for c in translated if c in marks) == sorted(
            c for c in text if c in marks
        ), ascii(text)


def test_a_long_text_is_read_while_it_is_written(apertium: Apertium) -> None:
    """More than the pipes hold: who writes all before reading waits for ever."""
    translated = translate(apertium, "The cat sat. " * 40_000, seconds=120)

    assert translated == "El gato sentó. " * 40_000


@pytest.mark.parametrize("place", [0, 4, -1])
def test_a_pipeline_whose_program_dies_fails_the_segment_and_is_started_again(
    apertium: Apertium, place: int
) -> None:
    pipeline = running(apertium)
    os.kill(pipeline.programs[place].pid, signal.SIGKILL)
    pipeline.programs[place].wait()

    with pytest.raises(PipelineBroken, match=f"^{pipeline.names[place]} ended with status -9$"):
        translate(apertium, "The cat.")
    assert translate(apertium, "The cat.") == "El gato."
    assert all(program.returncode is not None for program in pipeline.programs)


def test_a_pipeline_that_hangs_is_given_up_in_time(apertium: Apertium) -> None:
    pipeline = running(apertium)
    os.kill(pipeline.programs[3].pid, signal.SIGSTOP)

    with pytest.raises(PipelineBroken, match=r"^Apertium gave no answer in 0\.[23] s$"):
        translate(apertium, "The cat.", seconds=0.3)
    assert translate(apertium, "The cat.") == "El gato."
    assert all(program.returncode is not None for program in pipeline.programs)


def test_an_answer_belongs_to_its_question(apertium: Apertium) -> None:
    """What is left over from another question must not be taken for this one's answer."""
    pipeline = running(apertium)
    os.set_blocking(pipeline.input.fileno(), True)
    os.write(pipeline.input.fileno(), b"House.[]\0")

    # It comes first and makes one part too many, which is seen.
    with pytest.raises(PipelineBroken, match="another number of parts"):
        translate(apertium, "The cat.")
    assert translate(apertium, "The cat.") == "El gato."


def test_a_mode_file_becomes_command_lines() -> None:
    mode = "lt-proc 'a b.bin' | apertium-tagger -g $2 'x.prob' | lt-proc $1 'y.bin'"

    assert programs_of(mode) == [
        ["lt-proc", "-z", "a b.bin"],
        ["apertium-tagger", "-z", "-g", "x.prob"],
        ["lt-proc", "-z", "-n", "y.bin"],
    ]


def test_setup_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARTWAY_APERTIUM_MODES", str(tmp_path))

    with pytest.raises(ValueError, match="'eng-spa' is not installed; no pair found in"):
        Apertium().setup()


def test_setup_says_that_apertium_does_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "eng-spa.mode").write_text("no-such-program 'x' | lt-proc 'no-such-file'")
    monkeypatch.setenv("PARTWAY_APERTIUM_MODES", str(tmp_path))

    with pytest.raises(PipelineBroken, match="no-such-program ended with status 127"):
        Apertium().setup()


async def test_programs_end_with_a_killed_child_even_if_they_hang() -> None:
    async with computing("apertium") as compute:
        child = compute._children[0].process.pid
        programs = programs_under(child)
        assert len(programs) == 11
        for program in programs:
            os.kill(program, signal.SIGSTOP)
        os.kill(child, signal.SIGKILL)

        await until(lambda: all(is_gone(program) for program in programs))
        # They go a moment before it does, and what it is given in that moment dies with it.
        await until(lambda: all(one.process.pid != child for one in compute._children))
        assert (await compute.run(work("The cat."))).result == "El gato."


def programs_under(parent: int) -> list[int]:
    """The processes that this one has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(child) for child in children.split()]
