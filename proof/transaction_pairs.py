"""Who can meet whom over one request: the product's functions, and the states they meet in."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import Request as Call

from partway.app.api import routes
from partway.app.api.body import read_submission
from partway.app.metrics import OpenCall
from partway.app.problems import Problem
from partway.app.requests.answer import Answer, read_answer, read_request
from partway.app.requests.fanin import wait_until_final
from partway.app.requests.fanout import submit
from partway.app.requests.ledger import Metered
from partway.app.requests.service import RequestService
from partway.app.requests.watch import Watch
from partway.app.settings import AppSettings
from partway.batch.reaper import abandon, overdue
from partway.batch.settle import settle, settleable
from partway.store.close import Final, close
from partway.store.database import Database
from partway.worker.lease import Lease, Ready, exchange, fail, give_back, renew
from tests.actions import TENANT, claimed, exchanged, pass_time

SOURCES = ["a", "bb", "ccc", "dddd"]
BODY = json.dumps({"segments": SOURCES}).encode()

# Leases outlast every order, so what has expired is what a state says; a renewal is told from a
# claim by its length.
LEASE_SECONDS = 3600
RENEWAL_SECONDS = 7200

MAX_ATTEMPTS = 3


@dataclass
class Told:
    """What one session was told in one order."""

    claimed: list[Lease] = field(default_factory=list)
    written: list[tuple[Ready, bool]] = field(default_factory=list)
    released: list[tuple[Lease, bool]] = field(default_factory=list)
    given_back: list[int] = field(default_factory=list)
    renewed: list[Lease] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    metered: list[Metered] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    trouble: BaseException | None = None


@dataclass(frozen=True)
class World:
    """The state in which sessions meet: one request at most, and the leases that are out on it."""

    public_id: str
    request_id: int = 0
    leases: tuple[Lease, ...] = ()
    is_overdue: bool = False


Act = Callable[[Database, World, Told], Awaitable[None]]


@dataclass(frozen=True)
class TransactionPair:
    """Sessions that meet in a state: one line of the table in docs/interleavings.md."""

    name: str
    state: Callable[[Database], Awaitable[World]]
    acts: tuple[Act, ...]
    # A close that meets settlement with no time between them may wait for it: that is what `keep`
    # is for, and here it is 0.
    without_keep: bool = False
    # Thousands of orders: the tests take a part of them.
    has_many: bool = False

    def names(self) -> list[str]:
        """The sessions as the name calls them, without the state behind it."""
        return self.name.partition(" (")[0].split(" x ")


# --- Acts: the product's own functions, as its programs call them ---------------------------------


def writes(index: int, result: str) -> Act:
    async def write(db: Database, world: World, told: Told) -> None:
        ready = Ready(world.leases[index], result)
        brought = await exchange(db, [ready], None, 0, "worker", LEASE_SECONDS, MAX_ATTEMPTS)
        told.written.append((ready, not brought.lost and not brought.deferred))

    return write


def claims(count: int) -> Act:
    async def claim(db: Database, world: World, told: Told) -> None:
        brought = await exchange(
            db, [], world.request_id, count, "worker", LEASE_SECONDS, MAX_ATTEMPTS
        )
        told.claimed += brought.claimed

    return claim


def exchanges(indexes: Sequence[int], count: int, result: str) -> Act:
    async def swap(db: Database, world: World, told: Told) -> None:
        ready = [Ready(world.leases[index], f"{result} {index}") for index in indexes]
        brought = await exchange(
            db, ready, world.request_id, count, "worker", LEASE_SECONDS, MAX_ATTEMPTS
        )
        told.claimed += brought.claimed
        gone = [*brought.lost, *(item.lease for item in brought.deferred)]
        told.written += [(item, item.lease not in gone) for item in ready]

    return swap


def renews(*indexes: int) -> Act:
    async def prolong(db: Database, world: World, told: Told) -> None:
        leases = [world.leases[index] for index in indexes]
        lost = await renew(db, leases, RENEWAL_SECONDS)
        told.renewed += [lease for lease in leases if lease not in lost]

    return prolong


def gives_back(index: int) -> Act:
    async def release(db: Database, world: World, told: Told) -> None:
        accepted = await give_back(db, world.leases[index])
        told.released.append((world.leases[index], accepted))
        told.given_back += [index] * accepted

    return release


def fails(index: int) -> Act:
    async def report(db: Database, world: World, told: Told) -> None:
        accepted = await fail(db, world.leases[index], "broken", 0, MAX_ATTEMPTS)
        told.released.append((world.leases[index], accepted))

    return report


async def handle(db: Database, world: World, told: Told) -> None:
    """The call that began the request, at its end: close it and answer."""
    request = await read_request(db, TENANT, world.public_id)
    if request is not None:
        await wait_until_final(db, Watch(db, 0.5), request, lambda: 0.0)
    answer = await read_answer(db, TENANT, world.public_id)
    assert answer is not None
    told.answers.append(answer)


async def look_in(db: Database, world: World, told: Told) -> None:
    answer = await RequestService(db, AppSettings()).read(TENANT, world.public_id)
    if answer is None:
        raise Problem("unknown-request", "There is no such request.")
    told.answers.append(answer)


async def cancel(db: Database, world: World, told: Told) -> None:
    answer = await RequestService(db, AppSettings()).cancel(TENANT, world.public_id)
    if answer is None:
        raise Problem("unknown-request", "There is no such request.")
    told.answers.append(answer)


async def put(db: Database, world: World, told: Told) -> None:
    """PUT on a node that is about to stop: it answers at its first look."""
    # Without a limit, whose charge looks for the id before anything is stored.
    service = RequestService(db, AppSettings(tenant_characters_per_minute=0))
    service.stops_at = 0.0

    async def body() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
    # The middleware counts how each call ends, and this call has not passed it.
    state = {"open_call": OpenCall()}
    call = Call({"type": "http", "method": "PUT", "headers": headers, "state": state}, body)
    response = await routes.answer(service, call, TENANT, world.public_id)
    told.answers.append(Answer.model_validate_json(bytes(response.body)))


async def reap(db: Database, world: World, told: Told) -> None:
    for request_id in await overdue(db, 0):
        if await abandon(db, request_id):
            told.words.append("abandoned")


async def settle_all(db: Database, world: World, told: Told) -> None:
    for request_id in await settleable(db, 0, 0):
        told.words.append(await settle(db, request_id, 0))


async def live(db: Database, world: World, told: Told) -> None:
    """The whole life of a request: created, closed, settled at once."""
    await put(db, world, told)
    await settle_all(db, world, told)


# --- States: made by the product's own functions --------------------------------------------------


async def running(db: Database) -> World:
    """An active request: 0 done, 1 leased, 2 leased by one whose lease ran out, 3 pending."""
    new = read_submission(BODY, "application/json", "the-id", "", AppSettings())
    assert await submit(db, TENANT, replace(new, deadline_ms=3_000_000), 0)
    request = await read_request(db, TENANT, "the-id")
    assert request is not None
    leases = [
        lease
        for _ in range(3)
        for lease in await claimed(db, request.id, lease_seconds=LEASE_SECONDS)
    ]
    assert (await exchanged(db, [Ready(leases[0], "in time")])).lost == []
    await let_expire(db, 2)
    return World("the-id", request.id, tuple(leases))


async def overdue_now(db: Database) -> World:
    """The same, past its deadline."""
    world = await running(db)
    await pass_time(db, world.request_id, 3100)
    return replace(world, is_overdue=True)


async def with_one_lease(db: Database) -> World:
    """The running request without the expired lease: 2 is pending like 3."""
    world = await running(db)
    assert await give_back(db, world.leases[2])
    return world


def ended(
    status: Final, dead: bool = True, begun: Callable[[Database], Awaitable[World]] = running
) -> Callable[[Database], Awaitable[World]]:
    """Such a request, closed; and, `dead`, with no lease that runs."""

    async def state(db: Database) -> World:
        world = await begun(db)
        assert await close(db, world.request_id, status)
        if dead:
            await let_expire(db, 1)
        return world

    return state


async def nothing(db: Database) -> World:
    """No request at all."""
    return World("the-id")


async def let_expire(db: Database, index_no: int) -> None:
    await db.write(
        "UPDATE segments SET lease_until = NOW(6) - INTERVAL 1 SECOND WHERE index_no = %s",
        (index_no,),
    )


HOLDERS: tuple[tuple[str, Act], ...] = (
    ("claim", claims(1)),
    ("exchange", exchanges([1], 2, "late")),
    ("write-back", writes(1, "late")),
    ("renew", renews(1)),
    ("give back", gives_back(1)),
    ("fail", fails(1)),
)
ENDS: tuple[Final, ...] = ("completed", "cancelled", "abandoned")
CLOSERS: tuple[tuple[str, Act], ...] = (("close", handle), ("cancel", cancel))

TWO: tuple[TransactionPair, ...] = (
    *(
        TransactionPair(f"{holder} x {closer}", running, (act, closes))
        for closer, closes in CLOSERS
        for holder, act in HOLDERS
    ),
    *(TransactionPair(f"{holder} x reaper", overdue_now, (act, reap)) for holder, act in HOLDERS),
    TransactionPair("close x close", running, (handle, handle)),
    TransactionPair("close x cancel", running, (handle, cancel)),
    TransactionPair("close x reaper", overdue_now, (handle, reap)),
    TransactionPair("close x GET", running, (handle, look_in)),
    TransactionPair("close x PUT", running, (handle, put), has_many=True),
    TransactionPair("cancel x cancel", running, (cancel, cancel)),
    TransactionPair("cancel x reaper", overdue_now, (cancel, reap)),
    TransactionPair("cancel x GET", running, (cancel, look_in)),
    TransactionPair("cancel x PUT", running, (cancel, put), has_many=True),
    TransactionPair("reaper x reaper", overdue_now, (reap, reap)),
    TransactionPair("reaper x GET", overdue_now, (reap, look_in)),
    TransactionPair("reaper x PUT", overdue_now, (reap, put)),
    TransactionPair("claim x claim", running, (claims(2), claims(2))),
    TransactionPair("claim x GET", running, (claims(2), look_in)),
    TransactionPair("claim x PUT", running, (claims(2), put)),
    TransactionPair("claim x late write-back", running, (claims(1), writes(2, "stale"))),
    TransactionPair("claim x late renew", running, (claims(1), renews(2))),
    TransactionPair("claim x late give back", running, (claims(1), gives_back(2))),
    TransactionPair("claim x late fail", running, (claims(1), fails(2))),
    TransactionPair("claim x late exchange", running, (claims(1), exchanges([1, 2], 1, "stale"))),
    TransactionPair(
        "exchange x exchange", running, (exchanges([1], 2, "mine"), exchanges([2], 2, "stale"))
    ),
    TransactionPair("exchange x own renew", running, (exchanges([1, 2], 1, "mine"), renews(1, 2))),
    TransactionPair("write-back x own write-back", running, (writes(1, "one"), writes(1, "two"))),
    TransactionPair("write-back x own give back", running, (writes(1, "mine"), gives_back(1))),
    TransactionPair("write-back x own fail", running, (writes(1, "mine"), fails(1))),
    TransactionPair("write-back x own renew", running, (writes(1, "mine"), renews(1))),
    TransactionPair("give back x own fail", running, (gives_back(1), fails(1))),
    TransactionPair("write-back x GET", running, (writes(1, "mine"), look_in)),
    *(
        TransactionPair(
            f"{holder} x GET ({status})", ended(status, begun=with_one_lease), (act, look_in)
        )
        for status in ENDS
        for holder, act in HOLDERS
        if holder in ("write-back", "give back", "fail")
    ),
    TransactionPair("last write-back x cancel", with_one_lease, (writes(1, "late"), cancel)),
    *(
        TransactionPair(f"settle x {holder} ({status})", ended(status), (settle_all, act))
        for status in ENDS
        for holder, act in HOLDERS
        if status != "abandoned" or holder in ("write-back", "exchange")
    ),
    TransactionPair(
        "settle x exchange (cancelled, leased)",
        ended("cancelled", dead=False),
        (settle_all, exchanges([1], 1, "late")),
    ),
    TransactionPair(
        "settle x write-back (cancelled, leased)",
        ended("cancelled", dead=False),
        (settle_all, writes(1, "late")),
    ),
    TransactionPair("settle x settle", ended("completed"), (settle_all, settle_all), has_many=True),
    TransactionPair("settle x GET", ended("completed"), (settle_all, look_in)),
    TransactionPair("settle x close", ended("completed"), (settle_all, handle), has_many=True),
    TransactionPair("settle x cancel", ended("cancelled"), (settle_all, cancel), has_many=True),
    TransactionPair("settle x reaper", ended("abandoned"), (settle_all, reap)),
    TransactionPair("settle x PUT", ended("completed"), (settle_all, put), has_many=True),
    TransactionPair("PUT x PUT", nothing, (put, put), has_many=True),
    TransactionPair("PUT x GET", running, (put, look_in), has_many=True),
    TransactionPair("life x PUT", nothing, (live, put), without_keep=True, has_many=True),
)

THREE: tuple[TransactionPair, ...] = (
    TransactionPair("write-back x close x cancel", running, (writes(1, "late"), handle, cancel)),
    TransactionPair(
        "exchange x close x cancel", running, (exchanges([1], 2, "late"), handle, cancel)
    ),
    TransactionPair(
        "claim x late write-back x close", running, (claims(2), writes(2, "stale"), handle)
    ),
    TransactionPair(
        "exchange x exchange x close",
        running,
        (exchanges([1], 2, "mine"), exchanges([2], 2, "stale"), handle),
    ),
    TransactionPair("claim x claim x late renew", running, (claims(1), claims(2), renews(2))),
    TransactionPair("claim x cancel x reaper", overdue_now, (claims(2), cancel, reap)),
    TransactionPair(
        "exchange x close x settle",
        running,
        (exchanges([1], 2, "late"), handle, settle_all),
        without_keep=True,
    ),
    TransactionPair(
        "claim x cancel x settle", running, (claims(2), cancel, settle_all), without_keep=True
    ),
    TransactionPair(
        "write-back x settle x GET",
        ended("cancelled"),
        (writes(1, "late"), settle_all, look_in),
    ),
    TransactionPair(
        "settle x settle x write-back", ended("cancelled"), (settle_all, settle_all, HOLDERS[2][1])
    ),
    TransactionPair("PUT x settle x PUT", ended("completed"), (put, settle_all, put)),
    TransactionPair("PUT x PUT x close", running, (put, put, handle)),
    TransactionPair("PUT x PUT x PUT", nothing, (put, put, put)),
    TransactionPair("life x PUT x PUT", nothing, (live, put, put), without_keep=True),
)
