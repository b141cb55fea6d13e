"""A commit whose reply is lost was made or was not: either way the work is done, and done once."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from local.server import Server
from local.server import find as find_server
from partway.app.requests.answer import read_request
from partway.app.requests.fanout import submit
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import ATTEMPT_SECONDS, Database
from partway.store.settings import DatabaseSettings
from partway.store.start import open_database
from partway.worker.lease import Ready
from tests.actions import (
    TENANT,
    Programs,
    arrived,
    claimed,
    exchanged,
    find_request,
    meter_rows,
    segment_rows,
    statuses,
    submission,
    submitted,
    wait_until,
    written,
)
from tests.proxy import Cut, Proxy, proxied

number = itertools.count(1)


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def reached_by_tcp(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server of our own that a proxy can stand before."""
    program = find_server(request.param)
    if program is None:
        pytest.skip(f"there is no {request.param} server here")
    server = Server(program, tmp_path_factory.mktemp("tcp"), tcp=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def proxy(reached_by_tcp: Server) -> AsyncIterator[Proxy]:
    async with proxied(reached_by_tcp.tcp_url("-")) as proxy:
        yield proxy


@pytest.fixture
def url(reached_by_tcp: Server) -> Iterator[str]:
    """The TCP URL of a fresh database."""
    name = f"partway_commit_{next(number)}"
    reached_by_tcp.execute(f"CREATE DATABASE {name}")
    yield reached_by_tcp.tcp_url(name)
    reached_by_tcp.execute(f"DROP DATABASE {name}")


@pytest.fixture
async def db(proxy: Proxy, url: str) -> AsyncIterator[Database]:
    """The database through the proxy."""
    async with open_database(DatabaseSettings(database_url=proxy.url(url))) as db:
        yield db


fates = pytest.mark.parametrize("fate", ["before the commit", "after the commit"])


@fates
async def test_a_submit_whose_commit_was_cut_stores_one_request(
    db: Database, proxy: Proxy, fate: Cut
) -> None:
    new = submission(["one", "two"])
    proxy.cut_at_commit(fate)

    created = await submit(db, TENANT, new, 0)

    assert proxy.cuts_left == 0
    # Where the first commit was made, the second try finds the id there, and joins it.
    assert created == (fate == "before the commit")
    request = await read_request(db, TENANT, new.public_id)
    assert request is not None
    assert request.body_hash == new.body_hash
    assert await statuses(db, request.id) == ["pending", "pending"]
    assert len(await db.read("SELECT 1 FROM requests")) == 1


@fates
async def test_a_claim_whose_commit_was_cut_claims_nothing_twice(
    db: Database, proxy: Proxy, fate: Cut
) -> None:
    request_id, _ = await submitted(db, 5)
    proxy.cut_at_commit(fate)

    leases = await claimed(db, request_id, 2)

    assert proxy.cuts_left == 0
    rows = await segment_rows(db, request_id)
    assert [lease.index_no for lease in leases] == [0, 1]
    assert [row["attempts"] for row in rows] == [1, 1, 0, 0, 0]
    assert [row["lease_token"] for row in rows[:2]] == [lease.token for lease in leases]
    assert [lease.attempt for lease in leases] == [1, 1]
    assert await written(db, *leases) == []


@fates
async def test_a_write_back_whose_commit_was_cut_keeps_the_result_and_loses_no_lease(
    db: Database, proxy: Proxy, fate: Cut
) -> None:
    request_id, _ = await submitted(db, 5)
    leases = await claimed(db, request_id, 2)
    ready = [Ready(lease, f"result {lease.index_no}") for lease in leases]
    proxy.cut_at_commit(fate)

    found = await exchanged(db, ready, request_id, 2)

    assert proxy.cuts_left == 0
    assert (found.lost, found.deferred, found.exhausted) == ([], [], 0)
    assert [lease.index_no for lease in found.claimed] == [2, 3]
    rows = await segment_rows(db, request_id)
    assert [row["status"] for row in rows] == ["done"] * 2 + ["processing"] * 2 + ["pending"]
    assert [row["result"] for row in rows[:2]] == ["result 0", "result 1"]
    assert [row["attempts"] for row in rows] == [1, 1, 1, 1, 0]


@fates
async def test_a_settlement_whose_commit_was_cut_bills_once(
    db: Database, proxy: Proxy, fate: Cut
) -> None:
    request_id, public_id = await submitted(db, 2)
    await written(db, *await claimed(db, request_id, 2))
    assert await close(db, request_id, "completed")
    proxy.cut_at_commit(fate)

    said = await settle(db, request_id, 60)

    assert proxy.cuts_left == 0
    # After the commit too: it finds its own record, so that what it counts and logs is whole.
    assert said == "settled"
    (record,) = await meter_rows(db)
    assert (record["public_id"], record["segments"]) == (public_id, 2)
    assert await segment_rows(db, request_id) == []
    assert await settle(db, request_id, 60) == "gone"


async def test_a_commit_that_is_cut_three_times_in_a_row_still_ends_once(
    db: Database, proxy: Proxy
) -> None:
    request_id, _ = await submitted(db, 3)
    proxy.cut_at_commit("after the commit", "before the commit", "after the commit")

    leases = await claimed(db, request_id, 2)

    assert proxy.cuts_left == 0
    assert [lease.index_no for lease in leases] == [0, 1]
    assert [row["attempts"] for row in await segment_rows(db, request_id)] == [1, 1, 0]


async def test_a_post_whose_commit_was_cut_still_ends_when_its_caller_leaves(
    db: Database, proxy: Proxy, url: str, tmp_path: Path
) -> None:
    """Law 3: its second try finds the id there, and it is nobody else's: no answer, no charge."""
    programs = Programs(proxy.url(url), tmp_path)
    try:
        client = await programs.app()
        proxy.cut_at_commit("after the commit")
        body = {"segments": ["one"], "deadline_ms": 40_000}
        call = asyncio.create_task(client.post("/v1/requests", json=body))
        public_id = (await arrived(db)).public_id
        assert proxy.cuts_left == 0

        call.cancel()

        async def is_abandoned() -> bool:
            request = await find_request(db, public_id)
            return request is not None and request.status == "abandoned"

        await wait_until(is_abandoned, "the request to end with its caller")
    finally:
        await programs.end()


async def test_a_submit_to_a_silent_database_is_given_up_with_its_deadline(
    db: Database, proxy: Proxy, url: str, tmp_path: Path
) -> None:
    """Law 10: whoever has half a second does not wait as long as a transaction may take."""
    programs = Programs(proxy.url(url), tmp_path)
    try:
        client = await programs.app()
        proxy.stall()
        body = {"segments": ["one"], "deadline_ms": 500}
        answer = await asyncio.wait_for(
            client.put("/v1/requests/silent", json=body), ATTEMPT_SECONDS - 2
        )
        proxy.flow()
    finally:
        await programs.end()

    assert answer.status_code == 503
    assert "Retry-After" in answer.headers
