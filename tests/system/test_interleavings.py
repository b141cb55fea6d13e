"""The laws hold in every order of the statements of sessions that meet, and the orders can tell."""

import random
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

import partway.app.requests.fanout
import partway.app.requests.service
import partway.batch.settle
import partway.store.close
import partway.worker.lease
from partway.app.requests.ledger import Settled, find_metered
from partway.app.requests.submission import Submission
from partway.store.database import Database
from proof.interleavings import Tally, staged, tallied
from proof.transaction_pairs import THREE, TWO, TransactionPair
from tests.sweeps import WHOLE, sampled

pytestmark = pytest.mark.snapshot_isolation

# Every order of all but the meetings that have thousands; `make orders` takes more of those.
EVERY = 280
TWO_SESSIONS = sampled(EVERY, sample=16)
OF_THOUSANDS = sampled(60, sample=12)
SEED = 20261130

# The same statements on the same engine: with snapshot isolation on, a part of them is enough here.
WITH_SNAPSHOT_ISOLATION = sampled(24, sample=4)
THREE_SESSIONS = sampled(12, sample=3)


def named(meeting: TransactionPair) -> str:
    return meeting.name


async def tally_of(db: Database, url: str, meeting: TransactionPair, limit: int) -> Tally:
    async with staged(db, url, meeting) as stage:
        return await tallied(stage, limit, random.Random(SEED), until_broken=True)


@pytest.mark.sweep
@pytest.mark.parametrize("meeting", TWO, ids=named)
async def test_two_sessions_keep_the_laws_in_every_order(
    db: Database, url: str, request: pytest.FixtureRequest, meeting: TransactionPair
) -> None:
    has_snapshots = "snapshot" in request.node.name
    limit = OF_THOUSANDS if meeting.has_many else TWO_SESSIONS
    tally = await tally_of(
        db, url, meeting, min(limit, WITH_SNAPSHOT_ISOLATION) if has_snapshots else limit
    )

    assert tally.broken == [], tally.broken[0]
    assert tally.is_complete or meeting.has_many or has_snapshots or not WHOLE
    # None of these orders may even need a retry: 1062 is how a caller learns that it joins.
    assert set(tally.errors) <= {1062}


@pytest.mark.sweep
@pytest.mark.parametrize("meeting", THREE, ids=named)
async def test_three_sessions_keep_the_laws_in_orders_by_chance(
    db: Database, url: str, meeting: TransactionPair
) -> None:
    async with staged(db, url, meeting) as stage:
        tally = Tally(meeting)
        async for order in stage.sampled(random.Random(SEED), THREE_SESSIONS):
            tally.add(stage, order)

    assert tally.broken == [], tally.broken[0]


@dataclass(frozen=True)
class Mutant:
    """A law's line taken out of a statement: the harness must name the law that it upheld."""

    name: str
    law: int
    meeting: str
    module: ModuleType
    statement: str
    line: str
    instead: str = ""


TOKEN = "  AND  lease_token = UNHEX(%s)\n"
STATUS = "  AND  status = 'processing'\n"

