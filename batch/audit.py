"""Recomputes the laws from the rows and the ledger, so that an operator can check them."""

from collections.abc import Mapping

from partway.store.database import Database, Row

# How many requests, or records, one statement reads: it stays short, however full the tables are.
REQUESTS_READ = 200
RECORDS_READ = 10_000

# A batch that runs closes an overdue request, and settles a final one, much sooner.
OVERDUE_SECONDS = 60
UNSETTLED_SECONDS = 3600

# The largest values that settings allow for a lease, the attempts, a segment and a result.
LONGEST_LEASE_SECONDS = 3600
MOST_ATTEMPTS = 100
LONGEST_SEGMENT = 1_000_000
LONGEST_RESULT = 4_000_000

# A row that was committed while the statement started may be slightly younger than the statement.
CLOCK_SECONDS = 10

# The conditions that must never be true of a request and its segments, as aggregates over the rows
# of one request. What the tables themselves refuse is not checked, such as a missing result, an
# outcome that is too short, or a second record.
BREACHES: Mapping[str, str] = {
    "law 1: a segment is claimed without a token, a lease or an attempt": """
        MAX(s.status = 'processing'
            AND (s.lease_token IS NULL OR s.lease_until IS NULL OR s.attempts = 0))""",
    "law 1: a segment that is not claimed has a lease token": """
        MAX(s.status IN ('pending', 'failed') AND s.lease_token IS NOT NULL)""",
    "law 1: a segment is done and was never claimed": """
        MAX(s.status = 'done' AND s.lease_token IS NULL
            AND (s.attempts > 0 OR s.result <> s.source))""",
    "law 1: a lease is longer than any setting allows": """
        MAX(s.status = 'processing' AND s.lease_until > NOW(6) + INTERVAL %(lease)s SECOND)""",
    "law 2: the outcome has a letter for a finished segment that is not finished": """
        MAX(SUBSTRING(r.outcome, s.index_no + 1, 1) = 'd' AND s.status <> 'done'
            OR SUBSTRING(r.outcome, s.index_no + 1, 1) = 'f' AND s.status <> 'failed')""",
    "law 2: the outcome has an unknown letter": """
        MAX(r.outcome REGEXP '[^dfpr]')""",
    "law 2: a request is final without closed_at, or active with closed_at": """
        MAX((r.status = 'active') <> (r.closed_at IS NULL))""",
    "law 3: the characters of a request differ from those of its segments": """
        COUNT(s.index_no) = MAX(r.segments)
        AND COALESCE(SUM(CHAR_LENGTH(s.source)), 0) <> MAX(r.characters)""",
    "law 4: a request does not have all of its segments": """
        COUNT(s.index_no) <> MAX(r.segments) OR MAX(s.index_no) <> MAX(r.segments) - 1""",
    "law 4: a request was final long ago and is not settled (does a batch run?)": """
        MAX(r.status <> 'active'
            AND GREATEST(r.closed_at, r.deadline) < NOW(6) - INTERVAL %(unsettled)s SECOND)""",
    "law 6: a request is active long after its deadline (does a batch run?)": """
        MAX(r.status = 'active' AND r.deadline < NOW(6) - INTERVAL %(overdue)s SECOND)""",
    "law 6: a segment was claimed more often than any setting allows": """
        MAX(s.attempts > %(attempts)s)""",
    "law 6: a segment has failed without an error": """
        MAX(s.status = 'failed' AND s.error IS NULL)""",
    "law 7: the id is metered and its request still exists": """
        MAX(m.public_id IS NOT NULL)""",
    "law 9: a request ends before it begins, or begins or ends in the future": """
        MAX(r.deadline < r.created_at
            OR COALESCE(r.closed_at, r.deadline) < r.created_at
            OR COALESCE(r.closed_at, r.created_at) > NOW(6) + INTERVAL %(clock)s SECOND
            OR r.created_at > NOW(6) + INTERVAL %(clock)s SECOND)""",
}

