"""Meters and deletes a final request in one transaction, so that it is billed exactly once."""

import logging
import time
from typing import Literal

import aiomysql

from partway.batch.metrics import (
    METERED_CHARACTERS,
    METERED_SEGMENTS,
    SETTLEMENT_DURATION,
    SETTLEMENTS,
)
from partway.store.database import Database, Row

log = logging.getLogger("partway.batch")

Settling = Literal["settled", "deferred", "gone"]

# How many candidates one read returns: after days without a batch there may be a million.
PAGE = 1000

# Read without a lock: on MySQL, a locking read in order of id locks every candidate, and a lock on
# an active row would make its close wait. In order of id, by the primary key (measured: 10 ms past
# 50,000 active requests), so that the next page begins after this one.
SETTLEABLE = """
SELECT id
FROM   requests
WHERE  id > %s
  AND  status <> 'active'
  AND  closed_at < NOW(6) - INTERVAL %s MICROSECOND
ORDER  BY id
LIMIT  %s
"""


async def settleable(db: Database, retention_seconds: float, after: int) -> list[int]:
    """The next page of final requests whose retention is over, with ids above `after`.

    Fewer than PAGE when there are no more after them.
    """
    rows = await db.read(SETTLEABLE, (after, int(retention_seconds * 1_000_000), PAGE))
    return [row["id"] for row in rows]


LOCK_REQUEST = """
SELECT tenant, public_id, segments,
       status = 'cancelled' AND deadline >= NOW(6) - INTERVAL %s MICROSECOND AS waits_for_leases
FROM   requests
WHERE  id = %s
FOR UPDATE SKIP LOCKED
"""

# All segments are locked before anything is counted: a late write-back between the sum and the
# delete would be accepted, deleted and never billed. When a frozen client has locked one, fewer are
# locked than the request has. The server counts them, because the driver would take as long for a
# hundred rows as for the rest of the settlement.
LOCK_SEGMENTS = """
SELECT COUNT(*) AS locked,
       COALESCE(SUM(status = 'processing' AND lease_until >= NOW(6)), 0) AS live
FROM   segments
WHERE  request_id = %s
FOR UPDATE SKIP LOCKED
"""

# Counts through the outcome: what the answer contained, whatever became done later. For a cancelled
# or abandoned request, segments that were in flight at the close count too, when they became done.
METER = """
INSERT INTO meter
       (tenant, public_id, status, segments, input_characters, output_characters, billed,
        settled_at)
SELECT r.tenant, r.public_id, r.status,
       COUNT(s.index_no),
       COALESCE(SUM(CHAR_LENGTH(s.source)), 0),
       COALESCE(SUM(CHAR_LENGTH(s.result)), 0),
       r.status <> 'abandoned',
       NOW(6)
FROM   requests r
LEFT   JOIN segments s
       ON  s.request_id = r.id
       AND s.status = 'done'
       AND (SUBSTRING(r.outcome, s.index_no + 1, 1) = 'd'
            OR r.status <> 'completed' AND SUBSTRING(r.outcome, s.index_no + 1, 1) = 'r')
WHERE  r.id = %s
GROUP  BY r.id, r.tenant, r.public_id, r.status
"""

DELETE_SEGMENTS = "DELETE FROM segments WHERE request_id = %s"

DELETE_REQUEST = "DELETE FROM requests WHERE id = %s"


async def settle(db: Database, request_id: int, retention_seconds: float) -> Settling:
    """Meter a final request and delete it: record first, delete second, commit once.

    Only for ids that were read as final. Returns "deferred" when another client has locked one of
    its segments, or when it was cancelled and the lease of an in-flight segment is live, but not
    after deadline + retention. Returns "gone" when another batch has locked it or settled it first.
    """
    began = time.monotonic()
    record: Row | None = None

    async def run(_: Exception | None) -> Settling:
        nonlocal record
        async with db.transaction() as cursor:
            await cursor.execute(LOCK_REQUEST, (int(retention_seconds * 1_000_000), request_id))
            request = await cursor.fetchone()
            if request is None:
                # The previous run may have been committed, and only its reply lost.
                is_ours = record is not None and record == await read_record(cursor, record)
                return "settled" if is_ours else "gone"
            await cursor.execute(LOCK_SEGMENTS, (request_id,))
            segments = await cursor.fetchone()
            if segments["locked"] < request["segments"]:
                return "deferred"
            if request["waits_for_leases"] and segments["live"]:
                return "deferred"
            await record_and_delete(cursor, request_id)
            record = await read_record(cursor, request)
        return "settled"

    settling = await db.retry(run)
    SETTLEMENTS[settling].inc()
    if settling == "settled" and record is not None:
        SETTLEMENT_DURATION.observe(time.monotonic() - began)
        log_settlement(request_id, record)
    return settling


async def record_and_delete(cursor: aiomysql.DictCursor, request_id: int) -> None:
    """Write the record and delete the rows, inside the transaction of the caller."""
    await cursor.execute(METER, (request_id,))
    await cursor.execute(DELETE_SEGMENTS, (request_id,))
    await cursor.execute(DELETE_REQUEST, (request_id,))


RECORD = """
SELECT tenant, public_id, status, segments, input_characters, output_characters, billed, settled_at
FROM   meter
WHERE  tenant = %s
  AND  public_id = %s
"""


async def read_record(cursor: aiomysql.DictCursor, request: Row) -> Row | None:
    """The record of this tenant and id; None when there is none."""
    await cursor.execute(RECORD, (request["tenant"], request["public_id"]))
    record: Row | None = await cursor.fetchone()
    return record


def log_settlement(request_id: int, record: Row) -> None:
    """Log a settlement, and count what it bills."""
    if record["billed"]:
        METERED_SEGMENTS.inc(record["segments"])
        METERED_CHARACTERS["input"].inc(record["input_characters"])
        METERED_CHARACTERS["output"].inc(record["output_characters"])
    log.info(
        "request settled",
        extra={
            "request_id": record["public_id"],
            "tenant": record["tenant"],
            "request_no": request_id,
            "outcome": record["status"],
            "segments": record["segments"],
        },
    )
