"""The tables are made for so much at once; beyond that a node says so before it stores anything."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from app.settings import AppSettings
from store.database import Database

log = logging.getLogger("partway.app")

# At the limit it is full and not full many times a second; an operator needs to hear it once.
SILENT_SECONDS = 10.0

# One look by the index, no lock, and never more rows than the limit. Those whose deadline has
# passed do not count: without a batch, a node that died would otherwise close the door for ever.
# A request counts with all of its text until it is closed, since to know what of it is done one
# would have to read its segments. Where a quarter of all is active, MariaDB would rather read the
# whole table, so the index is named.
STANDING = """
SELECT COUNT(*) AS requests, COALESCE(SUM(characters), 0) AS characters
FROM   (SELECT characters
        FROM   requests FORCE INDEX (by_status)
        WHERE  status = 'active'
          AND  deadline > NOW(6)
        LIMIT  %s) AS active
"""


class Room:
    """What this node is about to store, which no look at the rows can show yet.

    Refusing what may not be finished in time does not pay, as was simulated: partial answers are
    the product. This protects the tables and nothing else. Nodes do not see what others are about
    to store, and a look may be older than the last commit: the limits may be passed by as many
    requests as are being stored at that moment.
    """

    def __init__(self, settings: AppSettings) -> None:
        self._most_requests = settings.max_active_requests
        self._most_characters = settings.max_waiting_characters
        self._requests = 0
        self._characters = 0
        self._silent_until = float("-inf")

    async def is_full(self, db: Database) -> bool:
        """Whether as much waits as may; ask it immediately before `storing`."""
        standing = (await db.read(STANDING, (self._most_requests,)))[0]
        requests = standing["requests"] + self._requests
        characters = int(standing["characters"]) + self._characters
        full = requests >= self._most_requests or characters >= self._most_characters
        if full and time.monotonic() > self._silent_until:
            log.warning("full: %d requests of %d characters are active", requests, characters)
            self._silent_until = time.monotonic() + SILENT_SECONDS
        return full

    @contextmanager
    def storing(self, characters: int) -> Iterator[None]:
        """Count a request as there for as long as the block stores it."""
        self._requests += 1
        self._characters += characters
        try:
            yield
        finally:
            self._requests -= 1
            self._characters -= characters
