"""A line of a log says what was decided and for whom, and never what a document says."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from partway.store.database import Database
from partway.store.log import FIELDS
from partway.store.settings import LogSettings
from partway.worker.handler import Context, Reject, Retry
from tests.actions import ROOT, TENANT, Program, Programs, submitted, wait_until

# A line is the program's own, whichever server holds the rows.
pytestmark = pytest.mark.one_server

SECRET = "Xanthippe"

# RFC 3339, UTC, to the microsecond: as the answers write times.
TS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Blabs:
    """A handler that repeats its text wherever it can, one way in each segment."""

    def __init__(self) -> None:
        self.heard = ""

    def __call__(self, text: str, ctx: Context) -> str:
        """The text, or an error that holds it."""
        self.heard = text
        match ctx.index:
            case 1:
                raise ValueError(text)
            case 2:
                raise Reject("no", text)
            case 3:
                raise Retry(0.1, text)
            case 4:
                return text * 100
        return text

    def healthy(self) -> bool:
        """An error that holds the text."""
        raise RuntimeError(self.heard)

    def close(self) -> None:
        """The same."""
        raise RuntimeError(self.heard)


def lines(said: str) -> list[dict[str, Any]]:
    """The lines of a log that is JSON throughout."""
    return [json.loads(line) for line in said.splitlines()]


def a_run(
    code: str, stderr: int = subprocess.PIPE, **settings: str
) -> subprocess.CompletedProcess[str]:
    """What became of a program of these lines, which begin with a started log."""
    begin = (
        "import logging\nfrom partway.store.log import start_log\n"
        "from partway.store.settings import LogSettings\n"
        "start_log('test', LogSettings().log_format)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", begin + code],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("PARTWAY_")} | settings,
        stderr=stderr,
        text=True,
        timeout=60,
    )


def test_a_line_is_json_with_the_members_that_apply() -> None:
    extra = {"request_id": "letter-18", "index": 0, "duration_ms": 12}

    (line,) = lines(a_run(f"logging.warning('lease %s', 'lost', extra={extra})").stderr)

    assert TS.fullmatch(line.pop("ts"))
    assert line == {"level": "warning", "program": "test", "event": "lease lost", **extra}


def test_what_has_no_name_among_the_fields_is_not_written() -> None:
    said = a_run(f"logging.error('met it', extra={{'document': '{SECRET}'}})").stderr

    assert lines(said)[0]["event"] == "met it"
    assert SECRET not in said
    assert not {"document", "text", "source", "result", "params", "error"} & {*FIELDS}


def test_a_fault_is_told_by_its_place_and_kind_without_any_message() -> None:
    said = a_run(
        """
def refused(text):
    try:
        raise ExceptionGroup(text, [OSError(28, text), ValueError(text)])
    except ExceptionGroup as group:
        raise LookupError(text) from group

try:
    refused("Xan" + "thippe")
except LookupError:
    logging.exception("this failed")
"""
    ).stderr

    (line,) = lines(said)
    kinds = re.findall(r"^(?:\w+Error|ExceptionGroup)\b.*$", line["fault"], re.MULTILINE)
    assert line["event"] == "this failed"
    assert kinds == ["OSError 28", "ValueError", "ExceptionGroup", "LookupError"]
    assert "in refused" in line["fault"]
    assert SECRET not in said


def test_what_asyncio_adds_about_a_forgotten_task_is_left_out() -> None:
    said = a_run(
        """
import asyncio

async def fails():
    raise ValueError("Xan" + "thippe")

async def main():
    await asyncio.wait([asyncio.create_task(fails())])

