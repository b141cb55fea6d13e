"""Exclusive takeout and the fence that makes at-least-once safe are one idea, read together."""

import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import aiomysql

from partway.store.database import Database, error_number, expand_lists
from partway.worker.metrics import RENEWALS

LOCK_WAIT = 1205

# What one write-back statement carries at most, unless a single result is longer: MariaDB takes no
# packet over 16 MiB unless told to.
WRITE_CHARACTERS = 1_000_000

# MySQL and the schema agree on what a reason may have.
ERROR_CHARACTERS = 500


@dataclass(frozen=True)
class Lease:
    """The right to write one result, as long as nobody else has claimed the segment since.

    `is_successor` when the lease of another had run out on it.
    """

    request_id: int
    index_no: int
    token: bytes
    attempt: int
    source: str
    is_successor: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Ready:
    """A result that waits to be written back."""

    lease: Lease
    result: str


@dataclass(frozen=True)
class Exchanged:
    """What one exchange brought: the claimed, those failed at max_attempts, and the leases lost.

    `held` are results whose rows another transaction has in its hands: to be tried again.
    """

    claimed: list[Lease]
    exhausted: int
    lost: list[Lease]
    deferred: list[Ready]


# Inside one active request only: its rows lie together, so the cost is the same with a million dead
# rows elsewhere, and no index is needed. The request is checked in a scalar subquery: a join, or
# EXISTS on MariaDB, would lock its row, and the next claim would find nothing and a cancel wait.
# lease_until on a pending row means "not before".
CLAIM = """
SELECT s.index_no, s.status, s.attempts, s.source
FROM   segments s
WHERE  s.request_id = %s
  AND  s.index_no >= %s
  AND  (s.status = 'pending' OR s.status = 'processing')
  AND  (s.lease_until IS NULL OR s.lease_until < NOW(6))
  AND  (SELECT r.status = 'active' AND r.deadline > NOW(6)
        FROM   requests r
        WHERE  r.id = s.request_id)
ORDER  BY s.index_no
LIMIT  %s
FOR UPDATE SKIP LOCKED
"""

# A token goes as digits: MySQL shows no list of transactions (innodb_trx, 3854) while a statement
# holds bytes that are no text, and a statement that waits is when operators ask for that list.
# Attempts are counted here, at the claim: a segment that kills its worker reaches no later count.
LEASE = """
UPDATE segments
SET    status = 'processing',
       lease_token = UNHEX(%s),
       owner_id = %s,
       lease_until = NOW(6) + INTERVAL %s MICROSECOND,
       attempts = attempts + 1
WHERE  request_id = %s
  AND  index_no IN (...)
"""

# An error that an attempt left behind says more than this one.
EXHAUST = """
UPDATE segments
SET    status = 'failed',
       error = COALESCE(error, %s),
       lease_token = NULL,
       lease_until = NULL
WHERE  request_id = %s
  AND  index_no IN (...)
"""


async def claim(
    cursor: aiomysql.DictCursor,
    request_id: int,
    count: int,
    token: bytes,
    owner_id: str,
    lease_seconds: float,
    max_attempts: int,
    first_index: int = 0,
) -> tuple[list[Lease], int]:
    """The claimed segments of one request, and how many were failed instead of claimed again."""
    await cursor.execute(CLAIM, (request_id, first_index, count))
    rows = await cursor.fetchall()
    spent = [row["index_no"] for row in rows if row["attempts"] >= max_attempts]
    fresh = [row for row in rows if row["attempts"] < max_attempts]
    if fresh:
        numbers = [row["index_no"] for row in fresh]
        await cursor.execute(
            expand_lists(LEASE, len(numbers)),
            (token.hex(), owner_id, int(lease_seconds * 1_000_000), request_id, *numbers),
        )
    if spent:
        reason = f"given up after {max_attempts} attempts: the worker did not live to say why"
        await cursor.execute(expand_lists(EXHAUST, len(spent)), (reason, request_id, *spent))
    leases = [
        Lease(
            request_id,
            row["index_no"],
            token,
            row["attempts"] + 1,
            row["source"],
            is_successor=row["status"] == "processing",
        )
        for row in fresh
    ]
    return leases, len(spent)


# The fence: token and status. A segment that was claimed again, given back, failed or done since
# changes nothing. A listed row without its WHEN would become NULL, which the table refuses.
WRITE_BACK = """
UPDATE segments
SET    status = 'done',
       result = CASE index_no WHEN ... THEN ... END,
       error = NULL,
       lease_until = NULL
WHERE  request_id = %s
  AND  lease_token = UNHEX(%s)
  AND  status = 'processing'
  AND  index_no IN (...)
"""

