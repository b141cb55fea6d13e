"""`make run`: runs all of Partway on this machine, and shows a document answered and billed."""

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

# Short, since a person waits for the bill. In a deployment, the retention is longer.
RETENTION_SECONDS = 5

# After Ctrl-C, open calls and running segments have this long to finish.
LAST_SECONDS = 5

# Longer than a program needs to end when it still has an open call or a running segment.
END_SECONDS = 40.0
READY_SECONDS = 60.0

APERTIUM_OFFERS = '{"target": {"spa": "Spanish"}}'

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

HOW_TO_CALL = """
Partway is up. Open {url}/ in a browser, or from another terminal:

  curl -s {url}/v1/requests -H 'Content-Type: application/json' \\
    -d '{{"document": "The train is late. The soup is hot.", "deadline_ms": 10000}}'

To look at the state, or to add a worker with the same handler:

  . .venv/bin/activate
  export PARTWAY_DATABASE_URL='{database_url}'
  partway status

The retention of answers is {retention} s here, not a minute. Ctrl-C ends everything."""


class RunError(Exception):
    """An error message for the person at the terminal."""


class Programs:
    """The running programs: each is watched, and all are ended in order."""

    def __init__(
        self, logs: Path, lock: int, environment: Mapping[str, str], server: Server | None
    ) -> None:
        self.logs = logs
        self.lock = lock
        self.environment = environment
        self.server = server
        self.running: dict[str, Popen[bytes]] = {}
        self.arguments: dict[str, tuple[str, ...]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start `partway …` in the checkout; `name` is also the name of its log."""
        self.arguments[name] = arguments
        log = self.logs / f"{name}.log"
        log.unlink(missing_ok=True)
        command = (sys.executable, "-m", "partway", *arguments)
        self.running[name] = children.start(
            command, log, env=self.environment, cwd=TREE, keep=(self.lock,)
        )

    def check(self) -> None:
        """Raise RunError when a program, or the server, has ended.

        A program that was killed is started again, as in a deployment, so that a person can try it.
        """
        if self.server is not None and self.server.process is not None:
            status = self.server.process.poll()
            if status is not None:
                raise RunError(f"the database server has ended with status {status}")
        for name, process in list(self.running.items()):
            status = process.poll()
            if status is not None and status < 0:
                say(f"{name} was killed by signal {-status} and is started again")
                self.start(name, *self.arguments[name])
            elif status is not None:
                log = self.logs / f"{name}.log"
                raise RunError(
                    f"{name} has ended with status {status}. The last of its log:\n\n"
                    f"{children.last_lines(log)}\n\n    (all of it: {log})"
                )

    def end(self) -> None:
        """End all programs: first the app, whose calls need the workers, and the batch last."""
        for kind in ("app", "worker", "batch"):
            group = [process for name, process in self.running.items() if name.startswith(kind)]
            for process in group:
                process.terminate()
            for process in group:
                children.await_end(process, END_SECONDS)


def main() -> int:
    """Run until stopped; returns the exit status: 0, or 1 after an error."""
    parser = argparse.ArgumentParser(prog="python -m local", description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="the port of the app")
    parser.add_argument(
        "--folder", type=Path, default=TREE / ".run", help="where data and logs are kept"
    )
    parser.add_argument(
        "--handler", default="apertium", help="the handler of the workers (apertium)"
    )
    parser.add_argument(
        "--parent", type=int, help="the process number of the parent: end when it dies"
    )
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
    """Start to end, once: a terminal that closes can send several signals."""
    ignore_stops()
    raise KeyboardInterrupt


def ignore_stops() -> None:
    """Ignore further signals: every step after this has a time limit."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def run(folder: Path, port: int, handler: str) -> None:
    """Start everything, show one document, and wait until a signal."""
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with locked(folder, logs) as lock, database(folder) as (database_url, server):
        check_port_is_free(port)
        defaults = {
            "PARTWAY_BATCH_RETENTION_SECONDS": str(RETENTION_SECONDS),
            # Only this machine can reach the app, and a person who tries it has no key yet.
            "PARTWAY_APP_KEYLESS": "on",
            # The page offers the language pair that setup.sh installs.
            **({"PARTWAY_APP_PAGE_PARAMS": APERTIUM_OFFERS} if handler == "apertium" else {}),
            # A person reads these logs.
            "PARTWAY_LOG_FORMAT": "text",
            # A person waits at the terminal for the end.
            "PARTWAY_APP_DRAIN_SECONDS": str(LAST_SECONDS),
            "PARTWAY_WORKER_GRACE_SECONDS": str(LAST_SECONDS),
        }
        environment = {**defaults, **os.environ, "PARTWAY_DATABASE_URL": database_url}
        programs = Programs(logs, lock, environment, server)
        try:
            say(f"Starting the app, {WORKERS} workers with {handler}, and the batch …")
            programs.start("batch", "batch")
            programs.start("app", "app", "--port", str(port))
            for number in range(1, WORKERS + 1):
                arguments = ("worker", "--handler", handler, "--concurrency", "2")
                programs.start(f"worker-{number}", *arguments)
            url = f"http://127.0.0.1:{port}"
            # trust_env=False: a proxy of the environment must not be used for this machine.
            with httpx.Client(base_url=url, trust_env=False) as http:
                wait_until_ready(http, programs)
                show(http, programs)
            retention = programs.environment["PARTWAY_BATCH_RETENTION_SECONDS"]
            say(HOW_TO_CALL.format(url=url, database_url=database_url, retention=retention))
            watch(programs)
        finally:
            ignore_stops()
            say(f"\nEnding the app, the workers and the batch; open calls have {LAST_SECONDS} s …")
            programs.end()


@contextlib.contextmanager
def locked(folder: Path, logs: Path) -> Iterator[int]:
    """Lock the folder; the programs inherit the lock. RunError when another run has locked it.

    There are two locks. Only this process has the first, so it is checked without a wait. Programs
    hold the second, also those of a run that was killed: they end soon.
    """
    try:
        run_lock = hold(folder, 0)
    except ServerError:
        raise RunError(f"a `make run` is up already (it uses {folder}); end it first") from None
    try:
        try:
            programs_lock = hold(logs, 0)
        except ServerError:
            say("Waiting for the programs of the last run to end …")
            programs_lock = hold(logs, END_SECONDS)
        try:
            yield programs_lock
        finally:
            os.close(programs_lock)
    finally:
        os.close(run_lock)


@contextlib.contextmanager
def database(folder: Path) -> Iterator[tuple[str, Server | None]]:
    """The URL of the database, and its private server; None when PARTWAY_DATABASE_URL is set."""
    url = os.environ.get("PARTWAY_DATABASE_URL")
    if url:
        yield url, None
        return
    program = next(filter(None, map(find, KINDS)), None)
    if program is None:
        raise RunError("there is no database server; local/setup.sh run installs one")
    server_folder = folder / program.kind
    if not fits(server_folder):
        # The path of the checkout can be too long for a Unix socket.
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


def watch(programs: Programs) -> None:
    """Check the programs until the terminal closes, or until a signal or a RunError.

    A terminal that closes sends SIGHUP only to the leader of its session. A shell passes it on to
    its children, but make does not.
    """
    terminal = select.poll()
    for stream in (sys.stdin, sys.stdout):
        if stream.isatty():
            terminal.register(stream, 0)  # A hang-up is always reported.
    while not terminal.poll(500):
        programs.check()


def check_port_is_free(port: int) -> None:
    """Raise RunError when the port is in use."""
    with socket.socket() as probe:
        # As in the app: connections that have just ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise RunError(
                f"port {port} cannot be used ({error.strerror}); "
                f'try another: make run ARGS="--port {port + 1}"'
            ) from None


