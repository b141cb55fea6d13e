"""Many claimers on one request is the worst that the order of the list can lead to."""

import time

from bench.claimers import segments_a_second
from bench.fleet import Fleet, Stage, fleet
from bench.measured import Measured, at_least, figure, ratios

CLAIMERS = 8
LARGE = 1000
SMALL, SMALL_SEGMENTS = 10, 100
LARGE_AGAINST_SMALL = 0.8

WORKERS = 32
CLAIMS_A_SECOND = 500

# Long enough for every claim there is; it ends when nothing is left.
ENOUGH_SECONDS = 60.0


def one_request(stage: Stage) -> Measured:
    """One large request against ten small ones, and real workers that are all led to one."""
    measured = Measured()
    large, small = [], []
    with fleet(stage) as used:
        for _ in range(1 if stage.quick else 9):
            large.append(drained(used, 1, LARGE))
            small.append(drained(used, SMALL, SMALL_SEGMENTS))
    measured.figures.extend(
        [
            figure("partway", "claims in a request of 1,000", CLAIMERS, large, "claims/s"),
            figure("partway", "claims in ten requests of 100", CLAIMERS, small, "claims/s"),
        ]
    )
    said = "claims in a request of 1,000, against ten of 100"
    measured.verdicts.append(at_least(said, ratios(large, small), LARGE_AGAINST_SMALL))
    led_to_one(stage, measured)
    return measured


def drained(used: Fleet, requests: int, segments: int) -> float:
    """The segments a second until these requests are done, one in each exchange."""
    used.run("TRUNCATE TABLE segments", "TRUNCATE TABLE requests")
    used.fill("waiting", requests, segments)
    return segments_a_second(used, CLAIMERS, 1, ENOUGH_SECONDS)


def led_to_one(stage: Stage, measured: Measured) -> None:
    """Add the claims of real worker processes of one slot; nothing comes back.

    One tenant's requests of one size: the order of the list leads every worker to the oldest. The
    same with a tenant for each request, of whom each claim draws one, says what that order costs.
    """
    workers, seconds = (4, 2.0) if stage.quick else (WORKERS, 5.0)
    requests = 60 if stage.quick else 200
    claims: dict[int, list[float]] = {1: [], requests: []}
    with fleet(stage) as used:
        used.workers(workers, "bench.handlers:trivial", 1)
        for _ in range(1 if stage.quick else 3):
            for tenants in claims:
                used.fill("waiting", requests, 100, tenants)
                before, began = done(used), time.monotonic()
                time.sleep(seconds)
                claims[tenants].append((done(used) - before) / (time.monotonic() - began))
                used.run(
                    "UPDATE requests SET status = 'cancelled', outcome = REPEAT('p', segments)"
                )
    said = f"claims of {workers} worker processes, one at a time"
    led, spread = claims.values()
    measured.figures.extend(
        [
            figure("partway", f"{said}, led to one request", workers, led, "claims/s"),
            figure("partway", f"{said}, led to {requests}", workers, spread, "claims/s"),
        ]
    )
    measured.verdicts.append(
        at_least(f"{said}, led to one request", led, CLAIMS_A_SECOND, "claims/s")
    )


def done(used: Fleet) -> int:
    """How many segments are done."""
    return used.number("SELECT COUNT(*) FROM segments WHERE status = 'done'")
