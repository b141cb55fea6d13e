"""`make bench` measures every row in one run on one machine, and says which targets are met.

A ratio compares what was measured in the same run; absolute figures are this machine's alone.
"""

import argparse
import json
import os
import platform
import resource
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.answers import answers
from bench.busy_slots import busy_slots
from bench.dead_rows import dead_rows
from bench.exchanges import exchanges
from bench.fleet import TREE, Stage
from bench.idle import idle
from bench.lateness import lateness
from bench.measured import Measured, Verdict
from bench.one_request import one_request
from bench.over_workers import over_workers
from bench.overload import overload
from bench.peers import PEERS, prepare
from bench.plots import draw
from bench.settling import settling
from bench.small_beside_large import small_beside_large
from bench.waiting import waiting
from local.server import KINDS, find

ROWS: dict[str, Callable[[Stage], Measured]] = {
    "answers": answers,
    "exchanges": exchanges,
    "dead-rows": dead_rows,
    "one-request": one_request,
    "small-beside-large": small_beside_large,
    "overload": overload,
    "busy-slots": busy_slots,
    "lateness": lateness,
    "waiting": waiting,
    "idle": idle,
    "settling": settling,
    "over-workers": over_workers,
}


@dataclass(frozen=True)
class Outcome:
    """One row on one server: what it measured, else why it could not."""

    row: str
    server: str
    seconds: float
    measured: Measured
    error: str | None


def main() -> int:
    """The exit status: 0, also where a target is missed; 1 when a row could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--server", choices=(*KINDS, "both"), default="both")
    parser.add_argument("--only", nargs="+", choices=tuple(ROWS), help="some rows, not all")
    parser.add_argument("--quick", action="store_true", help="seconds a row: tries, not figures")
    parser.add_argument(
        "--peers", nargs="*", choices=tuple(PEERS), help="other systems beside ours: some, or all"
    )
    parser.add_argument(
        "--into", type=Path, default=TREE / ".run" / "bench", help="results.json and the plots"
    )
    given = parser.parse_args()
    # Told to end, a run ends what it has started and deletes its databases.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    allow_many_connections()
    begun = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    outcomes: list[Outcome] = []
    into = given.into.absolute()
    into.mkdir(parents=True, exist_ok=True)
    for kind in KINDS if given.server == "both" else (given.server,):
        program = find(kind)
        if program is None:
            outcomes.append(Outcome("all", kind, 0, Measured(), f"{kind} is not installed"))
            continue
        stage = Stage(program, TREE / ".run" / "bench", given.quick, peers(given.peers, kind))
        print(f"\n{kind} {program.version}")
        for row in given.only or ROWS:
            outcomes.append(play(row, stage))
            # After each row: whoever ends a long run keeps what it has measured.
            write(into, begun, outcomes)
    draw([curve for outcome in outcomes for curve in outcome.measured.curves], into)
    return conclude(outcomes, into)


def peers(asked: Sequence[str] | None, kind: str) -> tuple[str, ...]:
    """The systems to measure beside ours; none unless they are asked for."""
    if asked is None:
        return ()
    # What stands on the other of our two servers is measured when its turn comes.
    wanted = [name for name in asked or PEERS if PEERS[name].server not in set(KINDS) - {kind}]
    missing = prepare(wanted)
    for name, why in missing.items():
        print(f"{name} is missing:\n{textwrap.indent(why, '    ')}")
    return tuple(name for name in wanted if name not in missing)


def allow_many_connections() -> None:
    """Nothing; afterwards we and our children may open as many as the system lets us."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def play(row: str, stage: Stage) -> Outcome:
    """Measure one row and print it; what goes wrong in it is its outcome, and the next comes."""
    print(f"\n  {row} …", flush=True)
    began = time.monotonic()
    measured, error = Measured(), None
    try:
        measured = ROWS[row](stage)
    except Exception:
        # Whatever it was: half an hour of the other rows is worth more than a clean end.
        error = traceback.format_exc()
        print("".join(f"    {line}\n" for line in error.splitlines()), file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print_rows(measured)
    print(f"    ({seconds:.0f} s)", flush=True)
    return Outcome(row, f"{stage.kind} {stage.program.version}", seconds, measured, error)


def print_rows(measured: Measured) -> None:
    """Print each figure with its spread, then what is said of each target; nothing comes back."""
    for one in measured.figures:
        spread = f"[{short(one.spread_low)} – {short(one.spread_high)}]"
        said = f"{one.system}: {one.what}"
        print(f"    {said:<66} {one.at_once:>5}  {short(one.value):>9} {one.unit:<14} {spread}")
    for verdict in measured.verdicts:
        print(f"    {verdict.what:<72}  {line(verdict)}")
    for why in measured.missing:
        print(f"    missing: {why}")


def line(verdict: Verdict) -> str:
    """A target, what was measured against it, and whether that will do."""
    met = "met" if verdict.met else f"MISSED by {verdict.missed_by:.0%}"
    return (
        f"{short(verdict.value)} [{short(verdict.low)} – {short(verdict.high)}] {verdict.unit}, "
        f"{verdict.side} {short(verdict.limit)}: {met}"
    )


def short(value: float) -> str:
    """A number with about three digits that mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write(into: Path, begun: str, outcomes: Sequence[Outcome]) -> None:
    """Write all that was measured so far; nothing comes back."""
    said: dict[str, Any] = {
        "begun": begun,
        "command": " ".join(("python -m bench", *sys.argv[1:])),
        "machine": {
            "cores": os.cpu_count(),
            "processor": processor(),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
        },
        "rows": [
            {
                "row": outcome.row,
                "server": outcome.server,
                "seconds": round(outcome.seconds),
                "error": outcome.error,
                "missing": outcome.measured.missing,
                "figures": [asdict(one) for one in outcome.measured.figures],
                "targets": [
                    asdict(verdict) | {"met": verdict.met, "missed_by": verdict.missed_by}
                    for verdict in outcome.measured.verdicts
                ],
                "curves": [asdict(curve) for curve in outcome.measured.curves],
            }
            for outcome in outcomes
        ],
    }
    text = json.dumps(said, indent=1, ensure_ascii=False)
    (into / "results.json").write_text(text + "\n", encoding="utf-8")


def processor() -> str:
    """What this machine calls its processor; "unknown" where it does not say."""
    for said in Path("/proc/cpuinfo").read_text().splitlines():
        if said.startswith("model name"):
            return said.partition(":")[2].strip()
    return "unknown"


def conclude(outcomes: Sequence[Outcome], into: Path) -> int:
    """Print every target once more and what failed; the exit status."""
    print("\nTargets")
    for outcome in outcomes:
        for verdict in outcome.measured.verdicts:
            print(f"  {outcome.server.split()[0]:<8} {verdict.what:<72}  {line(verdict)}")
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        why = (outcome.error or "").strip().splitlines()[-1]
        print(f"  {outcome.server.split()[0]:<8} {outcome.row} COULD NOT BE MEASURED: {why}")
    print(f"\nIn {into}: results.json and the plots")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
