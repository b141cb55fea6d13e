"""What the hot path asks of the server is counted, beside nothing and beside 200,000 dead rows."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from bench.filling import Kind, filling
from partway.app.requests.admission import read_active_totals
from partway.app.requests.answer import read_answer
from partway.app.requests.watch import PROGRESS
from partway.batch import gauges
from partway.batch.reaper import overdue
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database, expand_lists
from partway.store.loop import FIRST_WAIT_SECONDS
from partway.store.settings import DatabaseSettings, read_address
from partway.store.start import open_database
from partway.worker.choice import Choice
from partway.worker.fleet import PRESENT_SECONDS, Fleet
from partway.worker.lease import Ready
from partway.worker.settings import WorkerSettings
from tests.actions import TENANT, Programs, exchanged, statuses, submitted, wait_until, worked
from tests.conftest import AnyServer

pytestmark = pytest.mark.fresh_tables

IDLE_SECONDS = 0.2

SEGMENTS = 100
LIVE_REQUESTS = 5

LOOK = "look of the app at five requests"

COUNTERS = """
SHOW SESSION STATUS
WHERE Variable_name LIKE 'Handler_read%%'
   OR Variable_name = 'Questions'
"""


@pytest.fixture
async def one(url: str) -> AsyncIterator[Database]:
    """A fresh database behind a single connection, which counts all that is done with it."""
    async with open_database(DatabaseSettings(database_url=url, pool_size=1)) as db:
        yield db


async def counters(one: Database) -> tuple[int, int]:
    """How many rows this session has read, by whatever access, and how many statements it sent."""
    found = {row["Variable_name"]: int(row["Value"]) for row in await one.read(COUNTERS)}
    statements = found.pop("Questions")
    return sum(found.values()), statements


async def counted(one: Database, act: Awaitable[Any]) -> tuple[int, int]:
    """The rows that an act reads and the statements that it sends."""
    first = await counters(one)
    before = await counters(one)
    await act
    after = await counters(one)
    # What asking adds is what it added just before.
    rows, statements = (2 * b - a for a, b in zip(first, before, strict=True))
    return after[0] - rows, after[1] - statements


async def costs(one: Database) -> dict[str, tuple[int, int]]:
    """The rows and statements of each part of the hot path, on the same few live requests."""
    live = [(await submitted(one, SEGMENTS)) for _ in range(LIVE_REQUESTS)]
    numbers = [number for number, _ in live]
    (first, name), (second, _) = live[:2]
    found = {"claim": await counted(one, exchanged(one, [], first, 1))}
    (lease,) = (await exchanged(one, [], second, 1)).claimed
    ready = [Ready(lease, "done")]
    found["write-back and claim"] = await counted(one, exchanged(one, ready, second, 1))
    found["list of the worker"] = await counted(one, Choice(3).next(one))
    look = one.read(expand_lists(PROGRESS, LIVE_REQUESTS), numbers)
    found[LOOK] = await counted(one, look)
    found["look for room"] = await counted(one, read_active_totals(one, TENANT, 1000))
    found["look of the batch for the overdue"] = await counted(one, overdue(one, 5))
    await worked(one, first, SEGMENTS - 1)
    found["close"] = await counted(one, close(one, first, "completed"))
    found["answer"] = await counted(one, read_answer(one, TENANT, name))
    found["settlement"] = await counted(one, settle(one, first, 0))
    for number in numbers[1:]:
        await close(one, number, "abandoned")
        assert await settle(one, number, 0) == "settled"
    assert await one.read("SELECT 1 FROM requests WHERE id IN (%s, %s)", (first, second)) == []
    return found


async def add_dead(one: Database, segments: int) -> None:
    """So many dead rows more, half of them done and not settled, half cancelled."""
    kinds: tuple[Kind, ...] = ("done", "cancelled")
    for kind in kinds:
        for together in filling(kind, segments // 2 // SEGMENTS, SEGMENTS, characters=40):
            for statement, values in together:
                await one.write(statement, values)


# Rows: a claim reads to its segment, settlement its hundred rows three times (lock, count, delete)
# and the others once. The servers count a few more for each request, and for what they sort.
# Statements: BEGIN and COMMIT are two of them, where there is more than one.
MOST = {
    "claim": (4, 4),
    "write-back and claim": (6, 5),
    "list of the worker": (10 * LIVE_REQUESTS, 1),
    LOOK: (LIVE_REQUESTS * (SEGMENTS + 4), 1),
    "look for room": (3 * LIVE_REQUESTS, 1),
    "look of the batch for the overdue": (2, 1),
    "close": (SEGMENTS + 4, 1),
    "answer": (SEGMENTS + 6, 2),
    "settlement": (3 * SEGMENTS + 11, 8),
}


@pytest.mark.snapshot_isolation
async def test_the_hot_path_reads_no_more_beside_two_hundred_thousand_dead_rows(
    one: Database,
) -> None:
    found = {}
    for dead in (0, 10_000, 200_000):
        await add_dead(one, dead - await rows_there(one))
        assert await rows_there(one) == dead
        # Twice, for a server that knows more of its tables may choose another plan.
        found[dead, "as it grew"] = await costs(one)
        await one.read("ANALYZE TABLE requests, segments")
        found[dead, "analysed"] = await costs(one)

    too_much = {
        (dead, when, what): cost
        for (dead, when), each in found.items()
        for what, cost in each.items()
        for rows, statements in [MOST[what]]
        if cost[0] > rows or cost[1] > statements
    }
    assert too_much == {}


async def test_what_the_gauges_cost_is_the_same_beside_twenty_times_the_dead_rows(
    one: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As they are, each is larger than what a test has time to fill a table with.
    monkeypatch.setattr(gauges, "REQUESTS_COUNTED", 4)
    monkeypatch.setattr(gauges, "REQUESTS_READ", 3)
    monkeypatch.setattr(gauges, "SEGMENTS_COUNTED", 150)
    for _ in range(LIVE_REQUESTS):
        await submitted(one, SEGMENTS)
    live = LIVE_REQUESTS * SEGMENTS
    found = set()
    for dead in (1_000, 20_000):
        await add_dead(one, dead + live - await rows_there(one))
        for number in range(dead // 100):
            await Fleet(one, WorkerSettings(handler="sleep", name=f"{dead}-{number}")).step()
        found.add(await counted(one, gauges.read_gauges(one, 60)))
        await one.read("ANALYZE TABLE requests, segments, workers")
        found.add(await counted(one, gauges.read_gauges(one, 60)))

    assert await rows_there(one) == 20_000 + live
    ((rows, statements),) = found
    assert statements == 4
    # What is limited is read once from its table, and once more to be counted.
    assert rows <= 2 * (150 + 3 + 4 + 3 * 4 + 4) + 30


async def rows_there(one: Database) -> int:
    """How many segments there are."""
    return int((await one.read("SELECT COUNT(*) AS n FROM segments"))[0]["n"])


async def test_an_idle_worker_sends_no_more_statements_than_its_settings_allow(
    one: Database, programs: Programs
) -> None:
    # In a fleet in which each rests for as long as it may.
    for number in range(30):
        other = WorkerSettings(handler="sleep", name=f"other-{number}")
        await Fleet(one, other).step()
    worker = await programs.worker(WORKER_IDLE_SECONDS=IDLE_SECONDS)
    asked = 0

    async def sent() -> int:
        nonlocal asked
        asked += 1
        (row,) = await one.read("SHOW GLOBAL STATUS LIKE 'Questions'")
        return int(row["Value"]) - asked

    began = time.monotonic()
    before = await sent()

    async def enough() -> int:
        found = await sent() - before
        return found if found >= 20 else 0

    found = await wait_until(enough, "twenty statements of the worker")
    elapsed = time.monotonic() - began

    assert worker.process.poll() is None
    # A rest lasts half of the longest at least; the first ones are short, and there is a sign of
    # life of two statements, and one more of the first.
    looks = elapsed / (IDLE_SECONDS / 2) + math.log2(IDLE_SECONDS / FIRST_WAIT_SECONDS) + 2
    signs = 2 * (elapsed / (PRESENT_SECONDS / 2) + 1) + 1
    assert found <= looks + signs


def connections(server: AnyServer, url: str) -> int:
    """How many connections there are to the database of this URL."""
    name = read_address(url).database
    return sum(row[3] == name for row in server.execute("SHOW PROCESSLIST"))


async def test_fifty_waiting_calls_hold_none_of_a_nodes_connections(
    server: AnyServer, url: str, one: Database, programs: Programs
) -> None:
    client = await programs.app(POOL_SIZE=1)
    ours = connections(server, url) - 1
    body = {"segments": ["one", "two"], "deadline_ms": 3000}
    calls = [asyncio.create_task(client.post("/v1/requests", json=body)) for _ in range(50)]
    most = 0

    async def all_wait() -> bool:
        nonlocal most
        most = max(most, connections(server, url) - ours)
        rows = await one.read("SELECT COUNT(*) AS n FROM requests WHERE status = 'active'")
        return bool(rows[0]["n"] == 50)

    # Each of them was stored over the one connection while those before it waited.
    await wait_until(all_wait, "fifty calls that wait")
    assert (await client.get("/readyz")).status_code == 200
    assert not any(call.done() for call in calls)
    answers = await asyncio.gather(*calls)

    assert {answer.json()["status"] for answer in answers} == {"partial"}
    assert most == 1


async def test_a_worker_under_load_has_no_more_connections_than_its_pool(
    server: AnyServer, url: str, one: Database, programs: Programs
) -> None:
    ours = connections(server, url)
    requests = [(await submitted(one, 50, params='{"seconds": 0.1}'))[0] for _ in range(6)]
    await programs.worker(concurrency=50, POOL_SIZE=1)
    most = 0

    async def all_done() -> bool:
        nonlocal most
        most = max(most, connections(server, url) - ours)
        return {word for number in requests for word in await statuses(one, number)} == {"done"}

    await wait_until(all_done, "all segments to be done")
    assert most == 1
