"""How late is a partial answer? `python -m bench.lateness` measures it from the caller's side."""

import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from local import children
from local.server import KINDS, Server, find

DEADLINE_MS = 1000
SEGMENTS = 100
ROUNDS = 20
AT_ONCE = (1, 8, 32)
PORT = 8765
READY_SECONDS = 30


def lateness_seconds(client: httpx.Client, name: str) -> float:
    """How much later than its deadline a caller has the answer, to a request too large for it."""
    body = {
        "segments": [f"sentence {i}" for i in range(SEGMENTS)],
        "params": {"seconds": 0.2},
        "deadline_ms": DEADLINE_MS,
    }
    began = time.monotonic()
    answer = client.put(f"/v1/requests/{name}", json=body).raise_for_status().json()
    late = time.monotonic() - began - DEADLINE_MS / 1000
    assert answer["status"] == "partial"
    return late


def until_ready(client: httpx.Client) -> None:
    """Come back when the node takes requests; nothing comes back."""
    give_up = time.monotonic() + READY_SECONDS
    while time.monotonic() < give_up:
        try:
            client.get("/readyz").raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise SystemExit("the app is not ready")


def measure(server: Server, folder: Path) -> None:
    """Print a line for each number of calls at once; nothing comes back."""
    server.execute("CREATE DATABASE bench")
    environment = {**os.environ, "PARTWAY_DATABASE_URL": server.url("bench")}
    words = (
        ("app", "--port", str(PORT)),
        ("worker", "--handler", "sleep", "--concurrency", "8"),
        ("batch", "--keep-seconds", "5"),
    )
    running = [
        children.start((sys.executable, "-m", *w), folder / f"{w[0]}.log", env=environment)
        for w in words
    ]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=30) as client:
            until_ready(client)
            for at_once in AT_ONCE:
                with ThreadPoolExecutor(at_once) as callers:
                    names = [f"{at_once}-{i}" for i in range(max(ROUNDS, at_once * 3))]
                    late = sorted(callers.map(lambda name: lateness_seconds(client, name), names))
                p95 = late[int(len(late) * 0.95)]
                print(
                    f"{server.program.kind:8} {at_once:3} at once  {len(late):4} answers  "
                    f"late by ms: median {statistics.median(late) * 1000:6.1f}  "
                    f"p95 {p95 * 1000:6.1f}  most {late[-1] * 1000:6.1f}"
                )
    finally:
        for process in running:
            children.end(process, 40)


def main() -> None:
    """Measure on each server of this machine."""
    for kind in KINDS:
        program = find(kind)
        if program is None:
            print(f"{kind:8} is not installed here")
            continue
        with tempfile.TemporaryDirectory() as folder:
            server = Server(program, Path(folder) / "db")
            server.start()
            try:
                measure(server, Path(folder))
            finally:
                server.stop()


if __name__ == "__main__":
    main()