# One statement checks all conditions, so it reads one snapshot: it sees a request before or after a
# claim or a settlement, never in between.
AUDIT_REQUESTS = f"""
SELECT r.tenant, r.public_id,
       {", ".join(f"{breach} AS b{number}" for number, breach in enumerate(BREACHES.values()))}
FROM   requests r
LEFT   JOIN segments s ON s.request_id = r.id
LEFT   JOIN meter m ON m.tenant = r.tenant AND m.public_id = r.public_id
WHERE  r.id > %(after)s
  AND  r.id <= %(last)s
GROUP  BY r.id, r.tenant, r.public_id
"""  # noqa: S608 - it contains constants only

ORPHANS = """
SELECT DISTINCT s.request_id
FROM   segments s
LEFT   JOIN requests r ON r.id = s.request_id
WHERE  s.request_id > %(after)s
  AND  s.request_id <= %(last)s
  AND  r.id IS NULL
"""

PAGE_OF_REQUESTS = "SELECT id FROM requests WHERE id > %s ORDER BY id LIMIT %s"

# After the last request, there may be segments without a request.
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
    "wrongly_billed": "law 3: a record is billed and abandoned, or neither",
    "too_large": "law 3: a record has more characters than its segments can have",
    "in_the_future": "law 9: a record was settled in the future",
}


async def audit(db: Database, grace_seconds: float, retention_seconds: float) -> list[Row]:
    """Each breach of a law that the rows and the ledger show; [] when there is none.

    It locks nothing and reads every row: 200 requests with their segments and texts in one
    statement, then 10,000 records in one statement.
    """
    limits = {
        "overdue": grace_seconds + OVERDUE_SECONDS,
        "unsettled": retention_seconds + UNSETTLED_SECONDS,
        "lease": LONGEST_LEASE_SECONDS + CLOCK_SECONDS,
        "attempts": MOST_ATTEMPTS,
        "clock": CLOCK_SECONDS,
    }
    return [*await request_breaches(db, limits), *await record_breaches(db)]


async def request_breaches(db: Database, limits: Mapping[str, float]) -> list[Row]:
    """The breaches that requests and segments show; [] when there is none."""
    breaches: list[Row] = []
    after = 0
    while after < HIGHEST_ID:
        ids = await db.read(PAGE_OF_REQUESTS, (after, REQUESTS_READ))
        last = ids[-1]["id"] if len(ids) == REQUESTS_READ else HIGHEST_ID
        page = {**limits, "after": after, "last": last}
        breaches += [
            breach(law, row["tenant"], row["public_id"])
            for row in await db.read(AUDIT_REQUESTS, page)
            for number, law in enumerate(BREACHES)
            if row[f"b{number}"]
        ]
        breaches += [
            breach(
                "law 4: segments exist without their request",
                "?",
                f"request {row['request_id']}",
            )
            for row in await db.read(ORPHANS, page)
        ]
        after = last
    return breaches


async def record_breaches(db: Database) -> list[Row]:
    """The breaches that the records show by themselves; [] when there is none."""
    breaches: list[Row] = []
    tenant = public_id = ""
    while True:
        values = (LONGEST_SEGMENT, LONGEST_RESULT, CLOCK_SECONDS, tenant, tenant, public_id)
        rows = await db.read(PAGE_OF_RECORDS, (*values, RECORDS_READ))
        breaches += [
            breach(law, row["tenant"], row["public_id"])
            for row in rows
            for name, law in RECORD_BREACHES.items()
            if row[name]
        ]
        if len(rows) < RECORDS_READ:
            return breaches
        tenant, public_id = rows[-1]["tenant"], rows[-1]["public_id"]


def breach(law: str, tenant: str, public_id: str) -> Row:
    """One line of the report."""
    return {"breach": law, "tenant": tenant, "id": public_id}
