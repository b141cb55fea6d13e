"""Whoever runs it or sends the bill asks what was metered, what waits, and whether it agrees."""

from datetime import datetime

from store.database import Database, Row

# By tenant and by how the requests ended; what is not billed is listed with its cost.
USAGE = """
SELECT tenant, status, billed,
       COUNT(*) AS requests,
       CAST(SUM(segments) AS UNSIGNED) AS segments,
       CAST(SUM(input_characters) AS UNSIGNED) AS input_characters,
       CAST(SUM(output_characters) AS UNSIGNED) AS output_characters
FROM   meter
WHERE  settled_at >= %s
  AND  settled_at < %s
GROUP  BY tenant, status, billed
ORDER  BY tenant, status
"""


async def usage(db: Database, since: datetime, until: datetime) -> list[Row]:
    """What was metered from `since` to before `until` (UTC), by tenant and ending."""
    rows = await db.read(USAGE, (since, until))
    return [row | {"billed": bool(row["billed"])} for row in rows]


STANDING_REQUESTS = """
SELECT status AS what,
       COUNT(*) AS requests,
       CAST(SUM(segments) AS UNSIGNED) AS segments,
       CAST(SUM(status = 'active' AND deadline < NOW(6)) AS UNSIGNED) AS overdue,
       TIMESTAMPDIFF(MICROSECOND, MIN(COALESCE(closed_at, created_at)), NOW(6)) / 1e6
         AS oldest_seconds
FROM   requests
GROUP  BY status
ORDER  BY status
"""

STANDING_SEGMENTS = """
SELECT s.status AS what,
       COUNT(*) AS segments,
       CAST(SUM(s.status = 'processing' AND s.lease_until < NOW(6)) AS UNSIGNED) AS expired
FROM   requests r
JOIN   segments s ON s.request_id = r.id
WHERE  r.status = 'active'
GROUP  BY s.status
ORDER  BY s.status
"""


async def standing(db: Database) -> list[Row]:
    """What is in the tables now: requests by status, and the segments of the active ones."""
    requests = [
        {
            "what": f"{row['what']} requests",
            "count": row["requests"],
            "oldest_seconds": round(float(row["oldest_seconds"]), 1),
            "note": f"{row['overdue']} overdue" if row["overdue"] else "",
        }
        for row in await db.read(STANDING_REQUESTS)
    ]
    segments = [
        {
            "what": f"{row['what']} segments of active requests",
            "count": row["segments"],
            "oldest_seconds": None,
            "note": f"{row['expired']} with an expired lease" if row["expired"] else "",
        }
        for row in await db.read(STANDING_SEGMENTS)
    ]
    return requests + segments


# Each finds what a law forbids, in one statement and so in one view of the rows.
BREACHES = {
    "law 2: the answer names a segment as finished that is not": """
        SELECT DISTINCT r.tenant, r.public_id
        FROM   requests r
        JOIN   segments s ON s.request_id = r.id
        WHERE  r.outcome IS NOT NULL
          AND  (SUBSTRING(r.outcome, s.index_no + 1, 1) = 'd' AND s.status <> 'done'
                OR SUBSTRING(r.outcome, s.index_no + 1, 1) = 'f' AND s.status <> 'failed')
        """,
    "law 3: a record is billed though nobody was answered, or not billed though somebody was": """
        SELECT tenant, public_id
        FROM   meter
        WHERE  billed = (status = 'abandoned')
        """,
    "law 4: the request does not have all of its segments": """
        SELECT r.tenant, r.public_id
        FROM   requests r
        LEFT   JOIN segments s ON s.request_id = r.id
        GROUP  BY r.id, r.tenant, r.public_id, r.segments
        HAVING COUNT(s.index_no) <> r.segments
        """,
    "law 4: segments are left of a request that is gone": """
        SELECT DISTINCT '?' AS tenant, CONCAT('request ', s.request_id) AS public_id
        FROM   segments s
        LEFT   JOIN requests r ON r.id = s.request_id
        WHERE  r.id IS NULL
        """,
    "law 6: the request is active long after its deadline (does a batch run?)": """
        SELECT tenant, public_id
        FROM   requests
        WHERE  status = 'active'
          AND  deadline < NOW(6) - INTERVAL %(late_microseconds)s MICROSECOND
        """,
    "law 7: the id is metered and lives": """
        SELECT r.tenant, r.public_id
        FROM   requests r
        JOIN   meter m ON m.tenant = r.tenant AND m.public_id = r.public_id
        """,
}


# A batch that runs has closed it long before.
LATE_SECONDS = 60


async def audit(db: Database, grace_seconds: float) -> list[Row]:
    """Each breach of a law that the rows and the ledger show; [] when they agree."""
    late = {"late_microseconds": int((grace_seconds + LATE_SECONDS) * 1_000_000)}
    return [
        {"breach": law, "tenant": row["tenant"], "id": row["public_id"]}
        for law, statement in BREACHES.items()
        for row in await db.read(statement, late)
    ]
