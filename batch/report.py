"""Reports what was metered and what waits, for those who operate Partway or send the bill."""

from datetime import datetime

from partway.store.database import Database, Row

# By tenant and final status. What is not billed is listed too, with its figures.
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
    """What was metered at or after `since` and before `until` (UTC), by tenant and final status."""
    rows = await db.read(USAGE, (since, until))
    return [row | {"billed": bool(row["billed"])} for row in rows]


REQUESTS_BY_STATUS = """
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

SEGMENTS_BY_STATUS = """
SELECT s.status AS what,
       COUNT(*) AS segments,
       CAST(SUM(s.status = 'processing' AND s.lease_until < NOW(6)) AS UNSIGNED) AS expired
FROM   requests r
JOIN   segments s ON s.request_id = r.id
WHERE  r.status = 'active'
GROUP  BY s.status
ORDER  BY s.status
"""


async def status_rows(db: Database) -> list[Row]:
    """The current requests by status, and the segments of active requests by status."""
    requests = [
        {
            "what": f"{row['what']} requests",
            "count": row["requests"],
            "oldest_seconds": round(float(row["oldest_seconds"]), 1),
            "note": f"{row['overdue']} overdue" if row["overdue"] else "",
        }
        for row in await db.read(REQUESTS_BY_STATUS)
    ]
    segments = [
        {
            "what": f"{row['what']} segments of active requests",
            "count": row["segments"],
            "oldest_seconds": None,
            "note": f"{row['expired']} with an expired lease" if row["expired"] else "",
        }
        for row in await db.read(SEGMENTS_BY_STATUS)
    ]
    return requests + segments
