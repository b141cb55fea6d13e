"""What the operators' pages show of a request without its texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from partway.app.pages.labels import format_duration
from partway.store.database import Database, expand_lists

SEGMENTS_READ = 10_000


def request_path(tenant: str, public_id: str) -> str:
    """Where operators see a request."""
    return f"/ops/requests/{quote(tenant, safe='')}/{quote(public_id, safe='')}"


@dataclass(frozen=True)
class Count:
    """How many there are, as far as was counted."""

    number: int
    is_all: bool = True

    def __str__(self) -> str:
        return f"{self.number:,}" if self.is_all else f"{self.number:,} or more"


@dataclass(frozen=True)
class RequestSummary:
    """A request that was read without its segments."""

    id: int
    tenant: str
    public_id: str
    segments: int

    @property
    def path(self) -> str:
        """Where operators see it."""
        return request_path(self.tenant, self.public_id)


@dataclass(frozen=True)
class ActiveRequest(RequestSummary):
    """A request that is worked on."""

    waited_seconds: float
    left_seconds: float

    @property
    def left(self) -> str:
        """What is left until its deadline."""
        if self.left_seconds < 0:
            return f"overdue for {format_duration(-self.left_seconds)}"
        return f"{format_duration(self.left_seconds)} left"


# In the order of the primary key, so that a limit cuts the end of a request and no middle.
LETTERS = """
SELECT request_id, GROUP_CONCAT(letter ORDER BY index_no SEPARATOR '') AS letters
FROM   (SELECT request_id, index_no,
               CASE status
                 WHEN 'done' THEN 'd'
                 WHEN 'failed' THEN 'f'
                 WHEN 'processing' THEN IF(lease_until < NOW(6), 'x', 'r')
                 ELSE 'p'
               END AS letter
        FROM   segments FORCE INDEX (PRIMARY)
        WHERE  request_id IN (...)
        ORDER  BY request_id, index_no
        LIMIT  %s) AS seen
GROUP  BY request_id
"""


async def read_letters(db: Database, numbers: Sequence[int]) -> dict[int, str]:
    """A letter for each segment of these requests, by their numbers; none of one that is gone."""
    if not numbers:
        return {}
    rows = await db.read(expand_lists(LETTERS, len(numbers)), (*numbers, SEGMENTS_READ))
    return {row["request_id"]: row["letters"] for row in rows}
