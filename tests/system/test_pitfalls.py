"""Pitfalls of other people's queues that no other test meets (docs/pitfalls.md has all of them)."""

import asyncio
import re
import time

import pytest

from partway.store.database import Database
from partway.worker.settings import WorkerSettings
from proof.mutants import MUTANTS
from tests.actions import ROOT, Programs, find_request, statuses, wait_until
from tests.conftest import AnyServer

PROGRAMS = ("app", "worker", "batch", "store")


def sources() -> str:
    """All the code of the programs."""
    files = [path for name in PROGRAMS for path in sorted((ROOT / name).rglob("*.py"))]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


async def test_nobody_holds_a_transaction_while_waiting(
    server: AnyServer, db: Database, programs: Programs
) -> None:
    """L14: one that stays open keeps the server from clearing what was deleted, till it is full."""
    node = await programs.app()
    await programs.worker("tests.told_handlers:told_later", concurrency=2)
    await programs.batch()
    body = {"segments": ["for ever", "for ever"], "deadline_ms": 4000}
    call = asyncio.create_task(node.put("/v1/requests/mine", json=body))

    async def both_run() -> bool:
        request = await find_request(db, "mine")
        return request is not None and (await statuses(db, request.id)).count("processing") == 2

    await wait_until(both_run, "two running segments")
    oldest = 0
    while not call.done():
        # Asked as root: the account of the programs may not see the server's transactions.
        rows = server.execute(
            "SELECT COALESCE(MAX(TIMESTAMPDIFF(SECOND, trx_started, NOW())), 0)"
            " FROM information_schema.innodb_trx"
        )
        oldest = max(oldest, int(rows[0][0]))
        await asyncio.wait([call], timeout=0.05)

    assert (await call).json()["status"] == "partial"
    assert oldest <= 1


async def test_an_idle_connection_is_closed_after_its_time_and_not_before(
    db: Database, programs: Programs
) -> None:
    """H3: a balancer that meets a socket closed sooner than it thinks answers 502."""
    node = await programs.app(APP_KEEP_ALIVE_SECONDS=2)
    host, port = str(node.base_url.host), node.base_url.port
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
        began = time.monotonic()

        assert await asyncio.wait_for(reader.read(), 30) == b""

        assert time.monotonic() - began > 1.5
    finally:
        writer.close()


def test_a_killed_workers_segment_is_back_within_fifteen_seconds_by_default() -> None:
    """By the settings: a lease, the time a request is set aside, and one look for work."""
    settings = WorkerSettings(handler="sleep")

    longest = settings.lease_seconds + settings.backoff_seconds + settings.idle_seconds

    assert longest <= 15


def test_no_statement_turns_an_error_into_a_warning() -> None:
    """X6: INSERT IGNORE, meant for duplicates, swallows truncation too."""
    assert re.findall(r"(?i)\b(INSERT|UPDATE|REPLACE)\s+(IGNORE|INTO\s+IGNORE)\b", sources()) == []
    assert re.findall(r"(?m)^REPLACE\s", sources()) == []


def test_no_lease_or_deadline_is_compared_with_a_programs_own_clock() -> None:
    """T6: the only wall clock is the one that a Retry-After date of another server is read by."""
    found = re.findall(
        r"\b(?:time\.time|datetime\.now|datetime\.utcnow|time\.localtime)\(", sources()
    )

    assert found == ["datetime.now("]


@pytest.mark.parametrize("page", ["pitfalls.md", "mutants.md"])
def test_every_test_that_a_page_names_is_there(page: str) -> None:
    table = (ROOT / "docs" / page).read_text(encoding="utf-8")

    named = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", table)
    gone = [
        f"{file}::{name}"
        for file, name in named
        if f"def {name}(" not in (ROOT / "tests" / file).read_text(encoding="utf-8")
    ]

    assert len(named) > 40
    assert gone == []


def test_every_line_that_a_mutant_takes_out_is_in_its_file_once() -> None:
    lost = [m.guards for m in MUTANTS if (ROOT / m.path).read_text().count(m.line) != 1]

    assert lost == []
