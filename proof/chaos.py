"""Breaks everything under load, in an order drawn from a seed, and compares answers with bills.

    python -m proof.chaos --seed 7 --minutes 3 --server mariadb

Two nodes, four workers and two batches run as real processes, each behind a network of its own, on
a private server; callers keep what they are answered. At the end all faults are mended, and every
answer must equal its record to the character. Exit status 1, the seed and the differences if not.

The plan is the seed's alone; when a statement meets a fault is the machine's.
"""

import argparse
import asyncio
import contextlib
import heapq
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import httpx
import pymysql

from local import children
from local.server import KINDS, Server, ServerError, find
from proof.chaos_callers import FIGURES, Book, Caller
from tests.actions import ROOT, free_port
from tests.proxy import Cut, Proxy

T = TypeVar("T")

LEASE_SECONDS = 2.5
RETENTION_SECONDS = 5
GRACE_SECONDS = 2
CALLERS = 14

SETTINGS = {
    "PARTWAY_WORKER_LEASE_SECONDS": LEASE_SECONDS,
    "PARTWAY_WORKER_BACKOFF_SECONDS": 0.5,
    "PARTWAY_WORKER_RETRY_SECONDS": 0.2,
    "PARTWAY_WORKER_IDLE_SECONDS": 0.2,
    "PARTWAY_WORKER_GRACE_SECONDS": 2,
    "PARTWAY_BATCH_RETENTION_SECONDS": RETENTION_SECONDS,
    "PARTWAY_BATCH_GRACE_SECONDS": GRACE_SECONDS,
    "PARTWAY_BATCH_IDLE_SECONDS": 0.5,
    "PARTWAY_APP_KEYLESS": "on",
    "PARTWAY_APP_POLL_SECONDS": 0.2,
    "PARTWAY_APP_DRAIN_SECONDS": 2,
}

QUICK = ("worker", "--handler", "tests.told_handlers:told_after", "--concurrency", "16")
SLOW = ("worker", "--handler", "tests.told_handlers:told_slowly", "--concurrency", "2")
PROGRAMS: dict[str, tuple[str, ...]] = {
    "app-1": ("app", "--port"),
    "app-2": ("app", "--port"),
    "worker-1": QUICK,
    "worker-2": QUICK,
    "worker-3": SLOW,
    "worker-4": SLOW,
    "batch-1": ("batch",),
    "batch-2": ("batch",),
}

# What can happen to one program, and to all by way of the database; the numbers are weights.
TO_A_PROGRAM = {
    "killed": 8,
    "told to end": 2,
    "frozen": 5,
    "cut off": 3,
    "stalled": 3,
    "slow": 2,
    "half open": 2,
    "cut before commits": 4,
    "cut after commits": 6,
    "wrong clock": 2,
}
TO_THE_DATABASE = {
    "database killed": 3,
    "database restarted, connections half open": 2,
    "database read-only": 3,
    "disk full": 3,
}
ROWS_LOCKED = "rows locked"

# Longer than a lease, so that others take over what a frozen or silent program held.
LONGEST_FAULT_SECONDS = 5.0

# Every wait of this program has a bound; a run that needs more has met a fault.
READY_SECONDS = 60.0
SETTLE_SECONDS = 120.0
END_SECONDS = 30.0

# A program that cannot start yet is started again, as a supervisor does.
RESTART_SECONDS = 0.3

# Its data are about 200 MB when fresh, and this much is left for it to grow.
DISK_MEGABYTES = 700
FREE_MEGABYTES = 200

# MySQL's binary log would not look for free space more often than once a minute.
OPTIONS = {"mysql": ("--skip-log-bin",), "mariadb": ()}

CLOCK_WRONG_BY = ("+600", "-600")

# By this the processes of a run are found, those that nobody holds any more included.
MARK = "CHAOS_RUN"


@dataclass(frozen=True)
class Fault:
    """What happens when, to whom and for how long; `number` chooses where there is a choice."""

    at_seconds: float
    kind: str
    name: str
    seconds: float
    number: int


