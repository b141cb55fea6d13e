"""Reads from the tables how much work waits, at a cost that does not grow with the tables.

Each statement limits the rows that it reads before it counts them. So a figure can be too small,
but a read is never too expensive.
"""

import logging

from pymysql.err import MySQLError

from partway.batch.metrics import (
    ACTIVE,
    BACKLOG,
    FLEET_SLOTS,
    LAG,
    OLDEST_PENDING,
    SEGMENTS,
    WORKERS,
)
from partway.store.database import Database, error_text
from partway.store.fleet import read_fleet

log = logging.getLogger("partway.batch")

# The longest time between two reads; the shortest is half of it.
GAUGE_SECONDS = 30.0

# The cap of the counts: above it, the exact number does not matter.
REQUESTS_COUNTED = 10_000

# As many requests as a worker's list of active requests has, with a hundred segments each.
REQUESTS_READ = 1_000
SEGMENTS_COUNTED = 100_000


async def read_gauges(db: Database, retention_seconds: float) -> bool:
    """Set each gauge from the tables; always False.

    An error of the server is logged: settlement must not fail because of a gauge.
    """
    try:
        await read_active(db)
        await read_segments(db)
        await read_backlog(db, retention_seconds)
        await read_workers(db)
    except MySQLError as error:
        log.warning("gauges not read: %s", error_text(error))
    return False


# FORCE INDEX here and below, because MySQL scans a small table whose rows it has not counted yet.
ACTIVE_REQUESTS = """
SELECT COUNT(*) AS requests
FROM   (SELECT id
        FROM   requests FORCE INDEX (by_status)
        WHERE  status = 'active'
        LIMIT  %s) r
"""


async def read_active(db: Database) -> None:
    """Set the gauge of active requests."""
    (row,) = await db.read(ACTIVE_REQUESTS, (REQUESTS_COUNTED,))
    ACTIVE.set(row["requests"])


# Reads the requests that are due soonest. A request past its deadline is not claimed any more and
# waits for its close. The limit on segments comes before their status is checked: done segments are
# read too.
WAITING_SEGMENTS = """
SELECT COALESCE(SUM(status = 'pending'), 0) AS pending,
       COALESCE(SUM(status = 'processing' AND is_live), 0) AS processing,
       COALESCE(SUM(status = 'processing' AND NOT is_live), 0) AS lease_expired,
       COALESCE(MAX(IF(status = 'pending', age_microseconds, 0)), 0) AS oldest_microseconds
FROM   (SELECT s.status, s.lease_until >= NOW(6) AS is_live, r.age_microseconds
        FROM   (SELECT id, TIMESTAMPDIFF(MICROSECOND, created_at, NOW(6)) AS age_microseconds
                FROM   requests FORCE INDEX (by_status)
                WHERE  status = 'active'
                  AND  deadline > NOW(6)
                ORDER  BY deadline
                LIMIT  %s) r
        STRAIGHT_JOIN segments s FORCE INDEX (PRIMARY) ON s.request_id = r.id
        LIMIT  %s) w
"""


async def read_segments(db: Database) -> None:
    """Set the gauges of segments by state, and of the age of the oldest that waits."""
    (row,) = await db.read(WAITING_SEGMENTS, (REQUESTS_READ, SEGMENTS_COUNTED))
    for state, gauge in SEGMENTS.items():
        gauge.set(int(row[state]))
    OLDEST_PENDING.set(int(row["oldest_microseconds"]) / 1_000_000)


# Reads, for each final status, the requests with the earliest deadlines: those closed longest ago
# are among them. One SELECT per status, since the index is in order of the deadline within one
# status only.
SETTLEABLE_REQUESTS = """
SELECT COUNT(*) AS requests,
       COALESCE(MAX(TIMESTAMPDIFF(MICROSECOND, closed_at, NOW(6))), 0) AS oldest_microseconds
FROM   ((SELECT closed_at
         FROM   requests FORCE INDEX (by_status)
         WHERE  status = 'completed'
         ORDER  BY deadline
         LIMIT  %s)
        UNION ALL
        (SELECT closed_at
         FROM   requests FORCE INDEX (by_status)
         WHERE  status = 'cancelled'
         ORDER  BY deadline
         LIMIT  %s)
        UNION ALL
        (SELECT closed_at
         FROM   requests FORCE INDEX (by_status)
         WHERE  status = 'abandoned'
         ORDER  BY deadline
         LIMIT  %s)) r
WHERE  closed_at < NOW(6) - INTERVAL %s MICROSECOND
"""


async def read_backlog(db: Database, retention_seconds: float) -> None:
    """Set the gauges of the requests that can be settled, and of how long they could have been."""
    cap = REQUESTS_COUNTED
    (row,) = await db.read(SETTLEABLE_REQUESTS, (cap, cap, cap, int(retention_seconds * 1_000_000)))
    BACKLOG.set(min(row["requests"], cap))
    LAG.set(max(int(row["oldest_microseconds"]) / 1_000_000 - retention_seconds, 0))


async def read_workers(db: Database) -> None:
    """Set the gauges of the fleet."""
    fleet = await read_fleet(db, REQUESTS_COUNTED)
    WORKERS.set(fleet.workers)
    FLEET_SLOTS.set(fleet.slots)
