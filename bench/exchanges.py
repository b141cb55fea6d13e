"""The exchange against the server's own durable commits: how much is left beyond the disk."""

from bench.claimers import segments_a_second
from bench.commits import commits_a_second
from bench.fleet import Stage, fleet
from bench.measured import Measured, at_least, figure, ratios

# How many connections, how many segments in an exchange, how many times the commits at least, and
# how many requests: more than are drained in one round.
CASES = ((2, 24, 1.5, 800), (8, 1, 0.2, 200))

# A service has many tenants; what it costs when one request is all there is to claim from is
# measured in one_request.py.
SEGMENTS = 100
TENANTS = 40
QUICK_REQUESTS = 100


def exchanges(stage: Stage) -> Measured:
    """Dozens at a time on two connections, and one at a time on eight."""
    rounds, seconds = (1, 1.0) if stage.quick else (5, 4.0)
    measured = Measured()
    for connections, dozens, limit, requests in CASES:
        commits: list[float] = []
        segments: list[float] = []
        with fleet(stage) as used:
            for _ in range(rounds):
                filled = QUICK_REQUESTS if stage.quick else requests
                used.fill("waiting", filled, SEGMENTS, TENANTS)
                commits.append(commits_a_second(used, connections, seconds))
                segments.append(segments_a_second(used, connections, dozens, seconds))
                used.run("TRUNCATE TABLE segments", "TRUNCATE TABLE requests")
        said = f"claimed and written back, {dozens} at a time"
        measured.figures.extend(
            [
                figure("server", "durable single-row commits", connections, commits, "commits/s"),
                figure("partway", said, connections, segments, "segments/s"),
            ]
        )
        measured.verdicts.append(
            at_least(
                f"{said}, {connections} connections, against single-row commits",
                ratios(segments, commits),
                limit,
            )
        )
    return measured
