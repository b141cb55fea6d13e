"""What waits is seen in the tables only, and a look must cost the same however full they are.

So each statement limits what it reads before it counts: a figure may be too small, a look is never
too dear.
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

# The longest rest between two looks; the shortest is half of it.
GAUGE_SECONDS = 30.0

# A figure beyond this says no more than that it is too large.
REQUESTS_COUNTED = 10_000

# As many as a worker's list of active requests is long, with a hundred segments each.
REQUESTS_LOOKED_INTO = 1_000
SEGMENTS_COUNTED = 100_000


async def read_gauges(db: Database, retention_seconds: float) -> bool:
    """Set each gauge to what the tables show now; False always.

    What the server refuses is logged: the batch has a bill to write, whoever looks on.
    """
    try:
        await read_active(db)
        await read_segments(db)
        await read_backlog(db, retention_seconds)
        await read_workers(db)
    except MySQLError as error:
        log.warning("gauges not read: %s", error_text(error))
    return False


# The index is named here and below, for MySQL reads a small table whole where it has not counted
# its rows yet.
ACTIVE_REQUESTS = """
SELECT COUNT(*) AS requests
FROM   (SELECT id
        FROM   requests FORCE INDEX (by_status)
        WHERE  status = 'active'
        LIMIT  %s) r
"""


async def read_active(db: Database) -> None:
    """Set the gauge of active requests; nothing comes back."""
    (row,) = await db.read(ACTIVE_REQUESTS, (REQUESTS_COUNTED,))
    ACTIVE.set(row["requests"])


# Of those that are due soonest. What is due already is claimed by nobody, and waits for its close.
# The segments are limited before they are told apart: those that are done are read too.
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
    """Set the gauges of segments by state, and of how long the oldest waits; nothing comes back."""
    (row,) = await db.read(WAITING_SEGMENTS, (REQUESTS_LOOKED_INTO, SEGMENTS_COUNTED))
    for state, gauge in SEGMENTS.items():
        gauge.set(int(row[state]))
    OLDEST_PENDING.set(int(row["oldest_microseconds"]) / 1_000_000)


# Of each final status those that were due first: what was kept longest is among them, whatever was
# closed a moment ago. One after the other, since an index is in order within one status only.
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
    """Set the gauges of what could be settled and for how long; nothing comes back."""
    most = REQUESTS_COUNTED
    (row,) = await db.read(
        SETTLEABLE_REQUESTS, (most, most, most, int(retention_seconds * 1_000_000))
    )
    BACKLOG.set(min(row["requests"], most))
    LAG.set(max(int(row["oldest_microseconds"]) / 1_000_000 - retention_seconds, 0))


async def read_workers(db: Database) -> None:
    """Set the gauges of the fleet; nothing comes back."""
    fleet = await read_fleet(db, REQUESTS_COUNTED)
    WORKERS.set(fleet.workers)
    FLEET_SLOTS.set(fleet.slots)
