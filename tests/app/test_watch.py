"""However many calls of a node wait, they look at the rows as one."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from partway.app.requests.watch import GONE, POLLED_AT_ONCE, PROGRESS, Progress, Watch
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database, Row, Unavailable
from tests.actions import claimed, submitted, wait_until, worked, written


class Counted(Database):
    """The same database, whose reads are counted, and fail while it is `away`."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.reads = 0
        self.asked_for = 0
        self.away = False

    async def read(
        self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[Row]:
        """The rows of one plain read."""
        self.reads += 1
        self.asked_for += len(values)
        if self.away:
            raise Unavailable("away")
        return await self.db.read(statement, values)


async def until_finished(watch: Watch, request_id: int, count: int) -> int:
    """How many looks it took until so many segments of the request were seen to be finished."""
    looks = 1
    while (await watch.next(request_id)).finished < count:
        looks += 1
    return looks


async def test_a_look_shows_how_many_segments_are_finished_and_whether_the_request_is(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 3)
    watch = Watch(db, 0.05)
    assert await watch.next(request_id) == Progress("active", 0)

    await worked(db, request_id, 2)
    await until_finished(watch, request_id, 2)
    await close(db, request_id, "cancelled")

    shown = await watch.next(request_id)
    assert shown == Progress("cancelled", 2)
    assert await settle(db, request_id, 0) == "settled"
    assert await watch.next(request_id) == GONE


async def test_two_hundred_calls_that_wait_for_one_request_look_at_it_once_each_time(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 1)
    (lease,) = await claimed(db, request_id, 1)
    counted = Counted(db)
    watch = Watch(counted, 0.05)

    waiting = [asyncio.create_task(until_finished(watch, request_id, 1)) for _ in range(200)]
    await wait_until(lambda: asyncio.sleep(0, counted.reads >= 3), "three looks")
    await written(db, lease)
    looks = await asyncio.gather(*waiting)

    assert counted.reads == max(looks)
    assert counted.asked_for == counted.reads


async def test_calls_that_wait_for_many_requests_share_their_statements(db: Database) -> None:
    numbers = [(await submitted(db, 1))[0] for _ in range(60)]
    counted = Counted(db)
    watch = Watch(counted, 0.05)

    shown = await asyncio.gather(*(watch.next(number) for number in numbers))

    assert shown == [Progress("active", 0)] * 60
    assert counted.reads == 1
    assert POLLED_AT_ONCE >= 60


async def test_who_waits_for_nothing_is_not_looked_for(db: Database) -> None:
    request_id, _ = await submitted(db, 1)
    counted = Counted(db)
    watch = Watch(counted, 0.02)
    leaver = asyncio.create_task(until_finished(watch, request_id, 1))
    await wait_until(lambda: asyncio.sleep(0, counted.reads >= 2), "two looks")

    leaver.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await leaver
    asked = counted.reads
    looking = watch._polling
    assert looking is not None
    await asyncio.wait_for(looking, 30)

    assert counted.reads <= asked + 1


async def test_who_leaves_takes_nothing_from_those_who_stay(db: Database) -> None:
    request_id, _ = await submitted(db, 1)
    (lease,) = await claimed(db, request_id, 1)
    watch = Watch(db, 0.02)
    leaver, stayer = (asyncio.create_task(until_finished(watch, request_id, 1)) for _ in range(2))
    await watch.next(request_id)

    leaver.cancel()
    await written(db, lease)

    assert await asyncio.wait_for(stayer, 30) >= 1


async def test_while_the_database_is_away_nothing_is_told_and_afterwards_it_is(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 2)
    await worked(db, request_id, 1)
    counted = Counted(db)
    counted.away = True
    watch = Watch(counted, 0.02)
    told = asyncio.create_task(watch.next(request_id))
    await wait_until(lambda: asyncio.sleep(0, counted.reads >= 3), "three looks in vain")
    assert not told.done()

    counted.away = False

    assert await asyncio.wait_for(told, 30) == Progress("active", 1)


async def test_looks_come_early_at_first_and_then_at_the_pace_of_the_setting(
    db: Database,
) -> None:
    """A wait is about a tenth of the time elapsed, and never longer than poll_seconds."""
    request_id, _ = await submitted(db, 1)
    watch = Watch(db, 0.2)
    waits: list[float] = []
    began = asyncio.get_running_loop().time()
    while not waits or waits[-1] < 0.15:
        await watch.next(request_id)
        ((due, _),) = watch._due
        waits.append(due - asyncio.get_running_loop().time())
        elapsed = asyncio.get_running_loop().time() - began
        assert waits[-1] <= max(elapsed / 10, 0.01) + 0.005
    for _ in range(5):
        await watch.next(request_id)
        ((due, _),) = watch._due
        assert due - asyncio.get_running_loop().time() <= 0.2


@pytest.mark.parametrize("count", [1, 3])
async def test_a_look_locks_nothing(db: Database, count: int) -> None:
    """Law 10: it passes a claim that is open and a settlement that holds its rows."""
    numbers = [(await submitted(db, 2))[0] for _ in range(count)]
    async with db.transaction() as cursor:
        await cursor.execute("SELECT * FROM requests FOR UPDATE")
        await cursor.execute("SELECT * FROM segments FOR UPDATE")
        shown = await db.read(
            PROGRESS.replace("(...)", f"({', '.join(map(str, numbers))})"),
        )
    assert [row["finished"] for row in shown] == [0] * count