def wait_until_ready(http: httpx.Client, programs: Programs) -> None:
    """Wait until the app is ready for requests; RunError when that takes too long."""
    give_up = time.monotonic() + READY_SECONDS
    reason = "it does not answer"
    while time.monotonic() < give_up:
        programs.check()
        try:
            answer = http.get("/readyz")
        except httpx.TransportError:
            time.sleep(0.1)
            continue
        if answer.status_code == 200:
            return
        reason = answer.text
        time.sleep(0.1)
    raise RunError(f"the app was not ready within {READY_SECONDS:.0f} s: {reason}")


def show(http: httpx.Client, programs: Programs) -> None:
    """Send the sample, and show the answer and then its bill."""
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
        # Missing segments are shown in English, so that there is always a document to show.
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
            f", {counts[name]} {name.replace('_', ' ')}"
            for name in ("failed", "timed_out", "cancelled")
            if counts[name]
        )
        + "\n"
    )
    for source, result in first_lines(document, answer["document"]):
        say(f"{source}\n{colour(result)}\n")
    retention = programs.environment["PARTWAY_BATCH_RETENTION_SECONDS"]
    say(f"The answer is kept for {retention} s, then the batch bills and deletes it …")
    show_bill(programs, http, request_id, answer["usage"], float(retention))


