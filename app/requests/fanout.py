"""A request and its segments are stored in one transaction, so that no worker sees half of it."""

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

# A blank segment needs no computation. It is stored as done, and no handler gets it.
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
    """True when this call stored the request; False when its id exists already.

    The call arrived `waited_seconds` ago, and the deadline counts from then. Raises Settled, and
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
            # This read must come after the insert. An insert may have to wait until a settlement
            # has deleted the same id. Then a read from before the insert would not find the record.
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
        # Another call stored the same id, or this call did and the reply to its commit was lost.
        if error_number(error) == DUPLICATE:
            return False
        raise
    except OperationalError as error:
        if error_number(error) == LOCK_WAIT:
            raise Unavailable("another call is submitting this id and does not end") from error
        raise
    return True
