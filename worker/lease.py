"""Claims segments under a lease and writes results back, fenced by the lease token."""

import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import aiomysql

from partway.store.database import Database, error_number, expand_lists
from partway.worker.metrics import RENEWALS

LOCK_WAIT = 1205

# The most characters in one write-back statement, unless a single result is longer. MariaDB accepts
# no packet over 16 MiB by default.
WRITE_CHARACTERS = 1_000_000

# The length of the column `error`.
ERROR_CHARACTERS = 500


@dataclass(frozen=True)
class Lease:
    """The right to write one result. It is lost when the segment is claimed again.

    `is_successor` is true when an earlier lease of the segment had expired.
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
    """What one exchange did.

    `claimed` are the new leases. `exhausted` counts the segments that failed at max_attempts.
    `lost` are the leases whose results were refused. `deferred` are results whose rows another
    transaction has locked: they must be written again.
    """

    claimed: list[Lease]
    exhausted: int
    lost: list[Lease]
    deferred: list[Ready]


# A claim reads one active request only. Its rows lie together, so the cost is the same with a
# million dead rows elsewhere, and no index is needed. A scalar subquery checks the request: a join,
# or EXISTS on MariaDB, would lock the row of the request, so that the next claim would find nothing
# and a cancel would wait. On a pending row, lease_until means "not before".
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

# The token is sent as hexadecimal digits. MySQL cannot list its transactions (innodb_trx, error
# 3854) while a statement contains bytes that are not text, and operators need that list when a
# statement waits. Attempts are counted at the claim: a segment that kills its worker would never
# be counted later.
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

# COALESCE keeps the error of an earlier attempt, which says more than this one.
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
    """Claim up to `count` segments of one request.

    Returns the new leases, and how many segments failed instead because they have no attempt left.
    """
    await cursor.execute(CLAIM, (request_id, first_index, count))
    rows = await cursor.fetchall()
    spent = [row["index_no"] for row in rows if row["attempts"] >= max_attempts]
    fresh = [row for row in rows if row["attempts"] < max_attempts]
    if fresh:
        indexes = [row["index_no"] for row in fresh]
        await cursor.execute(
            expand_lists(LEASE, len(indexes)),
            (token.hex(), owner_id, int(lease_seconds * 1_000_000), request_id, *indexes),
        )
    if spent:
        reason = f"failed after {max_attempts} attempts: no worker reported an error"
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


# The fence is the token and the status: a segment that was claimed again, given back, failed or
# done meanwhile is not changed. A listed row without its WHEN would become NULL, which the table
# refuses.
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

# A done row keeps its token. So a worker recognises its own write-back when the reply was lost.
WRITTEN = """
SELECT index_no
FROM   segments
WHERE  request_id = %s
  AND  lease_token = UNHEX(%s)
  AND  status = 'done'
  AND  index_no IN (...)
"""

# Used after a lock wait timeout: one row that a frozen client has locked must not delay the others.
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
    """Write results. Returns the leases that are lost, and the results that were deferred.

    With `skip_locked`, rows that another transaction has locked are deferred. Rows are written in
    order of request and index: two processes that wrote each other's stale rows in different
    orders would deadlock.
    """
    lost: list[Lease] = []
    deferred: list[Ready] = []
    for part in write_batches(ready):
        request_id, token = part[0].lease.request_id, part[0].lease.token
        if skip_locked:
            free = await find_index_numbers(cursor, LOCKABLE, request_id, token, part)
            deferred += [item for item in part if item.lease.index_no not in free]
            part = [item for item in part if item.lease.index_no in free]
        if not part:
            continue
        cases = [value for item in part for value in (item.lease.index_no, item.result)]
        indexes = [item.lease.index_no for item in part]
        written = await cursor.execute(
            expand_lists(WRITE_BACK, len(part)), (*cases, request_id, token.hex(), *indexes)
        )
        if written < len(part):
            ours = await find_index_numbers(cursor, WRITTEN, request_id, token, part)
            lost += [item.lease for item in part if item.lease.index_no not in ours]
    return lost, deferred


def write_batches(ready: Iterable[Ready]) -> list[list[Ready]]:
    """Group results into one list per statement: same request, same token, not too long."""
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
    """The index numbers of those results whose rows `statement` finds."""
    indexes = [item.lease.index_no for item in part]
    await cursor.execute(expand_lists(statement, len(indexes)), (request_id, token.hex(), *indexes))
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
    """Write back the ready results and claim up to `count` segments, in one transaction.

    All claimed segments belong to one request; nothing is claimed when `request_id` is None, or
    before `first_index`. Use `skip_locked` after an exchange that deferred results. Raises
    Unavailable when the transaction failed or its fate is unknown. Then the same results can be
    passed in again, and a claim that was committed expires by itself.
    """
    token = secrets.token_bytes(16)

    async def run_transaction(previous_error: Exception | None) -> Exchanged:
        async with db.transaction() as cursor:
            skips = skip_locked or error_number(previous_error) == LOCK_WAIT
            lost, deferred = await write_back(cursor, ready, skips)
            claimed: list[Lease] = []
            exhausted = 0
            if request_id is not None:
                if previous_error is not None:
                    # The previous attempt may have been committed, and only its reply lost.
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
        return Exchanged(claimed, exhausted, lost, deferred)

    return await db.retry(run_transaction)


# A process renews all its leases with one statement, three times in the length of a lease.
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
    """Extend these leases by their full length from now. Returns those that are lost.

    A lease whose row another transaction has locked is neither renewed nor reported as lost.
    """

    async def run_transaction(previous_error: Exception | None) -> tuple[int, list[Lease]]:
        async with db.transaction() as cursor:
            mine = list(leases)
            if error_number(previous_error) == LOCK_WAIT:
                # Another wait for the one locked row would let all the other leases expire.
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
    renewed, lost = await db.retry(run_transaction)
    RENEWALS.inc(renewed)
    return lost


def lease_key(lease: Lease) -> tuple[int, int, bytes]:
    """The values that identify a lease in the table."""
    return lease.request_id, lease.index_no, lease.token


def lease_condition(leases: Sequence[Lease]) -> tuple[str, list[int | str]]:
    """The SQL condition that finds these leases by the primary key, and its values."""
    groups: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for lease in leases:
        groups[lease.request_id, lease.token].append(lease.index_no)
    conditions = [f"({expand_lists(HELD, len(indexes))})" for indexes in groups.values()]
    values: list[int | str] = []
    for (request_id, token), indexes in groups.items():
        values += [request_id, token.hex(), *indexes]
    return f"({' OR '.join(conditions)})", values


async def find_lease_keys(
    cursor: aiomysql.DictCursor, statement: str, leases: Sequence[Lease]
) -> set[tuple[int, int, bytes]]:
    """The keys of those leases whose rows `statement` finds."""
    where, values = lease_condition(leases)
    await cursor.execute(statement.replace("(held)", where), values)
    return {
        (row["request_id"], row["index_no"], row["lease_token"]) for row in await cursor.fetchall()
    }


# The fence holds for one of these statements only, so a repeat does not lower `attempts` again.
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
    """Make the segment claimable at once and uncount its attempt; False when the lease is lost."""
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
    """Record a failed attempt. False when the lease is lost.

    The segment can be claimed again after `after_seconds`, or it is failed at max_attempts. With
    max_attempts 0 it is failed now.
    """
    values = (max_attempts, error[:ERROR_CHARACTERS], int(after_seconds * 1_000_000))
    fence = (lease.request_id, lease.index_no, lease.token.hex())
    return await db.write(FAIL, (*values, *fence)) == 1
