"""A program starts ten times as fast as a fork of a process that has imported all it needs.

    server = ForkServer()
    process = server.start(["app", "--port", "8000"], environment, log)

The process is like one of `subprocess`: it has its own environment, its own signals and an exit
status, and it runs `python -m partway app` from its first line on. `make prove` starts programs
without it.
"""

import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parent.parent

# With them come all the modules that the programs need.
PROGRAMS = ("partway.app.command", "partway.batch.command", "partway.worker.command")


# An environment is some thousand bytes.
MOST_BYTES = 1 << 17


class Forked:
    """One program that was started by a fork server."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.status(self.pid, 0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended; subprocess.TimeoutExpired when it has not in time."""
        if self.returncode is None:
            self.returncode = self._server.status(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that has imported everything, and how it is asked for a fork."""

    def __init__(self) -> None:
        # Packets, so that each message is read by itself and none waits in a buffer.
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ended: dict[int, int] = {}
        self._lock = threading.Lock()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(its.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        out: Path,
        errors: Path | None = None,
    ) -> Forked:
        """Start `python -m partway WORDS` in the checkout; it writes to `out`, or to both."""
        logs = [out, errors or out]
        for log in logs:
            log.write_bytes(b"")
        asked = {
            "words": list(words),
            "environment": dict(environment),
            "logs": [str(log) for log in logs],
        }
        with self._lock:
            self._socket.sendall(json.dumps(asked).encode())
            while True:
                said = self._next()
                if "started" in said:
                    return Forked(self, said["started"])

    def status(self, pid: int, timeout: float | None) -> int | None:
        """The exit status of a fork, waited for at most so long; None while it runs."""
        gives_up_at = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            left = gives_up_at - time.monotonic()
            # Another thread may be the one that hears it, so none listens for long.
            with self._lock:
                while pid not in self._ended and self._something_is_said(min(max(left, 0), 0.02)):
                    self._next()
                if pid in self._ended:
                    return self._ended[pid]
            if left <= 0:
                return None

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and with it whatever it has started."""
        self._socket.close()
        self._process.wait()

    def _something_is_said(self, timeout: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return bool(selector.select(timeout))

    def _next(self) -> dict[str, int]:
        packet = self._socket.recv(MOST_BYTES)
        assert packet, "the fork server has ended"
        said: dict[str, int] = json.loads(packet)
        if "ended" in said:
            self._ended[said["ended"]] = said["status"]
        return said


def serve(place: socket.socket) -> dict[str, Any] | None:
    """Fork for each packet; in the fork what the packet says comes back, at the very end None."""
    wakes, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Ctrl-C at the terminal of the tests is for the tests, which then end us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(place, selectors.EVENT_READ)
        selector.register(wakes, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is wakes:
                    wakes.recv(4096)
                    collect(place, running)
                    continue
                packet = place.recv(MOST_BYTES)
                if not packet:
                    for pid in running:
                        os.kill(pid, signal.SIGKILL)
                    return None
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    for held in (selector, place, wakes, wake):
                        held.close()
                    told: dict[str, Any] = json.loads(packet)
                    return told
                running.add(pid)
                say(place, {"started": pid})


def collect(place: socket.socket, running: set[int]) -> None:
    """Say which forks have ended, and how."""
    for pid in list(running):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            running.discard(pid)
            say(place, {"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def say(place: socket.socket, words: dict[str, int]) -> None:
    """One line to whoever asks."""
    place.sendall(json.dumps(words).encode())


def become(told: dict[str, Any]) -> None:
    """Be `python -m partway WORDS`, with nothing left of the process that this one is a fork of."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(told["environment"])
    for number, name in enumerate(told["logs"], start=1):
        # Both may be one file, in which neither writes over the other.
        log = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(log, number)
        os.close(log)
    sys.stdout, sys.stderr = unbuffered(1), unbuffered(2)
    sys.argv[1:] = told["words"]
    runpy.run_module("partway", run_name="__main__", alter_sys=True)


def unbuffered(number: int) -> TextIO:
    """Standard output or error as Python makes it with PYTHONUNBUFFERED."""
    raw = io.FileIO(number, "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


if __name__ == "__main__":
    for name in PROGRAMS:
        importlib.import_module(name)
    told = serve(socket.socket(fileno=int(sys.argv[1])))
    if told is not None:
        become(told)
