"""`make run`: a whole Partway on this machine, a document answered and billed, until Ctrl-C."""

import argparse
import contextlib
import hashlib
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import Popen
from types import FrameType
from typing import Any

import httpx

from local import children
from local.server import KINDS, Server, ServerError, cache, find, fits, hold

TREE = Path(__file__).resolve().parent.parent
SAMPLE = TREE / "local" / "sample.txt"

WORKERS = 4
DEADLINE_SECONDS = 30

# Short, since a person waits for the bill; a deployment keeps its answers for longer.
RETENTION_SECONDS = 5

# What is open at Ctrl-C has so long, and is answered with what is done by then.
LAST_SECONDS = 5

# Longer than a program takes that still has a call or a segment open when it is told to end.
END_SECONDS = 40.0
READY_SECONDS = 60.0

APERTIUM_OFFERS = '{"target": {"spa": "Spanish"}}'

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

HOW_TO_CALL = """
Partway is up. Open {url}/ in a browser, or from another terminal:

  curl -s {url}/v1/requests -H 'Content-Type: application/json' \\
    -d '{{"document": "The train is late. The soup is hot.", "deadline_ms": 10000}}'

To look into it, or to add a worker that has the same handler:

  . .venv/bin/activate
  export PARTWAY_DATABASE_URL='{database_url}'
  partway status

Answers are kept here for {keep} s, not a minute. Ctrl-C ends everything."""


class RunError(Exception):
    """What went wrong, in words for the person at the terminal."""


