"""The answering node, a cancel and the batch make a request final by one and the same statement."""

from typing import Literal

from partway.store.database import Database

Final = Literal["completed", "cancelled", "abandoned"]

# One statement, committed by itself: it reads the segments without a lock (READ COMMITTED), so it
# waits for no worker, and there is no transaction for a client to freeze in. Marking the segments
# instead would wait for every claim in flight. The guard makes the first close the only one.
# The index is named, for MySQL reads a small table whole where it has not counted its rows yet.
# COALESCE: a document of nothing but white space has no segments, and an outcome all the same.
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
    """True when this call made the request final; False when it already was, or is gone.

    Look first, without a lock, whether it is still active: on a request that settlement holds
    this would wait for settlement.
    """
    return await db.write(CLOSE, (status, request_id)) == 1
