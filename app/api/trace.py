"""A trace that begins at the caller continues in the handler (W3C trace context)."""

import re
from collections.abc import Sequence

TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def read_traceparent(lines: Sequence[str]) -> str | None:
    """The traceparent of a call in version 00; None when there is none, or it is not valid.

    A later version of the standard may add fields at the end. They are left out.
    """
    if len(lines) != 1:
        return None
    match = TRACEPARENT.fullmatch(lines[0].strip())
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    is_wrong = version == "ff" or (version == "00" and more is not None)
    if is_wrong or not trace_id.strip("0") or not parent_id.strip("0"):
        return None
    return f"00-{trace_id}-{parent_id}-{flags}"
