"""The command `partway` loads what it needs, ends in order, and says what is wrong in one line."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

import partway
from partway.command import COMMANDS
from partway.store.database import Database
from tests.actions import WAIT_SECONDS, Programs, statuses, submitted, wait_until
from tests.store.test_start import endings

# The command is one, whichever server holds the rows.
pytestmark = pytest.mark.one_server

COMMAND = str(Path(sys.executable).with_name("partway"))


def ended(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """How the installed command with these words ended."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PARTWAY_")}
    return subprocess.run(
        [COMMAND, *words],
        env={**ours, **settings},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def loaded_by(code: str) -> set[str]:
    """The modules that are loaded once a fresh Python has run this."""
    said = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_SECONDS,
    )
    return set(said.stdout.split())


# Names.


def test_every_public_name_can_be_imported_and_is_listed() -> None:
    for name in partway.__all__:
        assert getattr(partway, name).__module__.startswith("partway.") or name == "Event"
    assert set(partway.__all__) <= set(dir(partway))
    assert partway.__version__ == version("partway")
    with pytest.raises(AttributeError, match="module 'partway' has no attribute 'Nothing'"):
        partway.Nothing  # type: ignore[attr-defined] # noqa: B018


def test_the_names_of_a_handler_load_no_http_and_those_of_a_caller_no_server() -> None:
    alone = loaded_by("import partway")
    handler = loaded_by("from partway import Context, Reject, Retry")
    caller = loaded_by("from partway import AsyncPartway, Partway, Segment")

    assert not alone & {"httpx", "click", "pydantic", "typing"}
    assert not handler & {"httpx", "pydantic", "aiomysql"}
    assert "httpx" in caller
    assert not caller & {"fastapi", "aiomysql", "pydantic_settings", "uvloop"}


def test_a_call_from_a_shell_loads_no_server_and_help_loads_no_program() -> None:
    run = "from partway.command import run\nrun([{!r}, '--help'][{}:])"

    send, whole = loaded_by(run.format("send", 0)), loaded_by(run.format("", 1))

    assert "httpx" in send
    assert not send & {"fastapi", "aiomysql", "pydantic_settings", "uvloop"}
    assert not whole & {"httpx", "pydantic", "fastapi", "aiomysql"}


# Words.


def test_help_lists_every_command_and_each_has_its_own() -> None:
    (whole, *each) = endings(None, [("--help",), *((name, "--help") for name in COMMANDS)])

    assert (whole[0], whole[2]) == (0, "")
    for name, (_, about) in COMMANDS.items():
        assert f"  {name} " in whole[1]
        assert about in whole[1]
    assert [(status, said) for status, _, said in each] == [(0, "")] * len(COMMANDS)
    assert [name for name, (_, out, _) in zip(COMMANDS, each, strict=True)
            if f"Usage: partway {name} " not in out] == []  # fmt: skip


def test_the_version_is_that_of_the_package() -> None:
    assert ended("--version").stdout == f"partway {version('partway')}\n"


def test_without_a_word_it_shows_what_there_is() -> None:
    said = ended()

    assert (said.returncode, said.stdout) == (2, "")
    assert "Usage: partway" in said.stderr


def test_a_command_that_is_not_there_is_named_in_one_line() -> None:
    said = ended("sned", "letter.txt")

    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith("partway: No such command 'sned'")
    assert said.stderr.count("\n") == 1


def test_what_a_flag_is_and_what_its_variable_stands_together_in_the_help() -> None:
    said = " ".join(ended("app", "--help", COLUMNS="200").stdout.split())

    assert "--port VALUE The port to listen on. (PARTWAY_APP_PORT; default 8000)" in said
    assert "(PARTWAY_APP_KEYLESS; default off)" in said


# Ends.


@contextmanager
def waiting_for(words: Sequence[str], **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command while it runs; it says each module that it has loaded on standard error."""
    process = subprocess.Popen(
        [COMMAND, *words],
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1", **settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupted_at(
    module: str, words: Sequence[str], **settings: str
) -> tuple[int, list[str], list[str]]:
    """How the command ended by Ctrl-C once it had loaded this: status, output, other errors."""
    with waiting_for(words, **settings) as process:
        assert process.stderr is not None
        said = b""
        ends_at = time.monotonic() + WAIT_SECONDS
        while not said.endswith(b"\n") or f" {module}\n".encode() not in said:
            assert select.select([process.stderr], [], [], ends_at - time.monotonic())[0], said
            piece = os.read(process.stderr.fileno(), 65_536)
            assert piece, said
            said += piece
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=WAIT_SECONDS)
    errors = (said + rest).decode().splitlines()
    return (
        process.returncode,
        out.decode().splitlines(),
        [line for line in errors if not line.startswith("import time:")],
    )


@pytest.mark.parametrize(
    "module",
    [
        "click.core",
        "partway.command",
        "pydantic",
        "httpx",
        "rich.console",
        "partway.client.progress",
    ],
)
def test_ctrl_c_while_the_client_is_loaded_shows_nothing(module: str) -> None:
    # It reads standard input, which stays open, if it is loaded by the time that the signal comes.
    status, out, errors = interrupted_at(module, ["send", "-"])

    assert (out, errors) == ([], [])
    # What a shell calls 130 is -2 where the signal itself has ended the process.
    assert status in (-signal.SIGINT, 130)


@pytest.mark.parametrize(
    "words", [["status"], ["keys", "list"], ["usage"], ["migrate"]], ids=" ".join
)
def test_ctrl_c_while_the_database_is_asked_shows_nothing(words: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"mysql://me:secret@127.0.0.1:{silent.getsockname()[1]}/partway"
        with waiting_for(words, PARTWAY_DATABASE_URL=url) as process:
            silent.settimeout(WAIT_SECONDS)
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                out, said = process.communicate(timeout=WAIT_SECONDS)

    errors = [line for line in said.splitlines() if not line.startswith(b"import time:")]
    assert (process.returncode, out, errors) == (-signal.SIGINT, b"", [])


@pytest.mark.parametrize("words", [["openapi"], ["usage", "--help"]], ids=" ".join)
def test_a_reader_that_has_read_enough_ends_it_quietly(words: list[str]) -> None:
    for_reading, for_writing = os.pipe()
    os.close(for_reading)
    try:
        said = subprocess.run(
            [COMMAND, *words],
            stdout=for_writing,
            stderr=subprocess.PIPE,
            timeout=WAIT_SECONDS,
            check=False,
        )
    finally:
        os.close(for_writing)

    assert (said.returncode, said.stderr) == (1, b"")


def catches_ctrl_c(pid: int) -> bool:
    """Whether a process has a handler for SIGINT, as the kernel knows it."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (mask,) = re.findall(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return bool(int(mask, 16) & 1 << signal.SIGINT - 1)


async def test_a_second_ctrl_c_ends_a_program_at_once_without_a_stack(
    db: Database, programs: Programs
) -> None:
    worker = await programs.worker(concurrency=1, SLEEP_SECONDS=60)
    request_id, _ = await submitted(db, 1)

    async def works() -> bool:
        return await statuses(db, request_id) == ["processing"]

    async def has_begun_to_end() -> bool:
        return not catches_ctrl_c(worker.process.pid)

    await wait_until(works, "the claim")
    assert catches_ctrl_c(worker.process.pid)
    worker.send(signal.SIGINT)
    await wait_until(has_begun_to_end, "the first Ctrl-C to be heard")
    assert worker.process.poll() is None
    worker.send(signal.SIGINT)

    assert await worker.ended() == -signal.SIGINT
    assert "Traceback" not in worker.said()
    assert "critical" not in worker.said()
