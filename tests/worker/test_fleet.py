"""A fleet that has nothing to do looks for work as one worker would."""

import signal

from partway.store.database import Database
from partway.worker.fleet import LEAST_WAIT_SECONDS, POLLS_PER_SECOND, Fleet
from partway.worker.settings import WorkerSettings
from tests.actions import Programs, wait_until


def worker(name: str, **more: object) -> WorkerSettings:
    """The settings of a worker of this name."""
    return WorkerSettings.model_validate({"name": name, "handler": "sleep", **more})


async def names(db: Database) -> list[str]:
    """Who counts as there or did once."""
    return [row["name"] for row in await db.read("SELECT name FROM workers ORDER BY name")]


async def test_the_looks_of_a_fleet_are_shared_by_those_who_are_there(db: Database) -> None:
    fleet = [Fleet(db, worker(f"w{i}")) for i in range(24)]
    assert fleet[0].idle_wait_seconds() == LEAST_WAIT_SECONDS
    for one in fleet:
        await one.step()
    for one in fleet:
        await one.step()

    assert [one.idle_wait_seconds() for one in fleet] == [24 / POLLS_PER_SECOND] * 24


async def test_a_setting_bounds_the_rest_of_a_large_fleet(db: Database) -> None:
    await db.write(
        "INSERT INTO workers (name, slots, seen_at) "
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600) "
        "SELECT CONCAT('other-', i), 1, NOW(6) FROM n"
    )
    patient, hasty = Fleet(db, worker("a")), Fleet(db, worker("b", idle_seconds=0.2))
    await patient.step()
    await hasty.step()

    assert patient.idle_wait_seconds() == 2
    assert hasty.idle_wait_seconds() == 0.2


async def test_a_worker_that_was_killed_counts_no_longer_and_is_forgotten(db: Database) -> None:
    await Fleet(db, worker("killed")).step()
    await Fleet(db, worker("long-gone")).step()
    await db.write("UPDATE workers SET seen_at = NOW(6) - INTERVAL 1 MINUTE WHERE name = 'killed'")
    await db.write("UPDATE workers SET seen_at = NOW(6) - INTERVAL 2 DAY WHERE name = 'long-gone'")

    one = Fleet(db, worker("alive"))
    await one.step()

    assert one.idle_wait_seconds() == LEAST_WAIT_SECONDS
    assert await names(db) == ["alive", "killed"]


async def test_a_worker_is_counted_while_it_lives_and_says_goodbye(
    db: Database, programs: Programs
) -> None:
    one = await programs.worker(WORKER_NAME="told")
    await wait_until(lambda: names(db), "the worker to say that it is there")
    assert await names(db) == ["told"]

    one.send(signal.SIGTERM)
    assert await one.ended() == 0

    assert await names(db) == []
