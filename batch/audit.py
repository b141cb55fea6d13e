"""Whoever runs it need not believe that the laws hold: they are recomputed from rows and ledger."""

from collections.abc import Mapping

from partway.store.database import Database, Row

# So many requests, or records, are read at once: a statement stays short however full the tables.
REQUESTS_READ = 200
RECORDS_READ = 10_000

# A batch that runs has closed an overdue request long before, and settled a final one.
OVERDUE_SECONDS = 60
UNSETTLED_SECONDS = 3600

# The most that any program can be told: a lease, the attempts, a segment and a result.
LONGEST_LEASE_SECONDS = 3600
MOST_ATTEMPTS = 100
LONGEST_SEGMENT = 1_000_000
LONGEST_RESULT = 4_000_000

# What was committed while the statement began may be a moment younger than it.
CLOCK_SECONDS = 10

# What no request and none of its segments may be, over the rows of one request. Not here: what the
# tables themselves refuse, such as a result that is missing, an outcome too short, a second record.
BREACHES: Mapping[str, str] = {
    "law 1: a segment is claimed without a token, a lease or an attempt": """
        MAX(s.status = 'processing'
            AND (s.lease_token IS NULL OR s.lease_until IS NULL OR s.attempts = 0))""",
    "law 1: a segment that nobody holds has the token of a claim": """
        MAX(s.status IN ('pending', 'failed') AND s.lease_token IS NOT NULL)""",
    "law 1: a segment is done by nobody": """
        MAX(s.status = 'done' AND s.lease_token IS NULL
            AND (s.attempts > 0 OR s.result <> s.source))""",
    "law 1: a lease is longer than any worker can be told": """
        MAX(s.status = 'processing' AND s.lease_until > NOW(6) + INTERVAL %(lease)s SECOND)""",
    "law 2: the answer names a segment as finished that is not": """
        MAX(SUBSTRING(r.outcome, s.index_no + 1, 1) = 'd' AND s.status <> 'done'
            OR SUBSTRING(r.outcome, s.index_no + 1, 1) = 'f' AND s.status <> 'failed')""",
    "law 2: the answer has a letter that means nothing": """
        MAX(r.outcome REGEXP '[^dfpr]')""",
    "law 2: a request is final and has no time of its close, or is active and has one": """
        MAX((r.status = 'active') <> (r.closed_at IS NULL))""",
    "law 3: the characters of a request are not those of its segments": """
        COUNT(s.index_no) = MAX(r.segments)
        AND COALESCE(SUM(CHAR_LENGTH(s.source)), 0) <> MAX(r.characters)""",
    "law 4: a request does not have all of its segments": """
        COUNT(s.index_no) <> MAX(r.segments) OR MAX(s.index_no) <> MAX(r.segments) - 1""",
    "law 4: a request was final long ago and is not settled (does a batch run?)": """
        MAX(r.status <> 'active'
            AND GREATEST(r.closed_at, r.deadline) < NOW(6) - INTERVAL %(unsettled)s SECOND)""",
    "law 6: a request is active long after its deadline (does a batch run?)": """
        MAX(r.status = 'active' AND r.deadline < NOW(6) - INTERVAL %(overdue)s SECOND)""",
    "law 6: a segment was claimed more often than any worker can be told": """
        MAX(s.attempts > %(attempts)s)""",
    "law 6: a segment has failed and nobody says why": """
        MAX(s.status = 'failed' AND s.error IS NULL)""",
    "law 7: the id is metered and lives": """
        MAX(m.public_id IS NOT NULL)""",
    "law 9: a request ends before it begins, or begins or ends in the future": """
        MAX(r.deadline < r.created_at
            OR COALESCE(r.closed_at, r.deadline) < r.created_at
            OR COALESCE(r.closed_at, r.created_at) > NOW(6) + INTERVAL %(clock)s SECOND
            OR r.created_at > NOW(6) + INTERVAL %(clock)s SECOND)""",
}