class Programs:
    """The programs that run, so that each can be watched and all be ended in order."""

    def __init__(
        self, logs: Path, lock: int, environment: Mapping[str, str], server: Server | None
    ) -> None:
        self.logs = logs
        self.lock = lock
        self.environment = environment
        self.server = server
        self.running: dict[str, Popen[bytes]] = {}
        self.words: dict[str, tuple[str, ...]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start `partway …` in the tree; its log is called like it."""
        self.words[name] = arguments
        log = self.logs / f"{name}.log"
        log.unlink(missing_ok=True)
        command = (sys.executable, "-m", "partway", *arguments)
        self.running[name] = children.start(
            command, log, env=self.environment, cwd=TREE, keep=(self.lock,)
        )

    def check(self) -> None:
        """Nothing while all run; Failure names the first that has ended, the server included.

        What was killed is started again, as in a deployment: whoever tries that wants to see it.
        """
        if self.server is not None and self.server.process is not None:
            status = self.server.process.poll()
            if status is not None:
                raise RunError(f"the database server has ended with status {status}")
        for name, process in list(self.running.items()):
            status = process.poll()
            if status is not None and status < 0:
                say(f"{name} was killed by signal {-status} and is started again")
                self.start(name, *self.words[name])
            elif status is not None:
                log = self.logs / f"{name}.log"
                raise RunError(
                    f"{name} has ended with status {status}. The last of its log:\n\n"
                    f"{children.last_lines(log)}\n\n    (all of it: {log})"
                )

    def end(self) -> None:
        """End all, bounded: who asks while somebody still computes, then who computes, then all."""
        for kind in ("app", "worker", "batch"):
            group = [process for name, process in self.running.items() if name.startswith(kind)]
            for process in group:
                process.terminate()
            for process in group:
                children.await_end(process, END_SECONDS)


def main() -> int:
    """The exit status: 0 when told to end, 1 when something did not work."""
    parser = argparse.ArgumentParser(prog="python -m local", description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="the port of the app")
    parser.add_argument(
        "--folder", type=Path, default=TREE / ".run", help="where data and logs are kept"
    )
    parser.add_argument(
        "--handler", default="apertium", help="what the workers compute with (apertium)"
    )
    parser.add_argument("--parent", type=int, help="end when our parent, this process, dies")
    arguments = parser.parse_args()
    for number in STOPS:
        signal.signal(number, stop)
    try:
        if arguments.parent is not None:
            children.end_with(arguments.parent)
        run(arguments.folder.absolute(), arguments.port, arguments.handler)
    except KeyboardInterrupt:
        pass
    except (RunError, ServerError) as error:
        say(f"\n{bold('This did not work:')} {error}")
        return 1
    say("Everything has ended.")
    return 0


def stop(_number: int, _frame: FrameType | None) -> None:
    """Begin to end, once: a terminal that closes may send several signals at the same time."""
    ignore_stops()
    raise KeyboardInterrupt


def ignore_stops() -> None:
    """From here on nothing interrupts us: every step that follows has its bound."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def run(folder: Path, port: int, handler: str) -> None:
    """Start everything, show what it does, and stay until we are to end."""
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with held(folder, logs) as lock, database(folder) as (database_url, server):
        check_port_is_free(port)
        here = {
            "PARTWAY_BATCH_RETENTION_SECONDS": str(RETENTION_SECONDS),
            # Only this machine reaches it, and whoever tries it has no key yet.
            "PARTWAY_APP_KEYLESS": "on",
            # What the page can offer here: the language pair that setup.sh installs.
            **({"PARTWAY_APP_PAGE_PARAMS": APERTIUM_OFFERS} if handler == "apertium" else {}),
            # A person reads these files.
            "PARTWAY_LOG_FORMAT": "text",
            # And waits at the terminal when it is to end.
            "PARTWAY_APP_DRAIN_SECONDS": str(LAST_SECONDS),
            "PARTWAY_WORKER_GRACE_SECONDS": str(LAST_SECONDS),
        }
        environment = {**here, **os.environ, "PARTWAY_DATABASE_URL": database_url}
        programs = Programs(logs, lock, environment, server)
        try:
            say(f"Starting the app, {WORKERS} workers with {handler}, and the batch …")
            programs.start("batch", "batch")
            programs.start("app", "app", "--port", str(port))
            for number in range(1, WORKERS + 1):
                words = ("worker", "--handler", handler, "--concurrency", "2")
                programs.start(f"worker-{number}", *words)
            url = f"http://127.0.0.1:{port}"
            # No proxy stands between us and our own machine, whatever the environment says.
            with httpx.Client(base_url=url, trust_env=False) as http:
                wait_until_ready(http, programs)
                show(http, programs)
            kept = programs.environment["PARTWAY_BATCH_RETENTION_SECONDS"]
            say(HOW_TO_CALL.format(url=url, database_url=database_url, keep=kept))
            stay(programs)
        finally:
            ignore_stops()
            say(f"\nEnding the app, the workers and the batch; what is open has {LAST_SECONDS} s …")
            programs.end()


@contextlib.contextmanager
def held(folder: Path, logs: Path) -> Iterator[int]:
    """The lock that the programs inherit; Failure when another run has this folder.

    There are two. The first is ours alone and answers at once. The second lasts as long as any
    program of a run that was killed, and those are about to end.
    """
    try:
        ours = hold(folder, 0)
    except ServerError:
        raise RunError(f"a `make run` is up already (it uses {folder}); end it first") from None
    try:
        try:
            lock = hold(logs, 0)
        except ServerError:
            say("Waiting for what is left of the last run to end …")
            lock = hold(logs, END_SECONDS)
        try:
            yield lock
        finally:
            os.close(lock)
    finally:
        os.close(ours)


@contextlib.contextmanager
def database(folder: Path) -> Iterator[tuple[str, Server | None]]:
    """The URL of the database we were told to use, or that of a private server, and the server."""
    told = os.environ.get("PARTWAY_DATABASE_URL")
    if told:
        yield told, None
        return
    program = next(filter(None, map(find, KINDS)), None)
    if program is None:
        raise RunError("there is no database server; local/setup.sh run installs one")
    server_folder = folder / program.kind
    if not fits(server_folder):
        # A tree may lie deeper than the path of a socket can reach.
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
        server_folder = cache() / "run" / name / program.kind
    server = Server(program, server_folder)
    say(f"Starting a private {program.kind} {program.version} …")
    try:
        server.start()
        server.execute("CREATE DATABASE IF NOT EXISTS partway")
        yield server.url("partway"), server
    finally:
        ignore_stops()
        if server.process is not None:
            say("Ending the database server …")
            server.stop()


def stay(programs: Programs) -> None:
    """Come back when the terminal has gone; a signal or a Failure ends the stay as well.

    A terminal that closes sends SIGHUP to the leader of its session alone. Where that is a shell,
    it passes it on to us; where it is make, nobody does.
    """
    terminal = select.poll()
    for stream in (sys.stdin, sys.stdout):
        if stream.isatty():
            terminal.register(stream, 0)  # A hang-up is reported without being asked for.
    while not terminal.poll(500):
        programs.check()


def check_port_is_free(port: int) -> None:
    """Nothing when we can listen there; Failure otherwise."""
    with socket.socket() as probe:
        # As the app will ask: calls that have just ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise RunError(
                f"port {port} cannot be used ({error.strerror}); "
                f'try another: make run ARGS="--port {port + 1}"'
            ) from None


