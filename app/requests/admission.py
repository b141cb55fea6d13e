"""The tables hold only so much active work, so a node refuses new requests beyond a limit."""

import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from partway.app.problems import Problem
from partway.app.settings import AppSettings
from partway.store.database import Database

log = logging.getLogger("partway.app")

# At the limit a node becomes full and free again many times a second. One line in this time is
# enough for an operator.
LOG_INTERVAL_SECONDS = 10.0

# The least and the most. Within this time some of the active requests end.
RETRY_WHEN_FULL_SECONDS = (2, 10)

# One read through the index, without a lock, of never more rows than the limit. Requests whose
# deadline has passed do not count: if a node dies and no batch runs, its requests stay active, and
# they would fill the limit for ever. A request counts with all of its text until it is closed,
# since only its segments say how much of it is done. MariaDB reads the whole table when a quarter
# of it is active, so the index is named.
ACTIVE_TOTALS = """
SELECT COUNT(*) AS requests, COALESCE(SUM(characters), 0) AS characters,
       COALESCE(SUM(tenant = %s), 0) AS of_the_tenant,
       TIMESTAMPDIFF(MICROSECOND, NOW(6), MIN(CASE WHEN tenant = %s THEN deadline END))
         AS one_ends_in_microseconds
FROM   (SELECT tenant, characters, deadline
        FROM   requests FORCE INDEX (by_status)
        WHERE  status = 'active'
          AND  deadline > NOW(6)
        LIMIT  %s) AS active
"""


@dataclass(frozen=True)
class ActiveTotals:
    """How much is active, in all and of one tenant, and when that tenant's next deadline is."""

    requests: int
    characters: int
    of_the_tenant: int
    tenant_deadline_in_seconds: int


async def read_active_totals(db: Database, tenant: str, most_requests: int) -> ActiveTotals:
    """How much is active now; it counts no more than `most_requests` requests."""
    row = (await db.read(ACTIVE_TOTALS, (tenant, tenant, most_requests)))[0]
    return ActiveTotals(
        row["requests"],
        int(row["characters"]),
        int(row["of_the_tenant"]),
        -(-(row["one_ends_in_microseconds"] or 0) // 1_000_000),
    )


class AdmissionControl:
    """Decides whether one more request may be stored; counts what this node is storing.

    Requests that are being stored are in no row yet, so each node adds its own to what it reads. It
    does not know those of other nodes, and its read may be older than the last commit. So the
    limits can be exceeded by as many requests as are being stored at that moment.

    The limits protect the tables, and one tenant from another. They do not refuse a request that
    may not be finished in time: simulation showed that this does not pay, since partial answers
    are the product.
    """

    def __init__(self, settings: AppSettings) -> None:
        self._settings = settings
        self._requests: Counter[str] = Counter()
        self._characters = 0
        self._next_log_at = float("-inf")

    async def check(self, db: Database, tenant: str) -> None:
        """Raise Problem 429 or 503 when no further request may be stored.

        Call it directly before `storing`, so that no other call comes between them.
        """
        limits = self._settings
        active = await read_active_totals(db, tenant, limits.max_active_requests)
        of_the_tenant = active.of_the_tenant + self._requests[tenant]
        if limits.tenant_active_requests and of_the_tenant >= limits.tenant_active_requests:
            raise Problem(
                "too-many-requests",
                f"{of_the_tenant} requests of this tenant are active; "
                f"{limits.tenant_active_requests} are allowed. Nothing was stored.",
                retry_after_seconds=max(active.tenant_deadline_in_seconds, 1),
            )
        requests = active.requests + self._requests.total()
        characters = active.characters + self._characters
        if requests < limits.max_active_requests and characters < limits.max_waiting_characters:
            return
        if time.monotonic() > self._next_log_at:
            log.warning("full: %d requests of %d characters are active", requests, characters)
            self._next_log_at = time.monotonic() + LOG_INTERVAL_SECONDS
        raise Problem(
            "overloaded",
            "The service has as much active work as it accepts. Nothing was stored.",
            # Random, so that callers that were refused together do not retry together.
            retry_after_seconds=random.randint(*RETRY_WHEN_FULL_SECONDS),
        )

    @contextmanager
    def storing(self, tenant: str, characters: int) -> Iterator[None]:
        """Count a request as active for as long as the block stores it."""
        self._requests[tenant] += 1
        self._characters += characters
        try:
            yield
        finally:
            self._requests[tenant] -= 1
            self._characters -= characters
            # This removes tenants with a count of 0, or the counter would grow for ever.
            self._requests += Counter()
