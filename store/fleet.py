"""Workers, nodes and the batch must agree which workers are running."""

from dataclasses import dataclass
from datetime import datetime

from partway.store.database import Database

# A worker updates its row every 15 s. If it has missed two updates, it no longer counts.
MISSED_SECONDS = 40.0

FLEET = """
SELECT NOW(6) AS now,
       COUNT(*) AS workers,
       CAST(COALESCE(SUM(slots), 0) AS UNSIGNED) AS slots
FROM   (SELECT slots, seen_at
        FROM   workers
        LIMIT  %s) AS known
WHERE  seen_at > NOW(6) - INTERVAL %s SECOND
"""


@dataclass(frozen=True)
class FleetSize:
    """The workers that are running, their slots, and the database's time when it was read."""

    now: datetime
    workers: int
    slots: int


async def read_fleet(db: Database, most: int) -> FleetSize:
    """The workers that are running, counted among `most` rows."""
    return FleetSize(**(await db.read(FLEET, (most, MISSED_SECONDS)))[0])
