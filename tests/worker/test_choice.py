"""Which request comes first decides who is answered whole: the invariants of the policy."""

import asyncio
import time
from collections import Counter

import pytest

from partway.store.database import Database
from partway.worker.choice import Choice
from partway.worker.lease import give_back
from tests.actions import claimed, exchanged, expire, statuses, submitted, wait_until


async def claims(db: Database, choice: Choice, count: int) -> list[tuple[int, int]]:
    """What `count` claims get, one segment at a time, from a list read afresh for each."""
    got: list[tuple[int, int]] = []
    while len(got) < count:
        choice.refresh()
        active = await choice.next(db)
        if active is None:
            return got
        leases = await claimed(db, active.id)
        if not leases:
            choice.back_off(active.id)
        got += [(lease.request_id, lease.index_no) for lease in leases]
    return got


async def test_the_smaller_request_is_emptied_first_and_each_in_order(db: Database) -> None:
    large, _ = await submitted(db, 500)
    small, _ = await submitted(db, 5)

    got = await claims(db, Choice(3), 25)

    assert got == [(small, i) for i in range(5)] + [(large, i) for i in range(20)]


async def emptied(db: Database, choice: Choice, at_once: int) -> list[int]:
    """The index numbers that come until there is nothing to ask for, so many at a time."""
    got: list[int] = []
    while (active := await choice.next(db)) is not None:
        brought = await exchanged(db, (), active.id, at_once, first_index=active.first_index)
        indexes = [lease.index_no for lease in brought.claimed]
        choice.note_claimed(active, indexes, nothing_left=len(indexes) < at_once)
        got += indexes
    return got


async def test_a_large_request_is_asked_on_from_the_hundred_that_was_reached(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 350)
    await claimed(db, request_id, 250)
    choice = Choice(3)

    active = await choice.next(db)
    assert active is not None
    assert active.first_index == 0
    choice.note_claimed(active, range(240, 250), nothing_left=False)

    again = await choice.next(db)
    assert again is not None
    assert again.first_index == 200
    assert await emptied(db, choice, 10) == list(range(250, 350))


async def test_what_comes_back_far_behind_is_found_before_a_large_request_is_set_aside(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 350)
    lost = await claimed(db, request_id, 3)
    choice = Choice(60)
    active = await choice.next(db)
    assert active is not None
    choice.note_claimed(active, range(200, 210), nothing_left=False)
    for lease in lost:
        assert await give_back(db, lease)

    got = await emptied(db, choice, 20)

    # What lies ahead first, then the three and all else that was passed over.
    assert got == [*range(200, 350), *range(200)]
    assert await choice.next(db) is None


async def test_a_tenant_with_many_requests_leaves_its_share_to_another(db: Database) -> None:
    for _ in range(50):
        await submitted(db, 1, tenant="many")
    one, _ = await submitted(db, 50, tenant="one")

    got = await claims(db, Choice(3), 40)

    # Two thirds on average, for the many are asked in vain once for each that they give; further
    # off than this is a chance of less than one in ten thousand.
    assert 12 <= Counter(number for number, _ in got)[one] <= 38


async def test_what_cannot_be_finished_in_time_is_left_to_expire(db: Database) -> None:
    for _ in range(100):
        await submitted(db, 1, deadline_ms=1500)
    later, _ = await submitted(db, 1, deadline_ms=60_000)
    choice = Choice(3)
    for _ in range(8):
        choice.note_run(2.0)

    active = await choice.next(db)

    assert active is not None
    assert active.id == later


async def test_a_worker_that_was_too_slow_for_every_deadline_tries_again(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins nothing, so no run of its own will ever say that it is quick again."""
    request_id, _ = await submitted(db, 1, deadline_ms=20_000)
    choice = Choice(3)
    for _ in range(8):
        choice.note_run(30.0)
    assert await choice.next(db) is None

    monkeypatch.setattr("partway.worker.choice.RUNS_SECONDS", 0.1)

    async def is_tried() -> bool:
        active = await choice.next(db)
        return active is not None and active.id == request_id

    await wait_until(is_tried, "the worker tries again")


async def test_work_behind_many_requests_that_all_run_is_found_within_one_list(
    db: Database,
) -> None:
    """A short list would be full of the 120 and hide the one behind them."""
    for _ in range(120):
        await submitted(db, 1)
    await db.write(
        "UPDATE segments SET status = 'processing', lease_until = NOW(6) + INTERVAL 60 SECOND"
    )
    behind, _ = await submitted(db, 2)

    assert await claims(db, Choice(3), 1) == [(behind, 0)]


async def test_an_empty_request_is_asked_once_and_again_when_its_time_aside_is_over(
    db: Database,
) -> None:
    request_id, _ = await submitted(db, 1)
    await claimed(db, request_id)
    choice = Choice(0.3)

    first = await choice.next(db)
    assert first is not None
    choice.back_off(first.id)
    began = time.monotonic()
    asked = 0
    while (again := await choice.next(db)) is None:
        asked += 1
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.01)
        assert time.monotonic() - began < 30

    assert asked > 1
    assert again.id == request_id
    assert time.monotonic() - began >= 0.3
    await expire(db, request_id)
    assert await claims(db, choice, 1) == [(request_id, 0)]


async def test_a_retry_that_waits_is_asked_for_when_its_turn_comes(db: Database) -> None:
    """Its request is not set aside for longer than the retry waits."""
    request_id, _ = await submitted(db, 1)
    choice = Choice(60)

    choice.back_off(request_id, 0.0)

    active = await choice.next(db)
    assert active is not None
    assert active.id == request_id


async def test_time_left_is_compared_with_the_median_of_eight_runs_or_more(db: Database) -> None:
    short, _ = await submitted(db, 1, deadline_ms=900)
    long, _ = await submitted(db, 2, deadline_ms=20_000)
    choice = Choice(3)

    active = await choice.next(db)
    assert active is not None
    assert active.id == short

    for _ in range(7):
        choice.note_run(2.0)
    assert choice.minimum_seconds() == 0.0
    choice.note_run(2.0)
    assert choice.minimum_seconds() == 2.0

    active = await choice.next(db)
    assert active is not None
    assert active.id == long


async def test_a_list_is_read_again_when_old_or_dry_and_not_at_every_claim(db: Database) -> None:
    first, _ = await submitted(db, 5)
    choice = Choice(3)
    assert await choice.next(db) is not None
    second, _ = await submitted(db, 1)

    active = await choice.next(db)

    assert active is not None
    assert active.id == first  # the smaller one is not on the list yet
    choice.refresh()
    active = await choice.next(db)
    assert active is not None
    assert active.id == second


async def test_closed_and_overdue_requests_are_not_listed(db: Database) -> None:
    cancelled, _ = await submitted(db, 1)
    await db.write(
        "UPDATE requests SET status = 'cancelled', outcome = 'p', closed_at = NOW(6) WHERE id = %s",
        (cancelled,),
    )
    overdue, _ = await submitted(db, 1)
    await db.write(
        "UPDATE requests SET deadline = NOW(6) - INTERVAL 1 SECOND WHERE id = %s", (overdue,)
    )

    assert await Choice(3).next(db) is None
    assert await statuses(db, overdue) == ["pending"]
