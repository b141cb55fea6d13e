"""Closes requests whose node died, since no request may stay active for ever."""

from partway.store.close import close
from partway.store.database import Database

OVERDUE = """
SELECT id
FROM   requests
WHERE  status = 'active'
  AND  deadline < NOW(6) - INTERVAL %s MICROSECOND
LIMIT  100
"""


async def overdue(db: Database, grace_seconds: float) -> list[int]:
    """Active requests whose deadline and grace have passed, at most 100; [] when there are none."""
    rows = await db.read(OVERDUE, (int(grace_seconds * 1_000_000),))
    return [row["id"] for row in rows]


async def abandon(db: Database, request_id: int) -> bool:
    """Close the request as abandoned; False when it was already closed."""
    return await close(db, request_id, "abandoned")
