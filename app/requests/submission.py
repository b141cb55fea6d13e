"""The HTTP API and the pages pass a checked request to the request service in the same form."""

import re
from dataclasses import dataclass
from typing import Literal

from partway.app.requests.split import Pieces

# An id is used in paths, logs and the ledger, so it has only characters that none of them escapes.
PUBLIC_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,63}")


@dataclass(frozen=True)
class Submission:
    """A checked request that is not stored yet."""

    public_id: str
    body_hash: bytes
    pieces: Pieces
    is_document: bool
    params: str
    on_missing: Literal["null", "source", "omit"]
    on_disconnect: Literal["continue", "cancel"]
    deadline_ms: int
