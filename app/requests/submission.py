"""A checked request on its way into the database, the same for the HTTP API and for the pages."""

import re
from dataclasses import dataclass
from typing import Literal

from partway.app.requests.split import Pieces

# An id stands in paths, logs and the ledger, and must mean the same in each.
PUBLIC_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,63}")


@dataclass(frozen=True)
class Submission:
    """A request as it will be stored."""

    public_id: str
    body_hash: bytes
    pieces: Pieces
    is_document: bool
    params: str
    on_missing: Literal["null", "source", "omit"]
    on_disconnect: Literal["continue", "cancel"]
    deadline_ms: int
