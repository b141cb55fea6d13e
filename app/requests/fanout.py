"""A request becomes its segments in one transaction, so that no worker sees half of it."""

import json

from pymysql.err import IntegrityError, OperationalError

from partway.app.requests.ledger import Settled, find_metered
from partway.app.requests.split import BLANK
from partway.app.requests.submission import Submission
from partway.store.database import Database, Unavailable, error_number, retried

DUPLICATE = 1062
LOCK_WAIT = 1205

INSERT_REQUEST = """
INSERT INTO requests
       (tenant, public_id, body_hash, segments, characters, params, gaps, on_missing, traceparent,
        created_at, deadline)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s,
        NOW(6) - INTERVAL %s MICROSECOND,
        NOW(6) + INTERVAL %s MICROSECOND)
"""

# Blank segments that a caller sent among others have nothing to compute: they are done from the
# start, and no handler ever meets them.
INSERT_SEGMENTS = """
INSERT INTO segments (request_id, index_no, status, source, result)
VALUES (%s, %s, %s, %s, %s)
"""


@retried
async def submit(
    db: Database,
    tenant: str,
    new: Submission,
    waited_seconds: float,
    traceparent: str | None = None,
) -> bool:
    """True when the request is stored; False when its id is there already (find it and compare).

    The deadline counts from when the call came in, `waited_seconds` ago. Raises Settled, and
    Unavailable when another node holds the same id in a transaction that does not end.
    """
    waited = int(waited_seconds * 1_000_000)
    separators = json.dumps(new.pieces.separators, ensure_ascii=False) if new.is_document else None
    try:
        async with db.transaction() as cursor:
            await cursor.execute(
                INSERT_REQUEST,
                (
                    *(tenant, new.public_id, new.body_hash),
                    *(len(new.pieces.sources), new.pieces.characters, new.params),
                    *(
                        separators,
                        new.on_missing,
                        traceparent,
                        waited,
                        new.deadline_ms * 1000 - waited,
                    ),
                ),
            )
            request_id = cursor.lastrowid
            # After the insert, never before: an insert that waited for settlement to delete the
            # same id would succeed on a look that is older than the record.
            metered = await find_metered(cursor, tenant, new.public_id)
            if metered is not None:
                raise Settled(metered)
            await cursor.executemany(
                INSERT_SEGMENTS,
                [
                    (request_id, index_no, "pending", source, None)
                    if source.strip(BLANK)
                    else (request_id, index_no, "done", source, source)
                    for index_no, source in enumerate(new.pieces.sources)
                ],
            )
    except IntegrityError as error:
        # Our own commit, if its reply was lost, or another call with the same id: both join it.
        if error_number(error) == DUPLICATE:
            return False
        raise
    except OperationalError as error:
        if error_number(error) == LOCK_WAIT:
            raise Unavailable("another call is submitting this id and does not end") from error
        raise
    return True
