"""How fast are the others on this machine? `python -m bench.peers` installs and measures them."""

import argparse
import textwrap
from collections.abc import Sequence

from bench.figure import Figure
from bench.peers import PEERS, prepare, take_turns
from bench.peers.scratch import scratch


def show(figures: Sequence[Figure], missing: dict[str, str]) -> None:
    """Print a line for each figure, and what each peer can lose; nothing comes back."""
    for name in dict.fromkeys(made.system for made in figures):
        known = PEERS[name]
        print(f"\n{name} ({', '.join(known.packages)})")
        for made in figures:
            if made.system == name:
                print(
                    f"  {made.what}, {made.at_once:2} at once: {made.value:8.0f}"
                    f" [{made.spread_low:.0f}-{made.spread_high:.0f}] {made.unit}"
                )
        print(f"  Durable? {known.durable}")
        print(f"  After a power cut: {known.power_cut}")
        print(f"  When a worker is killed: {known.worker_killed}")
    for name, why in missing.items():
        print(f"\n{name} is missing:\n{textwrap.indent(why, '  ')}")


def main() -> None:
    """Install, try, measure and show what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PEER", help=", ".join(PEERS))
    parser.add_argument("--at-once", type=int, nargs="+", default=[8, 32], metavar="REQUESTS")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long a round lasts")
    parser.add_argument("--rounds", type=int, default=3, help="how often each peer has its turn")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(PEERS)
    if unknown:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    names = asked.names or list(PEERS)
    missing = prepare(names)
    there = [name for name in names if name not in missing]
    with scratch() as folder:
        figures, failed = take_turns(there, asked.at_once, asked.seconds, folder, asked.rounds)
    show(figures, missing | failed)


if __name__ == "__main__":
    main()