def plan(seed: int, seconds: float, kinds: Sequence[str]) -> list[Fault]:
    """The faults of a run, in order; the same for the same seed. One at a time to the database."""
    chance = random.Random(seed)
    faults = []
    database_free_at = at = 1.0
    while at < seconds:
        lasts = chance.uniform(0.3, LONGEST_FAULT_SECONDS)
        number = chance.randrange(1000)
        drawn = chance.random()
        if drawn < 0.2 and at >= database_free_at:
            kind = pick(chance, {k: w for k, w in TO_THE_DATABASE.items() if k in kinds})
            database_free_at = at + lasts + 1
            faults.append(Fault(at, kind, "database", lasts, number))
        elif drawn < 0.3:
            faults.append(Fault(at, ROWS_LOCKED, "database", lasts, number))
        else:
            kind = pick(chance, {k: w for k, w in TO_A_PROGRAM.items() if k in kinds})
            faults.append(Fault(at, kind, chance.choice(list(PROGRAMS)), lasts, number))
        at += chance.uniform(0.4, 2.0)
    return faults


def pick(chance: random.Random, weights: dict[str, int]) -> str:
    """One of the words, drawn by weight."""
    return chance.choices(list(weights), list(weights.values()))[0]


class Network:
    """The proxies and the callers, in a thread of their own: starting a server blocks ours."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stop = asyncio.Event()
        self._callers: list[asyncio.Task[None]] = []
        self.proxies: dict[str, Proxy] = {}

    def wait_for(self, doing: Coroutine[Any, Any, T], seconds: float) -> T:
        """What it returns, at the latest after so many seconds."""
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(seconds)

    def tell(self, name: str, what: Callable[[Proxy], None]) -> None:
        """Do something to the network of one program."""
        self._loop.call_soon_threadsafe(what, self.proxies[name])

    def open(self, names: Sequence[str], port: int) -> None:
        """A proxy for each of these programs, before the server on this port."""

        async def listen() -> None:
            for name in names:
                self.proxies[name] = proxy = Proxy("127.0.0.1", port)
                listening = await asyncio.start_server(proxy.carry, "127.0.0.1", 0)
                proxy.port = listening.sockets[0].getsockname()[1]

        self.wait_for(listen(), READY_SECONDS)

    def call(self, callers: Sequence[Callable[[], Caller]]) -> None:
        """Let these callers begin."""

        async def begin() -> None:
            self._callers = [asyncio.create_task(make().go_on(self._stop)) for make in callers]

        self.wait_for(begin(), READY_SECONDS)

    def begin_to_end(self) -> None:
        """Let every caller stop once its last call is answered."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def calling(self) -> int:
        """How many callers are not through yet; raises what one of them met that it should not."""
        for caller in self._callers:
            if caller.done():
                caller.result()
        return sum(not caller.done() for caller in self._callers)

    def close(self) -> None:
        """End whatever runs here."""

        async def end() -> None:
            ours = asyncio.all_tasks() - {asyncio.current_task()}
            for task in ours:
                task.cancel()
            await asyncio.wait(ours, timeout=END_SECONDS) if ours else None

        self.wait_for(end(), 2 * END_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_SECONDS)


