"""Each tenant may send so many characters a minute, to all nodes together (GCRA, one row each)."""

import contextlib

from partway.app.problems import Problem
from partway.store.database import Database, Unavailable

MINUTE_MICROSECONDS = 60_000_000

# One statement, committed by itself: nobody holds an allowance while doing anything else. What is
# there already, or is settled, is not charged for: its caller joins or is told what was metered.
# Should the reply be lost it runs again, and may charge twice; a minute later that is forgotten.
CHARGE = """
UPDATE allowances
SET    full_at = GREATEST(full_at, NOW(6)) + INTERVAL %s MICROSECOND
WHERE  tenant = %s
  AND  full_at <= NOW(6) + INTERVAL %s MICROSECOND
  AND  NOT EXISTS (SELECT 1 FROM requests WHERE tenant = %s AND public_id = %s)
  AND  NOT EXISTS (SELECT 1 FROM meter WHERE tenant = %s AND public_id = %s)
"""


async def charge(
    db: Database, tenant: str, public_id: str, characters: int, per_minute: int
) -> None:
    """Take a document from the tenant's allowance; Problem 429 when it does not fit, or is there.

    An allowance fills up evenly, to what may be sent in a minute and no further (GCRA). A document
    that is larger than all of it is taken when it is full, and paid off by the wait that follows:
    to refuse it for ever would be a limit on documents, and that is another setting's.
    """
    cost = cost_of(characters, per_minute)
    if cost == 0:
        return
    owed_at_most = MINUTE_MICROSECONDS - min(cost, MINUTE_MICROSECONDS)
    values = (cost, tenant, owed_at_most, *(tenant, public_id) * 2)
    if await db.write(CHARGE, values):
        return
    owed = await read_tat_microseconds(db, tenant)
    if owed is None:
        await db.write(OPEN_ALLOWANCE, (tenant,))
    # It may fit by now, or there was no row yet, which another call may have made meanwhile.
    if (owed is None or owed <= owed_at_most) and await db.write(CHARGE, values):
        return
    owed = owed or 0
    raise Problem(
        "too-many-requests",
        f"These are {characters} characters; {left(owed, per_minute)} of the {per_minute} "
        "of a minute are left. Nothing was stored.",
        retry_after_seconds=max(seconds(owed - owed_at_most), 1),
        headers=rate_headers(owed, per_minute),
    )


# A tenant's first document finds no row.
OPEN_ALLOWANCE = """
INSERT INTO allowances (tenant, full_at)
VALUES (%s, NOW(6))
ON DUPLICATE KEY UPDATE tenant = tenant
"""

REFUND = """
UPDATE allowances
SET    full_at = full_at - INTERVAL %s MICROSECOND
WHERE  tenant = %s
"""


async def refund(db: Database, tenant: str, characters: int, per_minute: int) -> None:
    """Nothing; afterwards what was charged for these characters is there again."""
    cost = cost_of(characters, per_minute)
    if cost:
        await db.write(REFUND, (cost, tenant))


TAT = """
SELECT GREATEST(TIMESTAMPDIFF(MICROSECOND, NOW(6), full_at), 0) AS microseconds
FROM   allowances
WHERE  tenant = %s
"""


async def read_tat_microseconds(db: Database, tenant: str) -> int | None:
    """In how many microseconds the whole allowance is there; None when it was never charged."""
    rows = await db.read(TAT, (tenant,))
    return int(rows[0]["microseconds"]) if rows else None


async def read_rate_headers(db: Database, tenant: str, per_minute: int) -> dict[str, str]:
    """What an answer says of the tenant's allowance; {} when there is no limit."""
    if not per_minute:
        return {}
    # An answer is worth more than what stands beside it.
    with contextlib.suppress(Unavailable):
        return rate_headers(await read_tat_microseconds(db, tenant) or 0, per_minute)
    return {}


def rate_headers(owed: int, per_minute: int) -> dict[str, str]:
    """The fields of draft-ietf-httpapi-ratelimit-headers for an allowance that owes so much."""
    return {
        "RateLimit-Policy": f'"characters";q={per_minute};qu="characters";w=60',
        "RateLimit": f'"characters";r={left(owed, per_minute)};t={seconds(owed)}',
    }


def cost_of(characters: int, per_minute: int) -> int:
    """In how many microseconds so many characters come back; 0 when there is no limit."""
    return -(-characters * MINUTE_MICROSECONDS // per_minute) if per_minute else 0


def left(owed: int, per_minute: int) -> int:
    """How many characters an allowance has that owes so many microseconds."""
    return max(MINUTE_MICROSECONDS - owed, 0) * per_minute // MINUTE_MICROSECONDS


def seconds(microseconds: int) -> int:
    """Whole seconds, never less than that."""
    return -(-microseconds // 1_000_000)