# The token stays on a done row, so a write-back whose reply was lost is found to be ours.
WRITTEN = """
SELECT index_no
FROM   segments
WHERE  request_id = %s
  AND  lease_token = UNHEX(%s)
  AND  status = 'done'
  AND  index_no IN (...)
"""

# After a lock wait: one row in the hands of a frozen client would hold back all the others.
LOCKABLE = """
SELECT index_no
FROM   segments
WHERE  request_id = %s
  AND  lease_token = UNHEX(%s)
  AND  status = 'processing'
  AND  index_no IN (...)
FOR UPDATE SKIP LOCKED
"""


async def write_back(
    cursor: aiomysql.DictCursor, ready: Sequence[Ready], skip_locked: bool
) -> tuple[list[Lease], list[Ready]]:
    """The leases that turn out to be lost, and the results that had to stay behind.

    `skip_locked` writes only rows that nobody else has locked. In order of request and index: two
    processes that wrote each other's stale rows in different orders would deadlock.
    """
    lost: list[Lease] = []
    held: list[Ready] = []
    for part in write_batches(ready):
        request_id, token = part[0].lease.request_id, part[0].lease.token
        if skip_locked:
            free = await find_index_numbers(cursor, LOCKABLE, request_id, token, part)
            held += [item for item in part if item.lease.index_no not in free]
            part = [item for item in part if item.lease.index_no in free]
        if not part:
            continue
        cases = [value for item in part for value in (item.lease.index_no, item.result)]
        found = [item.lease.index_no for item in part]
        written = await cursor.execute(
            expand_lists(WRITE_BACK, len(part)), (*cases, request_id, token.hex(), *found)
        )
        if written < len(part):
            ours = await find_index_numbers(cursor, WRITTEN, request_id, token, part)
            lost += [item.lease for item in part if item.lease.index_no not in ours]
    return lost, held


def write_batches(ready: Iterable[Ready]) -> list[list[Ready]]:
    """The results that go into one statement each: same request, same token, not too long."""
    groups: list[list[Ready]] = []
    characters = 0
    for item in sorted(ready, key=lambda r: (r.lease.request_id, r.lease.token, r.lease.index_no)):
        characters += len(item.result)
        if (
            groups
            and groups[-1][0].lease.token == item.lease.token
            and characters <= WRITE_CHARACTERS
        ):
            groups[-1].append(item)
        else:
            groups.append([item])
            characters = len(item.result)
    return sorted(groups, key=lambda group: (group[0].lease.request_id, group[0].lease.index_no))


async def find_index_numbers(
    cursor: aiomysql.DictCursor, statement: str, request_id: int, token: bytes, part: list[Ready]
) -> set[int]:
    """The index numbers that one of the statements above finds for these results."""
    wanted = [item.lease.index_no for item in part]
    await cursor.execute(expand_lists(statement, len(wanted)), (request_id, token.hex(), *wanted))
    return {row["index_no"] for row in await cursor.fetchall()}


HOLDING = """
SELECT index_no, attempts, source
FROM   segments
WHERE  request_id = %s
  AND  lease_token = UNHEX(%s)
  AND  status = 'processing'
"""


async def exchange(
    db: Database,
    ready: Sequence[Ready],
    request_id: int | None,
    count: int,
    owner_id: str,
    lease_seconds: float,
    max_attempts: int,
    skip_locked: bool = False,
    first_index: int = 0,
) -> Exchanged:
    """Write back what is ready and claim up to `count` segments of one request, in one transaction.

    `request_id` is None to claim nothing, and nothing before `first_index` is claimed.
    `skip_locked` is for results that an exchange before had to defer. Raises Unavailable when
    neither was done or nobody can tell: then the same results may be handed in again, and a claim
    runs out by itself.
    """
    token = secrets.token_bytes(16)

    async def once(trouble: Exception | None) -> Exchanged:
        async with db.transaction() as cursor:
            waits = skip_locked or error_number(trouble) == LOCK_WAIT
            lost, held = await write_back(cursor, ready, waits)
            claimed: list[Lease] = []
            exhausted = 0
            if request_id is not None:
                if trouble is not None:
                    # The run before may have been committed and only its reply lost.
                    await cursor.execute(HOLDING, (request_id, token.hex()))
                    claimed = [
                        Lease(request_id, row["index_no"], token, row["attempts"], row["source"])
                        for row in await cursor.fetchall()
                    ]
                if not claimed:
                    claimed, exhausted = await claim(
                        cursor,
                        request_id,
                        count,
                        token,
                        owner_id,
                        lease_seconds,
                        max_attempts,
                        first_index,
                    )
        return Exchanged(claimed, exhausted, lost, held)

    return await db.retry(once)


