"""A caller can ask for its answer later, or wait a while where it only reads (RFC 7240)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
VALUE = rf'(?:{NAME}|"(?:[^"\\]|\\.)*")'

# A preference, with the parameters that none of ours has, as far as the next comma. Possessive: a
# header of nothing but spaces would otherwise be read again from each of them.
PREFERENCE = re.compile(
    rf"(?:^|,)\s*+({NAME})\s*+(?:=\s*+({VALUE})?\s*+)?(?:;[^,]*+)?(?=,|$)",
)

# More seconds than any deadline has, and nothing that a clock could not count.
SECONDS = re.compile(r'"?([0-9]{1,9})"?')


@dataclass(frozen=True)
class Preferences:
    """Whether to answer before the request is final, and how long to wait; None for no wait."""

    respond_async: bool = False
    wait_seconds: int | None = None


NO_PREFERENCES = Preferences()


def read_prefer(lines: Sequence[str]) -> Preferences:
    """What the Prefer headers of a call ask for; what is not known or cannot be read is left out.

    Of a preference that is there twice the first counts.
    """
    asked: dict[str, str] = {}
    for name, value in PREFERENCE.findall(",".join(lines)):
        asked.setdefault(name.lower(), value)
    seconds = SECONDS.fullmatch(asked.get("wait", ""))
    return Preferences("respond-async" in asked, int(seconds[1]) if seconds else None)


def read_quality(accept: str, media_type: str) -> float:
    """How much an Accept header wants this media type; 0.0 when it does not name it."""
    for named in accept.split(","):
        name, *parameters = (part.strip().lower() for part in named.split(";"))
        if name == media_type:
            said = next((p[2:] for p in parameters if p.startswith("q=")), "1")
            return float(said) if re.fullmatch(r"[01](\.[0-9]{0,3})?", said) else 0.0
    return 0.0
