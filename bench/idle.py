"""A hundred workers with nothing to do must cost little, and find the first work at once."""

import contextlib
import time

from bench.fleet import Fleet, Stage, fleet
from bench.measured import Measured, at_most, figure, percentile
from partway.worker.fleet import PRESENT_SECONDS

WORKERS = 100
QUICK_WORKERS = 4
STATEMENTS_A_SECOND = 100.0
FIRST_CLAIM_MILLISECONDS = 300.0

# By then every rest between two looks is at its longest; the first pause is the minute in which
# statements are counted.
QUIET_SECONDS = 5.0

# By then each worker has said that it is there and has heard of all the others.
KNOWN_SECONDS = 2 * PRESENT_SECONDS


def idle(stage: Stage) -> Measured:
    """The statements of real idle processes, and how soon one of them has claimed what comes."""
    workers, seconds, rounds = (QUICK_WORKERS, 5.0, 3) if stage.quick else (WORKERS, 60.0, 20)
    quiet, known = (1.0, 1.0) if stage.quick else (QUIET_SECONDS, KNOWN_SECONDS)
    with fleet(stage) as used:
        used.workers(workers, "bench.handlers:trivial", 1)
        time.sleep(known)
        asked = statements(used)
        began = time.monotonic()
        time.sleep(seconds)
        # Asking is a login and a statement itself, a handful among thousands.
        a_second = (statements(used) - asked) / (time.monotonic() - began)
        found = []
        for _ in range(rounds):
            found.append(first_claim_milliseconds(used))
            time.sleep(quiet)
    said = f"{workers} idle worker processes"
    p95 = percentile(found, 0.95)
    return Measured(
        figures=[
            figure("partway", f"{said}: statements", workers, [a_second], "statements/s"),
            figure("partway", f"{said}: first claim", workers, found, "ms"),
        ],
        verdicts=[
            at_most(said, [a_second], STATEMENTS_A_SECOND, "statements/s"),
            at_most(f"{said}: first claim, p95", [p95], FIRST_CLAIM_MILLISECONDS, "ms"),
        ],
    )


def statements(used: Fleet) -> int:
    """How many statements the server has been sent."""
    return int(used.server.execute("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])


def first_claim_milliseconds(used: Fleet) -> float:
    """The time from the commit of a request of one segment until it is somebody's."""
    used.fill("waiting", 1, 1)
    began = time.monotonic()
    with contextlib.closing(used.connect()) as link, link.cursor() as cursor:
        cursor.execute("SELECT MAX(id) FROM requests")
        row = cursor.fetchone()
        while True:
            asked = time.monotonic()
            cursor.execute("SELECT owner_id FROM segments WHERE request_id = %s", row)
            owner = cursor.fetchone()
            if owner is not None and owner[0] is not None:
                return (asked - began) * 1000
            if asked > began + 60:
                raise RuntimeError("no worker has claimed anything for a minute")
            time.sleep(0.002)
