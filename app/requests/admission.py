"""The tables are made for so much at once; beyond that a node says so before it stores anything."""

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

# At the limit it is full and not full many times a second; an operator needs to hear it once.
SILENT_SECONDS = 10.0

# The least and the most: the first of what waits has ended by then.
RETRY_WHEN_FULL_SECONDS = (2, 10)

# One look by the index, no lock, and never more rows than the limit. Those whose deadline has
# passed do not count: without a batch, a node that died would otherwise close the door for ever.
# A request counts with all of its text until it is closed, since to know what of it is done one
# would have to read its segments. Where a quarter of all is active, MariaDB would rather read the
# whole table, so the index is named.
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
    """What is active, of everybody and of one tenant, and when the first of the tenant's ends."""

    requests: int
    characters: int
    of_the_tenant: int
    one_ends_in_seconds: int


async def read_active_totals(db: Database, tenant: str, most_requests: int) -> ActiveTotals:
    """What is active now, as far as the limit."""
    row = (await db.read(ACTIVE_TOTALS, (tenant, tenant, most_requests)))[0]
    return ActiveTotals(
        row["requests"],
        int(row["characters"]),
        int(row["of_the_tenant"]),
        -(-(row["one_ends_in_microseconds"] or 0) // 1_000_000),
    )


class AdmissionControl:
    """What this node is about to store, which no look at the rows can show yet.

    Refusing what may not be finished in time does not pay, as was simulated: partial answers are
    the product. This protects the tables, and one tenant from another. Nodes do not see what others
    are about to store, and a look may be older than the last commit: the limits may be passed by as
    many requests as are being stored at that moment.
    """

    def __init__(self, settings: AppSettings) -> None:
        self._settings = settings
        self._requests: Counter[str] = Counter()
        self._characters = 0
        self._silent_until = float("-inf")

    async def check(self, db: Database, tenant: str) -> None:
        """Nothing when one more may come in, else Problem 429 or 503; ask just before `storing`."""
        limits = self._settings
        standing = await read_active_totals(db, tenant, limits.max_active_requests)
        of_the_tenant = standing.of_the_tenant + self._requests[tenant]
        if limits.tenant_active_requests and of_the_tenant >= limits.tenant_active_requests:
            raise Problem(
                "too-many-requests",
                f"{of_the_tenant} requests are active, of {limits.tenant_active_requests} that may "
                "be. Nothing was stored.",
                retry_after_seconds=max(standing.one_ends_in_seconds, 1),
            )
        requests = standing.requests + self._requests.total()
        characters = standing.characters + self._characters
        if requests < limits.max_active_requests and characters < limits.max_waiting_characters:
            return
        if time.monotonic() > self._silent_until:
            log.warning("full: %d requests of %d characters are active", requests, characters)
            self._silent_until = time.monotonic() + SILENT_SECONDS
        raise Problem(
            "overloaded",
            "As much waits as this service takes; nothing was stored.",
            # Uneven, so that those who were refused together do not come back together.
            retry_after_seconds=random.randint(*RETRY_WHEN_FULL_SECONDS),
        )

    @contextmanager
    def storing(self, tenant: str, characters: int) -> Iterator[None]:
        """Count a request as there for as long as the block stores it."""
        self._requests[tenant] += 1
        self._characters += characters
        try:
            yield
        finally:
            self._requests[tenant] -= 1
            self._characters -= characters
            # A tenant is not remembered for ever.
            self._requests += Counter()
