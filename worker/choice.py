"""Which request an idle worker claims from decides who is answered whole when all cannot be."""

import random
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from partway.store.database import Database

# A fixed order puts requests whose segments all run at the head: a short list would hide the rest.
LIST_LENGTH = 1000

# Older lists were simulated to cost answers, younger ones to gain none.
LIST_SECONDS = 0.25

# A list that has run dry is asked again soon, but not at every result that comes in.
DRY_SECONDS = 0.02

# The runs of this process by which it knows what it cannot finish, and how few say nothing yet.
# Old ones are forgotten: who was slow and begins nothing would never learn that it no longer is.
RUNS_KEPT = 64
RUNS_NEEDED = 8
RUNS_SECONDS = 60.0

# Each tenant's smallest request, then each tenant's second smallest: no tenant's flood fills the
# list, and one tenant's requests stand in the order in which they are claimed from. Every process
# reads the list four times a second, and a driver takes far longer for a row than for a word in
# one: so a row for each tenant, and not for each request.
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


# A claim reads past what others have done: no more of it than a usual request has.
BLOCK = 100


@dataclass(frozen=True)
class Active:
    """A request that may have work, until its deadline by this process's monotonic clock.

    It is asked for segments from `first_index` on.
    """

    id: int
    ends_at: float
    first_index: int = 0


class Choice:
    """The list of active requests, those set aside, and how long this process takes."""

    def __init__(self, backoff_seconds: float) -> None:
        self._backoff_seconds = backoff_seconds
        self._backed_off: dict[int, float] = {}
        self._reached: dict[int, Active] = {}
        self._listed: dict[str, str] = {}
        self._read_at = float("-inf")
        self._runs: deque[tuple[float, float]] = deque(maxlen=RUNS_KEPT)

    async def next(self, db: Database) -> Active | None:
        """The request to claim from; None when none may have work that can still be finished.

        A tenant is drawn anew each time, and gives its smallest request: light tenants stay whole
        under a flood, and a small request is not kept waiting by a large one.
        """
        age = time.monotonic() - self._read_at
        drawn = self._draw() if age < LIST_SECONDS else None
        if drawn is None and age > DRY_SECONDS:
            await self._read(db)
            drawn = self._draw()
        return drawn

    def refresh(self) -> None:
        """Let the next call read the list again, however young it is."""
        self._read_at = float("-inf")

    def note_claimed(self, active: Active, indexes: Sequence[int], is_all: bool) -> None:
        """Remember what a request gave; `is_all` when it had no more from its first_index on.

        A large one is asked on where this process has come to, then once more from its start: for
        what was given back, waited for its next attempt, or had its lease run out. After that it is
        set aside.
        """
        if not is_all:
            block = max(indexes, default=0) // BLOCK * BLOCK
            if block > active.first_index:
                self._reached[active.id] = Active(active.id, active.ends_at, block)
        elif self._reached.pop(active.id, None) is None:
            self.back_off(active.id)

    def back_off(self, request_id: int, seconds: float | None = None) -> None:
        """Do not ask this request for a while: by default backoff_seconds."""
        wait = self._backoff_seconds if seconds is None else min(seconds, self._backoff_seconds)
        self._backed_off[request_id] = time.monotonic() + wait

    def note_run(self, run_seconds: float) -> None:
        """Remember how long a segment took."""
        self._runs.append((time.monotonic(), run_seconds))

    def least_seconds(self) -> float:
        """The time below which no segment is begun; 0.0 while too few have run lately to tell."""
        while self._runs and self._runs[0][0] < time.monotonic() - RUNS_SECONDS:
            self._runs.popleft()
        if len(self._runs) < RUNS_NEEDED:
            return 0.0
        return statistics.median(run_seconds for _, run_seconds in self._runs)

    def _draw(self) -> Active | None:
        """A tenant by chance, of those that have something, and its first request that may."""
        now = time.monotonic()
        enough = now + self.least_seconds()
        tenants = list(self._listed)
        while tenants:
            # One is looked through, not all: this comes before each claim.
            tenant = tenants.pop(random.randrange(len(tenants)))
            for listed in self._listed[tenant].split(","):
                id_, remaining_microseconds = map(int, listed.split())
                ends_at = self._read_at + remaining_microseconds / 1_000_000
                if ends_at > enough and self._backed_off.get(id_, now) <= now:
                    return self._reached.get(id_) or Active(id_, ends_at)
        return None

    async def _read(self, db: Database) -> None:
        rows = await db.read(ACTIVE, (LIST_LENGTH,))
        now = self._read_at = time.monotonic()
        self._listed = {row["tenant"]: row["requests"] for row in rows}
        self._backed_off = {id_: until for id_, until in self._backed_off.items() if until > now}
        self._reached = {id_: at for id_, at in self._reached.items() if at.ends_at > now}
