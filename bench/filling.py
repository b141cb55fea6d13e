"""A million rows must be there within seconds, so the server makes them itself."""

import secrets
from collections.abc import Iterator
from typing import Literal

# What the rows are: waiting for workers, answered and not settled yet, or cancelled unfinished.
Kind = Literal["waiting", "done", "cancelled"]

Statement = tuple[str, tuple[object, ...]]

# As many as a server makes in a transaction of about a second.
SEGMENTS_AT_ONCE = 20_000

# 1 to 10,000: what counts in one server's SQL is an error in the other's.
NUMBERS = """
CREATE TABLE IF NOT EXISTS numbers (PRIMARY KEY (n))
SELECT a.d + b.d * 10 + c.d * 100 + e.d * 1000 + 1 AS n
FROM   (digits) a, (digits) b, (digits) c, (digits) e
""".replace(
    "(digits)", "(SELECT 0 AS d" + "".join(f" UNION SELECT {d}" for d in range(1, 10)) + ")"
)

INSERT_REQUESTS = """
INSERT INTO requests
       (tenant, public_id, body_hash, status, segments, characters, params, on_missing,
        created_at, deadline, closed_at, outcome)
SELECT IF(%s = 1, 'default', CONCAT('tenant-', MOD(n, %s))), CONCAT(%s, n), UNHEX(SHA2('', 256)),
       %s, %s, %s, '{}', 'null',
       NOW(6) - INTERVAL 10 MINUTE, NOW(6) + INTERVAL 1 HOUR,
       IF(%s = '', NULL, NOW(6) - INTERVAL 5 MINUTE),
       IF(%s = '', NULL, REPEAT(%s, %s))
FROM   numbers
WHERE  n <= %s
ORDER  BY n
"""

# From the first number of that insert on, request by request: in the order of the primary key.
INSERT_SEGMENTS = """
INSERT INTO segments (request_id, index_no, status, attempts, source, result)
SELECT STRAIGHT_JOIN r.id, s.n - 1, %s, %s, REPEAT('x', %s), IF(%s, REPEAT('y', %s), NULL)
FROM   requests r
JOIN   numbers s ON s.n <= r.segments
WHERE  r.id >= LAST_INSERT_ID()
  AND  r.public_id LIKE %s
"""


def filling(
    kind: Kind, requests: int, segments: int, tenants: int = 1, characters: int = 500
) -> Iterator[tuple[Statement, ...]]:
    """The statements that add so many requests of so many segments.

    All for one session; those that come together are one transaction where workers look on. A
    single tenant is the one of calls without a key.
    """
    status, row, letter = {
        "waiting": ("active", "pending", ""),
        "done": ("completed", "done", "d"),
        "cancelled": ("cancelled", "pending", "p"),
    }[kind]
    is_done = row == "done"
    yield ((NUMBERS, ()),)
    at_once = max(SEGMENTS_AT_ONCE // segments, 1)
    for first in range(0, requests, at_once):
        name = f"{kind}-{secrets.token_hex(6)}-"
        count = min(at_once, requests - first)
        whose = (tenants, tenants, name)
        what = (status, segments, segments * characters)
        of_segments = (row, int(is_done), characters, is_done, characters, f"{name}%")
        yield (
            (INSERT_REQUESTS, (*whose, *what, letter, letter, letter, segments, count)),
            (INSERT_SEGMENTS, of_segments),
        )