asyncio.run(main())
"""
    ).stderr

    (line,) = lines(said)
    assert line["event"] == "Task exception was never retrieved"
    assert line["fault"].endswith("ValueError")
    assert SECRET not in said


def test_a_program_that_ends_by_a_fault_says_so_in_one_line() -> None:
    ended = a_run(f"raise ValueError({SECRET!r})")

    (line,) = lines(ended.stderr)
    assert ended.returncode == 1
    assert (line["level"], line["event"]) == ("critical", "unhandled exception, exiting")
    assert line["fault"].endswith("ValueError")


def test_people_can_have_it_plain() -> None:
    code = "logging.warning('lease lost', extra={'request_id': 'letter-18', 'index': 0})"

    said = a_run(code, PARTWAY_LOG_FORMAT="text").stderr

    at, rest = said.split(" ", 1)
    assert TS.fullmatch(at)
    assert rest == "WARNING test: lease lost request_id=letter-18 index=0\n"


def test_a_terminal_is_for_people_and_anything_else_for_machines() -> None:
    ours, theirs = pty.openpty()
    try:
        a_run("logging.error('it')", stderr=theirs)
        shown = os.read(ours, 10_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)

    assert LogSettings().log_format == "auto"
    assert " ERROR test: it" in shown
    assert lines(a_run("logging.error('it')").stderr)[0]["event"] == "it"


@pytest.mark.parametrize("program", ["app", "worker", "batch", "usage"])
def test_a_wrong_format_is_refused_by_name(program: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "partway", program],
        cwd=ROOT,
        env={**os.environ, "PARTWAY_LOG_FORMAT": "xml"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ended.returncode == 2
    assert ended.stderr.startswith(f"{program}: PARTWAY_LOG_FORMAT: ")
    assert len(ended.stderr.splitlines()) == 1


async def test_no_log_of_any_program_holds_the_text_of_a_document(
    db: Database, programs: Programs
) -> None:
    worker = await programs.worker(
        f"{__name__}:Blabs", 2, WORKER_MAX_OUTPUT_CHARACTERS=500, WORKER_RETRY_SECONDS=0
    )
    client = await programs.app()
    batch = await programs.batch()
    body = {
        "segments": [f"{SECRET} {number}" for number in range(6)],
        "params": {"about": SECRET},
        "deadline_ms": 20_000,
    }

    answer = (await client.put("/v1/requests/letter-18", json=body)).json()
    # What is not understood is not repeated either.
    for wrong in (f'{{"document": "{SECRET}', json.dumps({SECRET: SECRET})):
        refused = await client.post(
            "/v1/requests", content=wrong, headers={"Content-Type": "application/json"}
        )
        assert refused.status_code in (400, 422)
    await until_settled(db)
    for program in (worker, client.program, batch):
        program.send(signal.SIGTERM)
        await program.ended()

    errors = [segment["error"] or "" for segment in answer["segments"]]
    assert [SECRET in error for error in errors] == [False, True, True, True, False, False]
    assert "has 1100 characters" in errors[4]
    assert answer["counts"]["done"] == 2
    said = {program.log.name: program.said() for program in programs.all}
    assert {name for name, log in said.items() if SECRET in log} == set()
    ended = [line for line in lines(worker.said()) if line["event"] == "attempt ended"]
    assert {line["outcome"] for line in ended} == {"done", "failed", "rejected", "retry"}


async def until_settled(db: Database) -> None:
    """Come back once no request is left."""

    async def none_left() -> bool:
        return not await db.read("SELECT id FROM requests")

    await wait_until(none_left, "the settlement")


async def test_one_request_is_followed_through_the_logs_of_all_programs(
    db: Database, programs: Programs
) -> None:
    """The app's lines have the caller's id and the number in the rows, so either finds the rest."""
    worker = await programs.worker(concurrency=1, SLEEP_SECONDS=0)
    client = await programs.app()
    await client.put("/v1/requests/letter-18", json={"segments": ["one", "two"]})
    request_no, _ = await submitted(db, 1, public_id="left-alone", deadline_ms=1)
    batch = await programs.batch(BATCH_GRACE_SECONDS=0)
    await batch.says("closed as abandoned")
    await worker.says('"index": 1')

    stored, answered = about(client.program, "letter-18")
    assert (stored["event"], answered["event"]) == ("request stored", "request answered")
    assert (answered["outcome"], answered["segments"]) == ("completed", 2)
    attempts = about(worker, "letter-18")
    assert {line["index"] for line in attempts} == {0, 1}
    for line in attempts:
        assert line["owner"].endswith(str(worker.process.pid))
        assert (line["attempt"], line["outcome"], line["tenant"]) == (1, "done", TENANT)
        assert line["duration_ms"] >= 0
    assert {line["request_no"] for line in (stored, *attempts)} == {answered["request_no"]}
    (closed,) = about(batch, "left-alone")
    assert (closed["event"], closed["request_no"]) == ("closed as abandoned", request_no)


async def test_a_cancel_is_a_decision_that_is_told_once(db: Database, programs: Programs) -> None:
    client = await programs.app()
    await submitted(db, 1, public_id="letter-19")

    for _ in range(2):
        assert (await client.delete("/v1/requests/letter-19")).status_code == 200

    assert [line["event"] for line in about(client.program, "letter-19")] == ["request cancelled"]


def about(program: Program, request_id: str) -> list[dict[str, Any]]:
    """The lines of a program that name this request, all of its log being JSON."""
    return [line for line in lines(program.said()) if line.get("request_id") == request_id]
