"""Chooses the request to claim from: under overload this decides which requests get complete."""

import random
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from partway.store.database import Database

# The order is fixed, so requests whose segments all run can fill the head of the list. A short list
# would hide the others.
LIST_LENGTH = 1000

# In simulation an older list cost complete answers, and a younger one gained none.
LIST_SECONDS = 0.25

# A list with nothing left to claim is read again soon, but not after every result.
DRY_SECONDS = 0.02

# The median of the recent runs of this process tells which segments it cannot finish in time. Fewer
# runs than RUNS_NEEDED tell nothing. Old runs are dropped: a process that was slow and therefore
# starts nothing would never learn that it is fast again.
RUNS_KEPT = 64
RUNS_NEEDED = 8
RUNS_SECONDS = 60.0

# First each tenant's smallest request, then each tenant's second smallest, and so on. So no tenant
# can fill the list, and the requests of one tenant stand in the order in which they are claimed
# from. Every process reads the list four times a second, and the driver needs far longer for a row
# than for a value in a row: therefore one row for each tenant, and not one for each request.
ACTIVE = """
SELECT tenant,
       GROUP_CONCAT(id, ' ', remaining_microseconds ORDER BY segments, id) AS requests
FROM   (SELECT id, tenant, segments,
               TIMESTAMPDIFF(MICROSECOND, NOW(6), deadline) AS remaining_microseconds
        FROM   requests
        WHERE  status = 'active'
          AND  deadline > NOW(6)
        ORDER  BY ROW_NUMBER() OVER (PARTITION BY tenant ORDER BY segments, id), RAND()
        LIMIT  %s) AS listed
GROUP  BY tenant
"""


# The next claim in a large request begins at a multiple of this index: a claim should read over no
# more finished rows than a usual request has.
BLOCK = 100


@dataclass(frozen=True)
class Active:
    """A request that may have segments to claim, at `first_index` or after.

    `ends_at` is its deadline on the monotonic clock of this process.
    """

    id: int
    ends_at: float
    first_index: int = 0


class Choice:
    """The list of active requests, the back-offs, and the recent run times of this process."""

    def __init__(self, backoff_seconds: float) -> None:
        self._backoff_seconds = backoff_seconds
        self._backed_off: dict[int, float] = {}
        self._next_blocks: dict[int, Active] = {}
        self._listed: dict[str, str] = {}
        self._read_at = float("-inf")
        self._runs: deque[tuple[float, float]] = deque(maxlen=RUNS_KEPT)

    async def next(self, db: Database) -> Active | None:
        """The request to claim from; None when no request has work that can still be finished.

        Each call draws a tenant at random and takes its smallest request. So a tenant with few
        requests is served under a flood from another, and a large request does not delay a small
        one.
        """
        age = time.monotonic() - self._read_at
        drawn = self._draw() if age < LIST_SECONDS else None
        if drawn is None and age > DRY_SECONDS:
            await self._read(db)
            drawn = self._draw()
        return drawn

    def refresh(self) -> None:
        """Make the next call read the list again, whatever its age."""
        self._read_at = float("-inf")

    def note_claimed(self, active: Active, indexes: Sequence[int], nothing_left: bool) -> None:
        """Record the claimed segments; `nothing_left` when no others follow active.first_index.

        The next claim in a large request begins where this process stopped. At its end, the request
        is read once more from its start, for segments that were given back, that waited for a
        retry, or whose lease expired. Then it is backed off.
        """
        if not nothing_left:
            block = max(indexes, default=0) // BLOCK * BLOCK
            if block > active.first_index:
                self._next_blocks[active.id] = Active(active.id, active.ends_at, block)
        elif self._next_blocks.pop(active.id, None) is None:
            self.back_off(active.id)

    def back_off(self, request_id: int, seconds: float | None = None) -> None:
        """Claim nothing in this request for `seconds`, or for backoff_seconds if that is less."""
        wait = self._backoff_seconds if seconds is None else min(seconds, self._backoff_seconds)
        self._backed_off[request_id] = time.monotonic() + wait

    def note_run(self, run_seconds: float) -> None:
        """Record how long a segment took."""
        self._runs.append((time.monotonic(), run_seconds))

    def minimum_seconds(self) -> float:
        """No segment is started with less time than this; 0.0 while too few have run lately."""
        while self._runs and self._runs[0][0] < time.monotonic() - RUNS_SECONDS:
            self._runs.popleft()
        if len(self._runs) < RUNS_NEEDED:
            return 0.0
        return statistics.median(run_seconds for _, run_seconds in self._runs)

    def _draw(self) -> Active | None:
        """The first usable request of a random tenant; None when no tenant has one."""
        now = time.monotonic()
        earliest_deadline = now + self.minimum_seconds()
        tenants = list(self._listed)
        while tenants:
            # Usually the first tenant has one. This runs before each claim, so it must be cheap.
            tenant = tenants.pop(random.randrange(len(tenants)))
            for request in self._listed[tenant].split(","):
                id_, remaining_microseconds = map(int, request.split())
                ends_at = self._read_at + remaining_microseconds / 1_000_000
                if ends_at > earliest_deadline and self._backed_off.get(id_, now) <= now:
                    return self._next_blocks.get(id_) or Active(id_, ends_at)
        return None

    async def _read(self, db: Database) -> None:
        rows = await db.read(ACTIVE, (LIST_LENGTH,))
        now = self._read_at = time.monotonic()
        self._listed = {row["tenant"]: row["requests"] for row in rows}
        self._backed_off = {id_: until for id_, until in self._backed_off.items() if until > now}
        self._next_blocks = {id_: at for id_, at in self._next_blocks.items() if at.ends_at > now}