def wait_until_ready(http: httpx.Client, programs: Programs) -> None:
    """Nothing once the app can take requests; Failure when it does not come to that."""
    give_up = time.monotonic() + READY_SECONDS
    said = "it does not answer"
    while time.monotonic() < give_up:
        programs.check()
        try:
            answer = http.get("/readyz")
        except httpx.TransportError:
            time.sleep(0.1)
            continue
        if answer.status_code == 200:
            return
        said = answer.text
        time.sleep(0.1)
    raise RunError(f"the app was not ready within {READY_SECONDS:.0f} s: {said}")


def show(http: httpx.Client, programs: Programs) -> None:
    """Have the sample translated, and show the answer and then its bill."""
    document = SAMPLE.read_text(encoding="utf-8")
    request_id = f"sample-{secrets.token_hex(4)}"
    say(
        f"Sending {SAMPLE.relative_to(TREE)}, {len(document):,} characters of English, "
        f"to be answered within {DEADLINE_SECONDS} s …"
    )
    body = {
        "document": document,
        "language": "en",
        "deadline_ms": DEADLINE_SECONDS * 1000,
        # What is not done in time stands there in English, so that there is always a text to show.
        "on_missing": "source",
    }
    sent = time.monotonic()
    answer = call(programs, http, "PUT", f"/v1/requests/{request_id}", json=body)
    seconds = time.monotonic() - sent
    counts = answer["counts"]
    say(
        f"\n{bold('The answer')}  {counts['done']} of {counts['total']} segments done, after "
        f"{seconds:.1f} of {DEADLINE_SECONDS} s"
        + "".join(
            f", {counts[word]} {word.replace('_', ' ')}"
            for word in ("failed", "timed_out", "cancelled")
            if counts[word]
        )
        + "\n"
    )
    for source, result in first_lines(document, answer["document"]):
        say(f"{source}\n{colour(result)}\n")
    keep = programs.environment["PARTWAY_BATCH_RETENTION_SECONDS"]
    say(f"The answer is kept for {keep} s, then the batch bills and deletes it …")
    show_bill(programs, http, request_id, answer["usage"], float(keep))


def show_bill(
    programs: Programs, http: httpx.Client, request_id: str, usage: Mapping[str, Any], keep: float
) -> None:
    """Wait for the settlement and show it; Failure when the bill is not the answer."""
    give_up = time.monotonic() + keep + READY_SECONDS
    while True:
        found = call(programs, http, "GET", f"/v1/requests/{request_id}", also=410)
        metered = found.get("metered")
        if metered is not None:
            break
        if time.monotonic() > give_up:
            raise RunError(f"{request_id} was not settled within {keep + READY_SECONDS:.0f} s")
        time.sleep(0.25)
    say(
        f"\n{bold('The bill')}    {metered['segments']} segments, "
        f"{metered['input_characters']:,} characters in, "
        f"{metered['output_characters']:,} characters out"
    )
    for measure in ("segments", "input_characters", "output_characters"):
        if metered[measure] != usage[measure]:
            raise RunError(f"the answer said {usage[measure]} {measure}, which is not the bill")
    say("            exactly what was answered")


def call(
    programs: Programs,
    http: httpx.Client,
    method: str,
    path: str,
    *,
    json: Mapping[str, Any] | None = None,
    also: int = 200,
) -> dict[str, Any]:
    """The JSON that comes back; Failure for a status that is neither 200 nor `also`."""
    try:
        response = http.request(method, path, json=json, timeout=DEADLINE_SECONDS + END_SECONDS)
    except httpx.TransportError as error:
        programs.check()
        raise RunError(f"{method} {path}: {error}") from error
    if response.status_code not in (200, also):
        raise RunError(f"{method} {path} was answered with {response.status_code}: {response.text}")
    found: dict[str, Any] = response.json()
    return found


def first_lines(document: str, translated: str) -> list[tuple[str, str]]:
    """The first three lines that are not blank, and what became of them, each cut to the width."""
    width = min(shutil.get_terminal_size().columns, 100) - 2
    sides = [
        [textwrap.shorten(line, width, placeholder=" …") for line in text.splitlines() if line][:3]
        for text in (document, translated)
    ]
    return list(zip(*sides, strict=True))


def say(line: str) -> None:
    """Print a line; a terminal that has gone must not keep us from ending what we started."""
    try:
        print(line, flush=True)
    except OSError:
        # Python would try once more at its end, and complain.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def bold(words: str) -> str:
    """The words as a terminal shows them bold, plain where it is no terminal."""
    return painted("1", words)


def colour(words: str) -> str:
    """The words in colour, plain where it is no terminal."""
    return painted("36", words)


def painted(code: str, words: str) -> str:
    """The words with a terminal's code around them, where there is a terminal that wants it."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return words
    return f"\033[{code}m{words}\033[0m"


if __name__ == "__main__":
    sys.exit(main())
