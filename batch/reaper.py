"""A request whose node died is closed by the batch, since nothing may stay active for ever."""

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
    """Requests that are active and past their deadline by the grace, a hundred at most."""
    rows = await db.read(OVERDUE, (int(grace_seconds * 1_000_000),))
    return [row["id"] for row in rows]


async def abandon(db: Database, request_id: int) -> bool:
    """True when this call closed the request; False when another was first."""
    return await close(db, request_id, "abandoned")
