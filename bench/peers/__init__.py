"""The systems that people would use instead, as they would run them, to be measured beside ours.

    with started("dramatiq", folder) as peer:
        peer.alone()
        peer.round(at_once=8, seconds=4.0)

A peer has two worker processes and a private server; all of it ends with the block, or with us.
"""

import json
import os
import selectors
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.figure import Figure
from bench.measured import figure
from bench.peers.install import Missing, environment, prepare, python
from bench.peers.known import PEERS
from bench.peers.servers import serving
from local import children

__all__ = ["PEERS", "Missing", "Peer", "measure", "prepare", "started", "take_turns"]

# Only a peer that hangs meets these. A slow one on a busy machine needs a minute to answer the 32
# requests that were open at the end of a round.
START_SECONDS = 90.0
PATIENCE_SECONDS = 240.0
END_SECONDS = 40.0


class Peer:
    """One running peer: the process that sends requests, and the folder of its logs."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", logs: Path) -> None:
        self.name = name
        self.process = process
        self.logs = logs

    def alone(self) -> float:
        """The seconds that one request of 100 segments takes, a median of seven."""
        return self._ask({})["seconds"]

    def round(self, at_once: int, seconds: float) -> float:
        """Segments a second with so many requests at once."""
        asked = {"at_once": at_once, "seconds": seconds}
        return self._ask(asked, seconds)["segments_per_second"]

    def await_workers(self) -> None:
        """Come back when both workers have answered; Missing when they do not."""
        self._answer(START_SECONDS)

    def _ask(self, question: dict[str, float], seconds: float = 0.0) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer(seconds + PATIENCE_SECONDS)

    def _answer(self, seconds: float) -> dict[str, float]:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as either:
            either.register(self.process.stdout, selectors.EVENT_READ)
            in_time = bool(either.select(seconds))
        line = self.process.stdout.readline() if in_time else b""
        if not line:
            how = "broke off" if in_time else f"did not answer within {seconds:.0f} s"
            logs = (children.last_lines(log) for log in sorted(self.logs.glob("*.log")))
            raise Missing("\n".join((f"{self.name} {how}:", *logs)))
        answer: dict[str, float] = json.loads(line)
        return answer


@contextmanager
def started(name: str, folder: Path) -> Iterator[Peer]:
    """One peer for as long as a block lasts, warm; Missing when it cannot be had here."""
    known = PEERS[name]
    if not python(known).exists():
        raise Missing(f"{name} is not installed: python -m bench.peers does it")
    # A short name: sockets lie below it, and their paths must not be long.
    place = folder / name.split(",")[0]
    place.mkdir(exist_ok=True)
    try:
        with serving(known.server, place) as where, _driven(name, place, where) as peer:
            peer.await_workers()
            yield peer
    finally:
        # One that was killed may still write; whoever made the folder removes what is left.
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _driven(name: str, place: Path, where: dict[str, str]) -> Iterator[Peer]:
    known = PEERS[name]
    parent = os.getpid()
    with (place / "caller.log").open("ab") as output:
        process = subprocess.Popen(
            (str(python(known)), "-m", "bench.peers.drive", known.module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            cwd=place,
            env={**environment(), **where},
            start_new_session=True,
            preexec_fn=lambda: children.end_with(parent),
        )
    with process:
        try:
            yield Peer(name, process, place)
        except BaseException:
            # It may hang: told this way it kills its workers, and waits for nothing.
            process.terminate()
            raise
        finally:
            # The end of its input tells it to end its workers and itself.
            assert process.stdin is not None
            process.stdin.close()
            children.await_end(process, END_SECONDS)


def measure(
    names: Sequence[str], at_once: Sequence[int], seconds: float, folder: Path
) -> list[Figure]:
    """The figures of these peers, in three rounds; none of a peer that cannot be had here."""
    return take_turns(names, at_once, seconds, folder, 3)[0]


def take_turns(
    names: Sequence[str], at_once: Sequence[int], seconds: float, folder: Path, rounds: int
) -> tuple[list[Figure], dict[str, str]]:
    """The figures of these peers, which take turns in each round; and who is missing, and why."""
    missing: dict[str, str] = {}
    alone: dict[str, list[float]] = defaultdict(list)
    speed: dict[tuple[str, int], list[float]] = defaultdict(list)
    for turn in range(rounds):
        for name in [name for name in names if name not in missing]:
            print(f"Round {turn + 1} of {rounds}: {name} …", file=sys.stderr)
            try:
                with started(name, folder) as peer:
                    alone[name].append(peer.alone() * 1000)
                    for many in at_once:
                        speed[name, many].append(peer.round(many, seconds))
            except Missing as why:
                missing[name] = str(why)
    figures: list[Figure] = []
    for name in [name for name in names if name not in missing]:
        figures.append(figure(name, "100 segments alone", 1, alone[name], "ms"))
        figures += [
            figure(name, "100 segments each", many, speed[name, many], "segments/s")
            for many in at_once
        ]
    return figures, missing