# One statement for all the leases of a process, every third of a lease.
RENEW = """
UPDATE segments
SET    lease_until = NOW(6) + INTERVAL %s MICROSECOND
WHERE  status = 'processing'
  AND  (held)
"""

HELD = "request_id = %s AND lease_token = UNHEX(%s) AND index_no IN (...)"

STILL_HELD = """
SELECT request_id, index_no, lease_token
FROM   segments
WHERE  status = 'processing'
  AND  (held)
"""

STILL_FREE = STILL_HELD + "FOR UPDATE SKIP LOCKED\n"


async def renew(db: Database, leases: Sequence[Lease], lease_seconds: float) -> list[Lease]:
    """Let these leases run from now on again; those that are lost.

    A lease whose row another transaction has locked is neither renewed nor called lost.
    """

    async def once(trouble: Exception | None) -> tuple[int, list[Lease]]:
        async with db.transaction() as cursor:
            mine = list(leases)
            if error_number(trouble) == LOCK_WAIT:
                # Waiting again for the one row would let all the others run out.
                free = await find_lease_keys(cursor, STILL_FREE, mine)
                mine = [lease for lease in mine if lease_key(lease) in free]
            if not mine:
                return 0, []
            where, values = lease_condition(mine)
            renewed = await cursor.execute(
                RENEW.replace("(held)", where), (int(lease_seconds * 1_000_000), *values)
            )
            if renewed == len(mine):
                return renewed, []
            still = await find_lease_keys(cursor, STILL_HELD, mine)
            return renewed, [lease for lease in mine if lease_key(lease) not in still]

    if not leases:
        return []
    renewed, lost = await db.retry(once)
    RENEWALS.inc(renewed)
    return lost


def lease_key(lease: Lease) -> tuple[int, int, bytes]:
    """What names one lease in the rows."""
    return lease.request_id, lease.index_no, lease.token


def lease_condition(leases: Sequence[Lease]) -> tuple[str, list[int | str]]:
    """The condition that finds these leases by the primary key, and its values."""
    groups: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for lease in leases:
        groups[lease.request_id, lease.token].append(lease.index_no)
    conditions = [f"({expand_lists(HELD, len(numbers))})" for numbers in groups.values()]
    values: list[int | str] = []
    for (request_id, token), numbers in groups.items():
        values += [request_id, token.hex(), *numbers]
    return f"({' OR '.join(conditions)})", values


async def find_lease_keys(
    cursor: aiomysql.DictCursor, statement: str, leases: Sequence[Lease]
) -> set[tuple[int, int, bytes]]:
    """The keys of those leases that one of the statements above finds."""
    where, values = lease_condition(leases)
    await cursor.execute(statement.replace("(held)", where), values)
    return {
        (row["request_id"], row["index_no"], row["lease_token"]) for row in await cursor.fetchall()
    }


# attempts is lowered only by the one whose fence still holds, so a repeat lowers it once.
GIVE_BACK = """
UPDATE segments
SET    status = 'pending',
       lease_token = NULL,
       lease_until = NULL,
       attempts = attempts - 1
WHERE  request_id = %s
  AND  index_no = %s
  AND  lease_token = UNHEX(%s)
  AND  status = 'processing'
"""


async def give_back(db: Database, lease: Lease) -> bool:
    """Make the segment claimable at once, its attempt not counted; False when the lease is lost."""
    return await db.write(GIVE_BACK, (lease.request_id, lease.index_no, lease.token.hex())) == 1


FAIL = """
UPDATE segments
SET    status = IF(attempts >= %s, 'failed', 'pending'),
       error = %s,
       lease_token = NULL,
       lease_until = NOW(6) + INTERVAL %s MICROSECOND
WHERE  request_id = %s
  AND  index_no = %s
  AND  lease_token = UNHEX(%s)
  AND  status = 'processing'
"""


async def fail(
    db: Database, lease: Lease, error: str, after_seconds: float, max_attempts: int
) -> bool:
    """Record a failed attempt: again after `after_seconds`, or failed for good at max_attempts.

    False when the lease is lost. max_attempts 0 fails it for good whatever the count.
    """
    values = (max_attempts, error[:ERROR_CHARACTERS], int(after_seconds * 1_000_000))
    fence = (lease.request_id, lease.index_no, lease.token.hex())
    return await db.write(FAIL, (*values, *fence)) == 1
