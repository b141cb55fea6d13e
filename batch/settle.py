"""Metering and deleting are one transaction: the bill is the answer, counted once, never lost."""

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

# How many candidates are read at once: after days without a batch there may be a million.
PAGE = 1000

# Read without a lock: a candidate that is locked in order of id locks every other candidate on
# MySQL, and a lock on an active row would make its close wait. In order of id, by the primary key
# (measured: 10 ms past 50,000 active requests), so that the next page begins behind this one.
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
    """A page of the final requests that were kept long enough, of those with an id above `after`.

    Fewer than PAGE when no more lie behind them.
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

# All of them, before anything is counted: a late write-back between the sum and the delete would be
# accepted, deleted and never billed. A frozen client may hold one; then there are fewer than the
# request has. Counted by the server, for a driver takes as long for a hundred rows as for the rest.
LOCK_SEGMENTS = """
SELECT COUNT(*) AS locked,
       COALESCE(SUM(status = 'processing' AND lease_until >= NOW(6)), 0) AS live
FROM   segments
WHERE  request_id = %s
FOR UPDATE SKIP LOCKED
"""

# Counted through the outcome: what the caller was answered, whatever has become done since. Of a
# cancelled request the stragglers count too, those that ran at the close.
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

    Only for ids that were read as final. "deferred" when somebody holds one of its rows, or when it
    was cancelled and a straggler's lease is live, though not beyond deadline + keep; "gone" when
    another batch holds it or was first.
    """
    began = time.monotonic()
    record: Row | None = None

    async def once(_: Exception | None) -> Settling:
        nonlocal record
        async with db.transaction() as cursor:
            await cursor.execute(LOCK_REQUEST, (int(retention_seconds * 1_000_000), request_id))
            request = await cursor.fetchone()
            if request is None:
                # The run before may have been committed and only its reply lost.
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

    settling = await db.retry(once)
    SETTLEMENTS[settling].inc()
    if settling == "settled" and record is not None:
        SETTLEMENT_DURATION.observe(time.monotonic() - began)
        log_settlement(request_id, record)
    return settling


async def record_and_delete(cursor: aiomysql.DictCursor, request_id: int) -> None:
    """Nothing; afterwards the record is there and the rows are not, once the caller commits."""
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
    """The record of this tenant's id; None when there is none."""
    await cursor.execute(RECORD, (request["tenant"], request["public_id"]))
    found: Row | None = await cursor.fetchone()
    return found


def log_settlement(request_id: int, record: Row) -> None:
    """Log a settlement, and count what is billed of it; nothing comes back."""
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