# One statement, and so one view, for all of them: a request that is claimed from or settled in the
# meantime is seen before or after, never between.
AUDIT_REQUESTS = f"""
SELECT r.tenant, r.public_id,
       {", ".join(f"{breach} AS b{number}" for number, breach in enumerate(BREACHES.values()))}
FROM   requests r
LEFT   JOIN segments s ON s.request_id = r.id
LEFT   JOIN meter m ON m.tenant = r.tenant AND m.public_id = r.public_id
WHERE  r.id > %(after)s
  AND  r.id <= %(last)s
GROUP  BY r.id, r.tenant, r.public_id
"""  # noqa: S608 - nothing of it comes from outside

ORPHANS = """
SELECT DISTINCT s.request_id
FROM   segments s
LEFT   JOIN requests r ON r.id = s.request_id
WHERE  s.request_id > %(after)s
  AND  s.request_id <= %(last)s
  AND  r.id IS NULL
"""

PAGE_OF_REQUESTS = "SELECT id FROM requests WHERE id > %s ORDER BY id LIMIT %s"

# Behind the last request, segments that have lost theirs may lie.
HIGHEST_ID = 2**64 - 1

PAGE_OF_RECORDS = """
SELECT tenant, public_id,
       billed = (status = 'abandoned') AS wrongly_billed,
       input_characters > segments * %s OR output_characters > segments * %s AS too_large,
       settled_at > NOW(6) + INTERVAL %s SECOND AS in_the_future
FROM   meter
WHERE  tenant > %s
   OR  tenant = %s AND public_id > %s
ORDER  BY tenant, public_id
LIMIT  %s
"""

RECORD_BREACHES: Mapping[str, str] = {
    "wrongly_billed": "law 3: a record is billed though nobody was answered, or the reverse",
    "too_large": "law 3: a record has more characters than its segments can have",
    "in_the_future": "law 9: a record is of the future",
}


async def audit(db: Database, grace_seconds: float, retention_seconds: float) -> list[Row]:
    """Each breach of a law that the rows and the ledger show; [] when they agree.

    It locks nothing, and reads every row: two hundred requests with their segments and texts in one
    statement, then ten thousand records.
    """
    limits = {
        "overdue": grace_seconds + OVERDUE_SECONDS,
        "unsettled": retention_seconds + UNSETTLED_SECONDS,
        "lease": LONGEST_LEASE_SECONDS + CLOCK_SECONDS,
        "attempts": MOST_ATTEMPTS,
        "clock": CLOCK_SECONDS,
    }
    return [*await in_requests(db, limits), *await in_records(db)]


async def in_requests(db: Database, limits: Mapping[str, float]) -> list[Row]:
    """The breaches that requests and segments show; [] when there is none."""
    found: list[Row] = []
    after = 0
    while after < HIGHEST_ID:
        ids = await db.read(PAGE_OF_REQUESTS, (after, REQUESTS_READ))
        last = ids[-1]["id"] if len(ids) == REQUESTS_READ else HIGHEST_ID
        page = {**limits, "after": after, "last": last}
        found += [
            breach(law, row["tenant"], row["public_id"])
            for row in await db.read(AUDIT_REQUESTS, page)
            for number, law in enumerate(BREACHES)
            if row[f"b{number}"]
        ]
        found += [
            breach(
                "law 4: segments are left of a request that is gone",
                "?",
                f"request {row['request_id']}",
            )
            for row in await db.read(ORPHANS, page)
        ]
        after = last
    return found


async def in_records(db: Database) -> list[Row]:
    """The breaches that the ledger shows by itself; [] when there is none."""
    found: list[Row] = []
    tenant = public_id = ""
    while True:
        values = (LONGEST_SEGMENT, LONGEST_RESULT, CLOCK_SECONDS, tenant, tenant, public_id)
        rows = await db.read(PAGE_OF_RECORDS, (*values, RECORDS_READ))
        found += [
            breach(law, row["tenant"], row["public_id"])
            for row in rows
            for name, law in RECORD_BREACHES.items()
            if row[name]
        ]
        if len(rows) < RECORDS_READ:
            return found
        tenant, public_id = rows[-1]["tenant"], rows[-1]["public_id"]


def breach(law: str, tenant: str, public_id: str) -> Row:
    """One line of the report."""
    return {"breach": law, "tenant": tenant, "id": public_id}
