"""A caller can ask for an early answer, or for a wait before a read, by Prefer (RFC 7240)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
VALUE = rf'(?:{NAME}|"(?:[^"\\]|\\.)*")'

# A preference up to the next comma, with parameters, which are ignored. The quantifiers are
# possessive, or the time for a header of spaces would grow with the square of its length.
PREFERENCE = re.compile(
    rf"(?:^|,)\s*+({NAME})\s*+(?:=\s*+({VALUE})?\s*+)?(?:;[^,]*+)?(?=,|$)",
)

# The limit of nine digits is above every deadline, and below what a clock cannot count.
SECONDS = re.compile(r'"?([0-9]{1,9})"?')


@dataclass(frozen=True)
class Preferences:
    """Whether to answer before the request is final, and how long to wait; None means no wait."""

    respond_async: bool = False
    wait_seconds: int | None = None


NO_PREFERENCES = Preferences()


def read_prefer(lines: Sequence[str]) -> Preferences:
    """The preferences in the Prefer headers of a call, without those that are unknown or invalid.

    If a preference is repeated, the first one counts.
    """
    values: dict[str, str] = {}
    for name, value in PREFERENCE.findall(",".join(lines)):
        values.setdefault(name.lower(), value)
    seconds = SECONDS.fullmatch(values.get("wait", ""))
    return Preferences("respond-async" in values, int(seconds[1]) if seconds else None)


def read_quality(accept: str, media_type: str) -> float:
    """The quality value of this media type in an Accept header; 0.0 when it is not named."""
    for entry in accept.split(","):
        name, *parameters = (part.strip().lower() for part in entry.split(";"))
        if name == media_type:
            quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
            return float(quality) if re.fullmatch(r"[01](\.[0-9]{0,3})?", quality) else 0.0
    return 0.0
