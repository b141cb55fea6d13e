"""A tenant may send a limited number of characters a minute to all nodes together (GCRA)."""

import contextlib

from partway.app.problems import Problem
from partway.store.database import Database, Unavailable

MINUTE_MICROSECONDS = 60_000_000

# One statement, committed by itself, so that no transaction holds an allowance while it does
# something else. An id that exists or is settled is not charged: its caller attaches, or gets what
# was metered. If the reply is lost, the statement runs again and may charge twice; after a minute
# that no longer matters.
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
    """Charge a document to the tenant's allowance.

    Raises Problem 429 when the document does not fit, and also when its id exists already.

    GCRA stores one time for each tenant, the theoretical arrival time (TAT): when the allowance
    will be full again. A charge moves it into the future, by at most a minute. A document larger
    than a whole minute's allowance is accepted when the allowance is full, and the next one waits
    longer. This limit is on the rate; the size of a document has settings of its own.
    """
    cost = cost_microseconds(characters, per_minute)
    if cost == 0:
        return
    most_tat = MINUTE_MICROSECONDS - min(cost, MINUTE_MICROSECONDS)
    values = (cost, tenant, most_tat, *(tenant, public_id) * 2)
    if await db.write(CHARGE, values):
        return
    tat = await read_tat_microseconds(db, tenant)
    if tat is None:
        await db.write(OPEN_ALLOWANCE, (tenant,))
    # Try again: the document may fit by now, or the row exists only since now.
    if (tat is None or tat <= most_tat) and await db.write(CHARGE, values):
        return
    tat = tat or 0
    raise Problem(
        "too-many-requests",
        f"The request has {characters} characters; {left_characters(tat, per_minute)} of "
        f"{per_minute} a minute are left. Nothing was stored.",
        retry_after_seconds=max(to_seconds(tat - most_tat), 1),
        headers=rate_headers(tat, per_minute),
    )


# A tenant has no row before its first document.
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
    """Give back to the tenant's allowance what was charged for these characters."""
    cost = cost_microseconds(characters, per_minute)
    if cost:
        await db.write(REFUND, (cost, tenant))


TAT = """
SELECT GREATEST(TIMESTAMPDIFF(MICROSECOND, NOW(6), full_at), 0) AS microseconds
FROM   allowances
WHERE  tenant = %s
"""


async def read_tat_microseconds(db: Database, tenant: str) -> int | None:
    """In how many microseconds the allowance is full; None when it was never charged."""
    rows = await db.read(TAT, (tenant,))
    return int(rows[0]["microseconds"]) if rows else None


async def read_rate_headers(db: Database, tenant: str, per_minute: int) -> dict[str, str]:
    """The RateLimit headers of an answer; {} when there is no limit or no database."""
    if not per_minute:
        return {}
    # The answer must reach its caller, with these headers or without.
    with contextlib.suppress(Unavailable):
        return rate_headers(await read_tat_microseconds(db, tenant) or 0, per_minute)
    return {}


def rate_headers(tat_microseconds: int, per_minute: int) -> dict[str, str]:
    """The headers of draft-ietf-httpapi-ratelimit-headers for an allowance that is full then."""
    left = left_characters(tat_microseconds, per_minute)
    return {
        "RateLimit-Policy": f'"characters";q={per_minute};qu="characters";w=60',
        "RateLimit": f'"characters";r={left};t={to_seconds(tat_microseconds)}',
    }


def cost_microseconds(characters: int, per_minute: int) -> int:
    """How long the allowance takes to regain these characters; 0 when there is no limit."""
    return -(-characters * MINUTE_MICROSECONDS // per_minute) if per_minute else 0


def left_characters(tat_microseconds: int, per_minute: int) -> int:
    """How many characters the tenant may send now, when the allowance is full at that time."""
    return max(MINUTE_MICROSECONDS - tat_microseconds, 0) * per_minute // MINUTE_MICROSECONDS


def to_seconds(microseconds: int) -> int:
    """The time in whole seconds, rounded up."""
    return -(-microseconds // 1_000_000)
