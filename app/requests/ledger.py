"""A settled request never runs again: a caller that sends its id gets what was metered."""

from dataclasses import dataclass
from datetime import datetime

import aiomysql

from partway.store.database import Database


@dataclass(frozen=True)
class Metered:
    """The record of a settled request; characters are Unicode code points."""

    status: str
    segments: int
    input_characters: int
    output_characters: int
    billed: bool
    settled_at: datetime


class Settled(Exception):
    """Raised when the id belongs to a request that was metered and deleted."""

    def __init__(self, metered: Metered) -> None:
        super().__init__(metered)
        self.metered = metered


FIND_METERED = """
SELECT status, segments, input_characters, output_characters, billed, settled_at
FROM   meter
WHERE  tenant = %s
  AND  public_id = %s
"""


async def find_metered(
    db: Database | aiomysql.DictCursor, tenant: str, public_id: str
) -> Metered | None:
    """The record of this id; None when there is none. `db` may be a cursor in a transaction."""
    if isinstance(db, Database):
        rows = await db.read(FIND_METERED, (tenant, public_id))
    else:
        await db.execute(FIND_METERED, (tenant, public_id))
        rows = list(await db.fetchall())
    return Metered(**rows[0] | {"billed": bool(rows[0]["billed"])}) if rows else None