class House:
    """The server and the programs of one run: who runs, what is broken, and how it is mended."""

    def __init__(self, server: Server, network: Network, logs: Path, disk: Path | None) -> None:
        assert server.port is not None
        self.server = server
        self.network = network
        self.logs = logs
        self.disk = disk
        self.ports = {name: str(free_port()) for name in PROGRAMS if name.startswith("app")}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.restart_at: dict[str, float] = {}
        self.wrong_clock: dict[str, str] = {}
        self.frozen_until: dict[str, float] = {}
        self.asleep: list[subprocess.Popen[bytes]] = []
        self.endings: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.is_database_wanted = True
        self.is_database_broken = False
        self.done: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.seen: set[str] = set()
        self.wrong: list[str] = []
        network.open(list(PROGRAMS), server.port)

    # Programs.

    def start(self, name: str) -> None:
        """Start a program; its log goes on where the last one's ended."""
        words = PROGRAMS[name]
        if name in self.ports:
            words = (*words, self.ports[name])
        url = self.network.proxies[name].url(self.server.tcp_url("partway"))
        ours = {k: v for k, v in os.environ.items() if not k.startswith("PARTWAY_")}
        env = ours | {key: str(value) for key, value in SETTINGS.items()}
        env |= {"PARTWAY_DATABASE_URL": url, "PYTHONUNBUFFERED": "1"}
        library = clock_library()
        if name in self.wrong_clock and library is not None:
            env |= {"LD_PRELOAD": library, "FAKETIME": self.wrong_clock[name]}
            # Programs wait by the monotonic clock, which no one sets.
            env |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        self.running[name] = children.start(
            (sys.executable, "-m", "partway", *words),
            self.logs / f"{name}.log",
            env=env,
            cwd=ROOT,
        )

    def supervise(self) -> None:
        """Start again what has ended, after a short rest."""
        for name, process in list(self.running.items()):
            status = process.poll()
            if status is not None:
                del self.running[name]
                self.restart_at[name] = time.monotonic() + RESTART_SECONDS
                self.counts[f"exit status {status}"] += 1
        for name, at in list(self.restart_at.items()):
            if at <= time.monotonic():
                del self.restart_at[name]
                self.start(name)
                self.counts["programs started again"] += 1
        database = self.server.process
        if self.is_database_wanted and database is not None and database.poll() is not None:
            self.counts["times that the database ended by itself"] += 1
            self.server.kill()
            self.server.start()
        self.asleep = [shell for shell in self.asleep if shell.poll() is None]

    def wait_until_ready(self) -> None:
        """Nothing once both nodes can take requests and the others run; ServerError otherwise."""
        ends_at = time.monotonic() + READY_SECONDS
        waiting = [f"http://127.0.0.1:{port}" for port in self.ports.values()]
        with httpx.Client(trust_env=False, timeout=2) as http:
            while waiting:
                if time.monotonic() > ends_at:
                    raise ServerError("the nodes did not become ready")
                self.supervise()
                with contextlib.suppress(httpx.TransportError):
                    if http.get(f"{waiting[0]}/readyz").status_code == 200:
                        del waiting[0]
                time.sleep(0.1)

    # Faults.

    def begin(self, fault: Fault) -> None:
        """Let one fault happen, and its end be due when it has lasted."""
        ending = self._begin(fault)
        if ending is not None:
            self.done[fault.kind] += 1
            ends_at = time.monotonic() + fault.seconds
            heapq.heappush(self.endings, (ends_at, next(self.numbers), ending))

    def end_due(self, now: float) -> None:
        """End the faults that have lasted as long as they should by then."""
        while self.endings and self.endings[0][0] <= now:
            heapq.heappop(self.endings)[2]()

    def _begin(self, fault: Fault) -> Callable[[], None] | None:
        """How the fault ends; None when there is nobody for it to happen to."""
        if fault.name == "database":
            return self._begin_at_database(fault)
        process, name = self.running.get(fault.name), fault.name
        if process is None or process.poll() is not None:
            return None
        match fault.kind:
            case "killed":
                process.kill()
            case "told to end":
                process.terminate()
            case "wrong clock":
                self.wrong_clock[name] = CLOCK_WRONG_BY[fault.number % 2]
                process.kill()
                return lambda: None
            case "frozen":
                self._freeze(process.pid, LEASE_SECONDS + fault.seconds)
            case "cut off":
                self.network.tell(name, Proxy.cut)
            case "stalled":
                self.network.tell(name, Proxy.stall)
            case "slow":
                self.network.tell(name, lambda proxy: proxy.slow(fault.number / 5000))
            case "half open":
                self.network.tell(name, Proxy.half_open)
            case "cut before commits" | "cut after commits":
                cut: Cut = "after the commit" if "after" in fault.kind else "before the commit"
                cuts = [cut] * (1 + fault.number % 3)
                self.network.tell(name, lambda proxy: proxy.cut_at_commit(*cuts))
        return lambda: self.network.tell(name, Proxy.flow)

    def _freeze(self, pid: int, seconds: float) -> None:
        # A shell of its own thaws it even when we are killed meanwhile: what is stopped could not
        # end with us.
        self.asleep.append(
            subprocess.Popen(
                ["sh", "-c", f"kill -STOP {pid}; sleep {seconds:.2f}; kill -CONT {pid}"],
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def _begin_at_database(self, fault: Fault) -> Callable[[], None] | None:
        if fault.kind == ROWS_LOCKED:
            return self._lock_rows(fault.number)
        # The plan leaves room between two, but a start may have taken all of it.
        if self.is_database_broken:
            return None
        mend = self._break_database(fault.kind)
        if mend is None:
            return None
        self.is_database_broken = True

        def end() -> None:
            mend()
            self.is_database_broken = False

        return end

    def _break_database(self, kind: str) -> Callable[[], None] | None:
        match kind:
            case "database killed":
                return self._without_database()
            case "database restarted, connections half open":
                for name in PROGRAMS:
                    self.network.tell(name, Proxy.half_open)
                return self._without_database()
            case "database read-only":
                return self._read_only()
        return self._fill_disk()

    def _without_database(self) -> Callable[[], None]:
        self.is_database_wanted = False
        self.server.kill()

        def start() -> None:
            self.is_database_wanted = True
            self.server.start()

        return start

    def _read_only(self) -> Callable[[], None] | None:
        if not self._ask("SET SESSION lock_wait_timeout = 2", "SET GLOBAL read_only = ON"):
            return None
        return lambda: self._insist("SET GLOBAL read_only = OFF")

    def _fill_disk(self) -> Callable[[], None]:
        assert self.disk is not None
        filler = self.disk / "filler"
        with filler.open("wb") as file:
            place = os.statvfs(self.disk)
            # Some of it may be taken meanwhile.
            for share in (1.0, 0.5, 0.5):
                with contextlib.suppress(OSError):
                    size = int(place.f_bavail * place.f_frsize * share)
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), max(size, 1))
                    place = os.statvfs(self.disk)
        return filler.unlink

    def _lock_rows(self, number: int) -> Callable[[], None] | None:
        """A client that freezes in mid-transaction, with segments or a final request in hand."""
        try:
            client = self.server.connect("partway")
        except pymysql.err.MySQLError:
            return None
        rows, lock = (
            (SOME_SEGMENTS, LOCK_SEGMENT) if number % 2 else (A_FINAL_REQUEST, LOCK_REQUEST)
        )
        try:
            with client.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                cursor.execute(rows)
                found = cursor.fetchall()
                client.begin()
                for row in found:
                    cursor.execute(lock, row)
        except pymysql.err.MySQLError:
            client.close()
            return None
        thaw: Callable[[], None] = client.close
        return thaw

    def _ask(self, *statements: str) -> bool:
        """Whether the server has done this, as root."""
        try:
            client = self.server.connect()
        except pymysql.err.MySQLError:
            return False
        try:
            with client.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        except pymysql.err.MySQLError:
            return False
        finally:
            client.close()
        return True

    def _insist(self, statement: str) -> None:
        for _ in range(10):
            if self._ask(statement):
                return
            time.sleep(0.5)
        raise ServerError(f"the server does not do this: {statement}")

    def look(self) -> None:
        """Write down which requests are stored now, so that none can vanish unseen."""
        with contextlib.suppress(pymysql.err.MySQLError):
            rows = self.server.execute("SELECT public_id FROM partway.requests")
            self.seen |= {row[0] for row in rows}

    # The end.

    def mend(self) -> None:
        """End every fault and start whatever does not run, with its right clock."""
        self.end_due(float("inf"))
        for shell in self.asleep:
            shell.wait(LEASE_SECONDS + 2 * LONGEST_FAULT_SECONDS)
        for name in PROGRAMS:
            self.network.tell(name, Proxy.flow)
        self.wait_until_ready()

    def settle(self) -> None:
        """Come back when all callers are answered and no row is left; wrong when that never is."""
        ends_at = time.monotonic() + SETTLE_SECONDS
        self.network.begin_to_end()
        left: Any = ()
        while time.monotonic() < ends_at:
            self.supervise()
            self.look()
            calling = self.network.calling()
            left = self.server.execute("SELECT public_id, status FROM partway.requests LIMIT 5")
            segments = self.server.execute("SELECT COUNT(*) FROM partway.segments")[0][0]
            if not calling and not left and not segments:
                return
            time.sleep(0.1)
        self.wrong.append(
            f"after {SETTLE_SECONDS:g} s {calling} callers are not answered, {segments} segments "
            f"are left, and of the requests {left}"
        )

    def audit(self) -> None:
        """Ask the batch's own audit; what it finds is wrong."""
        env = {**os.environ, "PARTWAY_DATABASE_URL": self.server.url("partway")}
        command = (sys.executable, "-m", "partway", "audit")
        asked = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=END_SECONDS
        )
        if asked.returncode != 0:
            self.wrong.append(f"audit: {asked.returncode}: {asked.stdout}{asked.stderr}")

    def stop(self) -> None:
        """Tell everything to end, and see that nothing of it is left."""
        for process in self.running.values():
            process.terminate()
        for name, process in self.running.items():
            status = children.await_end(process, END_SECONDS)
            if status != 0:
                self.wrong.append(f"{name} ended with status {status} when told to end")
        self.running.clear()
        self.server.stop()
        left = marked(os.getpid())
        if left:
            self.wrong.append(f"processes are left: {left}")

    def kill(self) -> None:
        """End everything at once, whatever state it is in."""
        for shell in self.asleep:
            shell.kill()
        for process in self.running.values():
            process.kill()
            process.wait()
        for pid in marked(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.server.kill()


SOME_SEGMENTS = """
SELECT request_id, index_no
FROM   segments
WHERE  status IN ('pending', 'processing')
ORDER  BY RAND()
LIMIT  4
"""

LOCK_SEGMENT = """
SELECT 1
FROM   segments
WHERE  request_id = %s
  AND  index_no = %s
FOR UPDATE SKIP LOCKED
"""

A_FINAL_REQUEST = "SELECT id FROM requests WHERE status <> 'active' ORDER BY RAND() LIMIT 1"

LOCK_REQUEST = "SELECT 1 FROM requests WHERE id = %s FOR UPDATE SKIP LOCKED"


def clock_library() -> str | None:
    """The library that sets a program's clock wrong (Debian: faketime); None when not installed."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return str(found[0]) if found else None


def marked(run: int) -> list[int]:
    """The processes that live of those that the run with this process number has started."""
    found = []
    mark = f"{MARK}={run}".encode()
    for place in Path("/proc").iterdir():
        # It may end while we look.
        with contextlib.suppress(OSError):
            if place.name.isdecimal() and mark in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return found


def differences(book: Book, records: dict[str, dict[str, Any]], seen: set[str]) -> list[str]:
    """Where what was answered, what was stored and what was metered disagree; [] when nowhere."""
    wrong = [
        f"{public_id}: {how}, and never metered"
        for ids, how in ((seen, "stored"), (book.answers.keys(), "answered"))
        for public_id in sorted(ids - records.keys())
    ]
    for public_id, metered in book.metered.items():
        record = records.get(public_id, {})
        if any(metered[figure] != record.get(figure) for figure in ("status", *FIGURES)):
            wrong.append(f"{public_id}: told that {metered} was metered, recorded {record}")
    for public_id, answers in book.answers.items():
        if public_id not in records:
            continue
        record = records[public_id]
        for answer in answers:
            ending = "completed" if answer["status"] == "partial" else answer["status"]
            if ending != record["status"]:
                wrong.append(f"{public_id}: answered {answer}, recorded {record}")
            usage = answer["usage"]
            if usage["billed"] != bool(record["billed"]) or record["billed"] != (
                record["status"] != "abandoned"
            ):
                wrong.append(f"{public_id}: billed in {answer} or not, recorded {record}")
            more = [record[figure] - usage[figure] for figure in FIGURES]
            # What ran when it was cancelled may have become done since, and is paid for.
            if any(more) if usage["final"] else min(more) < 0:
                wrong.append(f"{public_id}: answered {answer}, recorded {record}")
    return wrong


def characters_apart(book: Book, records: dict[str, dict[str, Any]]) -> int:
    """By how many characters the final answers and their records differ, all in all."""
    return sum(
        abs(records[public_id][figure] - answer["usage"][figure])
        for public_id, answers in book.answers.items()
        if public_id in records
        for answer in answers
        if answer["usage"]["final"]
        for figure in FIGURES[1:]
    )


CONFLICT = re.compile(r"transaction retried after (\d+) ")
NOTES = {
    "leases not renewed in time": "lease not renewed in time, handler stopped",
    "leases lost": "lease lost, ",
    "segments given back": "segment given back",
    "times away": "database unavailable",
    "times back": "database available again",
    "times away for a full disk": "database unavailable.*(is full|No space left|[Dd]isk full)",
}


def read_logs(logs: Path) -> tuple[Counter[str], Counter[str], list[str]]:
    """What the programs met and went on from: conflicts by number, other notes, and failures."""
    conflicts: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    wrong = []
    for log in sorted(logs.glob("*.log")):
        text = log.read_text(encoding="utf-8", errors="replace")
        conflicts.update(CONFLICT.findall(text))
        for note, words in NOTES.items():
            notes[note] += len(re.findall(words, text))
        for place in re.finditer("Traceback|Task exception was never|never awaited", text):
            wrong.append(f"{log.name}: {text[place.start() : place.start() + 3000]}")
    return conflicts, notes, wrong


def metered(server: Server) -> dict[str, dict[str, Any]]:
    """Every record, by id."""
    names = ("public_id", "status", *FIGURES, "billed")
    rows = server.execute(f"SELECT {', '.join(names)} FROM partway.meter")
    return {row[0]: dict(zip(names, row, strict=True)) | {"billed": int(row[-1])} for row in rows}


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of its own for the server's data; None where we may not make one."""
    folder.mkdir()
    options = ("-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m,mode=700", "partway-chaos")
    made = os.geteuid() == 0 and "--own-mounts" in sys.argv
    if not made or subprocess.run(("mount", *options, folder), check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(("umount", "--lazy", folder), check=True)


def run(kind: str, seed: int, seconds: float, folder: Path) -> list[str]:
    """Run one plan on one kind of server and print what happened; what was wrong."""
    program = find(kind)
    assert program is not None
    logs = folder / "logs"
    logs.mkdir()
    book = Book()
    network = Network()
    with small_disk(folder / "disk") as disk:
        place = folder / "disk" / "db" if disk else folder / "db"
        # The server's log is not on the small disk: it is to say what it met there.
        server = Server(program, place, OPTIONS[kind], tcp=True)
        server.log = logs / "database-server.txt"
        server.start()
        house = House(server, network, logs, disk)
        try:
            server.execute("CREATE DATABASE partway")
            for name in PROGRAMS:
                house.start(name)
            house.wait_until_ready()
            kinds, left_out = possible(kind, disk)
            faults = plan(seed, seconds, kinds)
            nodes = [f"http://127.0.0.1:{port}" for port in house.ports.values()]
            network.call([caller(seed, n, nodes, book) for n in range(CALLERS)])
            break_and_mend(house, faults, seconds)
            # Once among rows that still change, and once when there are only records.
            house.audit()
            house.settle()
            house.audit()
            records = metered(server)
            house.stop()
        finally:
            house.kill()
            network.close()
    conflicts, notes, failures = read_logs(logs)
    apart = characters_apart(book, records)
    wrong = [*house.wrong, *book.wrong, *failures, *differences(book, records, house.seen)]
    answers = Counter(answer["status"] for all_ in book.answers.values() for answer in all_)
    again = sum(attempts > 1 for attempts in book.attempts.values())
    print(
        f"{kind} {program.version}, seed {seed}, {seconds:g} s\n"
        f"  requests          {book.counts.pop('sent')} sent, {len(house.seen)} seen stored, "
        f"{len(records)} metered\n"
        f"  answers           {listing(answers)}\n"
        f"  calls             {listing(book.counts)}\n"
        f"  faults            {sum(house.done.values())}: {listing(house.done)}\n"
        f"  left out          {', '.join(left_out) or 'nothing'}\n"
        f"  conflicts retried {listing(conflicts)}\n"
        f"  went on           {listing(notes)}; "
        f"{again} segments done at a later attempt; {listing(house.counts)}\n"
        f"  differences       {apart} characters; {len(wrong)} in all",
        flush=True,
    )
    return wrong


def caller(seed: int, number: int, nodes: Sequence[str], book: Book) -> Callable[[], Caller]:
    """Makes one of the callers, in the thread where it is to live."""
    name = f"c{number}"
    chance = random.Random(f"{seed} {name}")
    return lambda: Caller(name, chance, nodes, book, RETENTION_SECONDS)


def possible(server: str, disk: Path | None) -> tuple[list[str], list[str]]:
    """The kinds of faults that can be made here, and those that are left out, with the reason."""
    left_out = {}
    if disk is None:
        left_out["disk full"] = "no right to mount"
    if server == "mariadb":
        # Plain UPDATEs that it rolls back for want of space delete rows (docs/chaos.md).
        left_out["disk full"] = "this server loses committed rows"
    if clock_library() is None:
        left_out["wrong clock"] = "faketime is not installed"
    kinds = [kind for kind in (*TO_A_PROGRAM, *TO_THE_DATABASE) if kind not in left_out]
    return kinds, [f"{kind} ({why})" for kind, why in left_out.items()]


def break_and_mend(house: House, faults: Sequence[Fault], seconds: float) -> None:
    """Let the plan happen, and leave everything whole; nothing comes back."""
    began = time.monotonic()
    waiting = list(faults)
    while (now := time.monotonic()) < began + seconds:
        while waiting and began + waiting[0].at_seconds <= now:
            house.begin(waiting.pop(0))
        house.end_due(now)
        house.supervise()
        house.look()
        time.sleep(0.05)
    house.mend()


def listing(counts: Counter[str]) -> str:
    """Counts in words."""
    said = ", ".join(f"{count} {what}" for what, count in counts.most_common() if count)
    return said or "none"


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """Begin to end, once."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    """The exit status: 0 when nothing was wrong, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m proof.chaos")
    parser.add_argument("--seed", type=int, default=1, help="what the plan is drawn from")
    parser.add_argument("--minutes", type=float, default=1, help="how long faults happen")
    parser.add_argument("--server", choices=KINDS, help="one kind of server; default both in turn")
    parser.add_argument("--own-mounts", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    may_mount = os.geteuid() == 0 and shutil.which("unshare")
    if may_mount and not given.own_mounts:
        # The small disk is mounted for us and our children only, and is gone when we are.
        command = ("unshare", "--mount", "--propagation", "private", sys.executable)
        if subprocess.run((*command, "-c", ""), check=False, capture_output=True).returncode == 0:
            os.execvp(command[0], (*command, "-m", "proof.chaos", *sys.argv[1:], "--own-mounts"))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    os.environ[MARK] = str(os.getpid())
    status = 0
    for kind in [given.server] if given.server else [kind for kind in KINDS if find(kind)]:
        folder = Path(tempfile.mkdtemp(prefix="partway-chaos-"))
        wrong: list[str] | None = None
        try:
            wrong = run(kind, given.seed, given.minutes * 60, folder)
        except KeyboardInterrupt:
            print("interrupted; everything is ended", file=sys.stderr)
            wrong = []
            return 1
        finally:
            if wrong == []:
                shutil.rmtree(folder)
            else:
                print(f"seed {given.seed} on {kind}: logs in {folder / 'logs'}", file=sys.stderr)
        if wrong:
            status = 1
            print(f"{len(wrong)} things are wrong:", file=sys.stderr)
            for line in wrong[:20]:
                print(f"  {line}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
