"""Every measurement, of the product or a peer, has one shape, so that one table holds them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """The median of what several rounds showed, with the least and the most of them."""

    system: str
    what: str
    at_once: int
    value: float
    unit: str
    spread_low: float
    spread_high: float
