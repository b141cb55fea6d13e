"""Sweeps that take long are sampled in `make test` and run whole in `make prove`."""

import os
from typing import TypeVar

T = TypeVar("T")

# `make prove` sets it. It has no PARTWAY_ in its name: the programs would take it for a setting.
WHOLE = os.environ.get("WHOLE_SWEEPS") == "1"


def sampled(whole: T, *, sample: T) -> T:
    """What a sweep takes: all of it in `make prove`, a sample of it in `make test`."""
    return whole if WHOLE else sample