def show_bill(
    programs: Programs,
    http: httpx.Client,
    request_id: str,
    usage: Mapping[str, Any],
    retention_seconds: float,
) -> None:
    """Wait for the settlement and show the bill; RunError when it differs from the answer."""
    limit_seconds = retention_seconds + READY_SECONDS
    give_up = time.monotonic() + limit_seconds
    while True:
        body = call(programs, http, "GET", f"/v1/requests/{request_id}", also=410)
        metered = body.get("metered")
        if metered is not None:
            break
        if time.monotonic() > give_up:
            raise RunError(f"{request_id} was not settled within {limit_seconds:.0f} s")
        time.sleep(0.25)
    say(
        f"\n{bold('The bill')}    {metered['segments']} segments, "
        f"{metered['input_characters']:,} characters in, "
        f"{metered['output_characters']:,} characters out"
    )
    for figure in ("segments", "input_characters", "output_characters"):
        if metered[figure] != usage[figure]:
            raise RunError(f"the bill has {metered[figure]} {figure}, the answer {usage[figure]}")
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
    """Make one HTTP call; returns its JSON. RunError for a status that is not 200 or `also`."""
    try:
        response = http.request(method, path, json=json, timeout=DEADLINE_SECONDS + END_SECONDS)
    except httpx.TransportError as error:
        programs.check()
        raise RunError(f"{method} {path}: {error}") from error
    if response.status_code not in (200, also):
        raise RunError(f"{method} {path} was answered with {response.status_code}: {response.text}")
    body: dict[str, Any] = response.json()
    return body


def first_lines(document: str, translated: str) -> list[tuple[str, str]]:
    """The first three lines that are not blank, with their translations, cut to the width."""
    width = min(shutil.get_terminal_size().columns, 100) - 2
    sides = [
        [textwrap.shorten(line, width, placeholder=" …") for line in text.splitlines() if line][:3]
        for text in (document, translated)
    ]
    return list(zip(*sides, strict=True))


def say(line: str) -> None:
    """Print a line. A closed terminal must not stop this process from ending its programs."""
    try:
        print(line, flush=True)
    except OSError:
        # Otherwise Python would flush again at exit, and print an error.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def bold(text: str) -> str:
    """The text in bold, or plain when standard output is not a terminal."""
    return styled("1", text)


def colour(text: str) -> str:
    """The text in colour, or plain when standard output is not a terminal."""
    return styled("36", text)


def styled(code: str, text: str) -> str:
    """The text with a control sequence around it, if the terminal and NO_COLOR allow it."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return f"\033[{code}m{text}\033[0m"


if __name__ == "__main__":
    sys.exit(main())
