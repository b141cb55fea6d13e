"""Closes a request; the node that answers, a cancel and the batch use the same statement."""

from typing import Literal

from partway.store.database import Database

Final = Literal["completed", "cancelled", "abandoned"]

# One statement, committed by itself. It reads the segments without a lock (READ COMMITTED), so it
# waits for no worker, and there is no open transaction in which a client could freeze. To mark the
# segments instead would wait for every claim in progress. The guard makes the first close the only
# one. FORCE INDEX, because MySQL scans a small table whose rows it has not counted yet. COALESCE,
# because a document of white space has no segments, and still needs an outcome.
CLOSE = """
UPDATE requests r
SET    r.status = %s,
       r.closed_at = NOW(6),
       r.outcome = (SELECT COALESCE(GROUP_CONCAT(CASE s.status
                                                   WHEN 'done' THEN 'd'
                                                   WHEN 'failed' THEN 'f'
                                                   WHEN 'processing' THEN 'r'
                                                   ELSE 'p'
                                                 END ORDER BY s.index_no SEPARATOR ''), '')
                    FROM   segments s FORCE INDEX (PRIMARY)
                    WHERE  s.request_id = r.id)
WHERE  r.id = %s
  AND  r.status = 'active'
"""


async def close(db: Database, request_id: int, status: Final) -> bool:
    """Close a request; False when it was already final or no longer exists.

    Callers first read, without a lock, whether the request is active: this statement would wait
    for a settlement that has locked the request.
    """
    return await db.write(CLOSE, (status, request_id)) == 1