MUTANTS = (
    # The token still has its place among the values.
    Mutant(
        "write-back without token",
        1,
        "claim x late write-back",
        partway.worker.lease,
        "WRITE_BACK",
        TOKEN,
        "  AND  lease_token <> CONCAT('not ', %s)\n",
    ),
    Mutant(
        "renewal without token",
        1,
        "claim x late renew",
        partway.worker.lease,
        "HELD",
        "lease_token = UNHEX(%s)",
        "lease_token <> CONCAT('not ', %s)",
    ),
    Mutant(
        "failure without token",
        1,
        "claim x late fail",
        partway.worker.lease,
        "FAIL",
        TOKEN,
        "  AND  lease_token <> CONCAT('not ', %s)\n",
    ),
    Mutant(
        "write-back without status",
        1,
        "write-back x own write-back",
        partway.worker.lease,
        "WRITE_BACK",
        STATUS,
    ),
    Mutant(
        "giving back without status",
        1,
        "write-back x own give back",
        partway.worker.lease,
        "GIVE_BACK",
        STATUS,
    ),
    Mutant(
        "failure without status", 1, "write-back x own fail", partway.worker.lease, "FAIL", STATUS
    ),
    Mutant(
        "renewal without status",
        1,
        "write-back x own renew",
        partway.worker.lease,
        "RENEW",
        STATUS[7:],
        "  TRUE\n",
    ),
    Mutant(
        "claim without SKIP LOCKED",
        10,
        "claim x claim",
        partway.worker.lease,
        "CLAIM",
        "FOR UPDATE SKIP LOCKED",
        "FOR UPDATE",
    ),
    Mutant(
        "claim without a lock",
        1,
        "claim x claim",
        partway.worker.lease,
        "CLAIM",
        "FOR UPDATE SKIP LOCKED",
    ),
    Mutant(
        "close without guard",
        2,
        "close x cancel",
        partway.store.close,
        "CLOSE",
        "  AND  r.status = 'active'\n",
    ),
    Mutant(
        "bill without outcome",
        3,
        "settle x write-back (completed)",
        partway.batch.settle,
        "METER",
        "(SUBSTRING(r.outcome, s.index_no + 1, 1) = 'd'",
        "(TRUE",
    ),
    Mutant(
        "settlement without locked segments",
        4,
        "settle x write-back (cancelled)",
        partway.batch.settle,
        "LOCK_SEGMENTS",
        "FOR UPDATE SKIP LOCKED\n",
    ),
    Mutant(
        "claim without asking for the status",
        5,
        "claim x close",
        partway.worker.lease,
        "CLAIM",
        "r.status = 'active' AND ",
    ),
    Mutant(
        "claim without asking for the deadline",
        5,
        "claim x reaper",
        partway.worker.lease,
        "CLAIM",
        " AND r.deadline > NOW(6)",
    ),
    Mutant(
        "claim that is not counted",
        6,
        "claim x claim",
        partway.worker.lease,
        "LEASE",
        ",\n       attempts = attempts + 1",
    ),
)


async def broken_by(db: Database, url: str, meeting: str) -> str:
    """The first breach that the orders of this meeting show, in words; "" when there is none."""
    (wanted,) = (one for one in TWO if one.name == meeting)
    tally = await tally_of(db, url, wanted, EVERY)
    return "".join(tally.broken[:1])


# What the harness can see is its own matter: one server shows it.
@pytest.mark.one_server
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
async def test_a_statement_without_its_line_is_seen_to_break_its_law(
    db: Database, url: str, monkeypatch: pytest.MonkeyPatch, mutant: Mutant
) -> None:
    whole = getattr(mutant.module, mutant.statement)
    assert whole.count(mutant.line) == 1
    monkeypatch.setattr(mutant.module, mutant.statement, whole.replace(mutant.line, mutant.instead))

    assert f": law {mutant.law}:" in await broken_by(db, url, mutant.meeting)


async def test_the_meter_asked_before_the_insert_is_seen_to_break_its_law(
    db: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The insert waits for settlement to delete the id, and the look is older than the record."""
    real = partway.app.requests.fanout.submit

    async def asked_first(
        db: Database, tenant: str, new: Submission, waited_seconds: float, trace: str | None
    ) -> bool:
        metered = await find_metered(db, tenant, new.public_id)
        if metered is not None:
            raise Settled(metered)
        return await real(db, tenant, new, waited_seconds, trace)

    async def not_asked(*_: Any) -> None:
        return None

    monkeypatch.setattr(partway.app.requests.service, "submit", asked_first)
    monkeypatch.setattr(partway.app.requests.fanout, "find_metered", not_asked)

    assert ": law 7:" in await broken_by(db, url, "life x PUT")
