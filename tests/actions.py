"""What tests do, in the words of the design: submit, claim, expire, cancel, freeze, start, kill."""

import asyncio
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import aiomysql
import httpx

from partway.app.api.keys import create_key
from partway.app.requests.answer import Answer, Request, read_answer, read_request
from partway.app.requests.fanout import submit
from partway.app.requests.split import Pieces
from partway.app.requests.submission import Submission
from partway.store.database import Database, Row, connect
from partway.store.settings import read_address
from partway.worker.lease import Exchanged, Lease, Ready, exchange
from tests.fork_server import Forked, ForkServer

TENANT = "default"
ROOT = Path(__file__).parent.parent

# Long enough for a busy machine; who waits this long has met a fault.
WAIT_SECONDS = 30.0


async def wait_until(
    true: Callable[[], Awaitable[Any]], what: str, seconds: float = WAIT_SECONDS
) -> Any:
    """What `true` returns once it is something; fails with `what` when it never is."""
    ends_at = time.monotonic() + seconds
    while True:
        found = await true()
        if found:
            return found
        assert time.monotonic() < ends_at, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.02)


def submission(
    sources: Sequence[str], public_id: str | None = None, deadline_ms: int = 30_000, **more: Any
) -> Submission:
    """A request of these segments, as the door would make it."""
    fields: dict[str, Any] = {
        "public_id": public_id or str(uuid.uuid4()),
        "body_hash": hashlib.sha256(json.dumps(list(sources)).encode()).digest(),
        "pieces": Pieces(
            ["", *([" "] * (len(sources) - 1)), ""][: len(sources) + 1], list(sources)
        ),
        "is_document": True,
        "params": "{}",
        "on_missing": "null",
        "on_disconnect": "continue",
        "deadline_ms": deadline_ms,
    }
    return Submission(**fields | more)


async def submitted(
    db: Database, segments: int | Sequence[str] = 3, tenant: str = TENANT, **more: Any
) -> tuple[int, str]:
    """A stored request; its number and its public id. An int makes segments "s0", "s1", …"""
    sources = [f"s{i}" for i in range(segments)] if isinstance(segments, int) else segments
    new = submission(sources, **more)
    assert await submit(db, tenant, new, 0)
    request = await read_request(db, tenant, new.public_id)
    assert request is not None
    return request.id, new.public_id


async def bearer(db: Database, tenant: str, *scopes: str) -> dict[str, str]:
    """The header of a call with a new key of this tenant's, for requests unless told otherwise."""
    key = await create_key(db, tenant, scopes or ("requests",), "a test")
    return {"Authorization": f"Bearer {key}"}


async def claimed(
    db: Database, request_id: int, count: int = 1, lease_seconds: float = 10, **more: Any
) -> list[Lease]:
    """The segments that one claim gets."""
    return (await exchanged(db, [], request_id, count, lease_seconds, **more)).claimed


async def exchanged(
    db: Database,
    ready: Sequence[Ready] = (),
    request_id: int | None = None,
    count: int = 0,
    lease_seconds: float = 10,
    owner_id: str = "tester",
    max_attempts: int = 3,
    first_index: int = 0,
) -> Exchanged:
    """One exchange, as a worker makes it."""
    return await exchange(
        db,
        ready,
        request_id,
        count,
        owner_id,
        lease_seconds,
        max_attempts,
        first_index=first_index,
    )


async def written(db: Database, *leases: Lease, result: str = "done") -> list[Lease]:
    """Write a result back for each lease; those that turn out to be lost."""
    ready = [Ready(lease, f"{result} {lease.index_no}") for lease in leases]
    return (await exchanged(db, ready)).lost


async def expire(db: Database, request_id: int) -> None:
    """Let every lease of a request run out."""
    await db.write(
        "UPDATE segments SET lease_until = NOW(6) - INTERVAL 1 SECOND"
        " WHERE request_id = %s AND status = 'processing'",
        (request_id,),
    )


async def pass_time(db: Database, request_id: int, seconds: float) -> None:
    """Move a request into the past, deadline and close and all."""
    micros = int(seconds * 1_000_000)
    await db.write(
        "UPDATE requests SET created_at = created_at - INTERVAL %s MICROSECOND,"
        " deadline = deadline - INTERVAL %s MICROSECOND,"
        " closed_at = closed_at - INTERVAL %s MICROSECOND WHERE id = %s",
        (micros, micros, micros, request_id),
    )


async def segment_rows(db: Database, request_id: int) -> list[Row]:
    """All the rows of a request's segments, in order."""
    return await db.read(
        "SELECT * FROM segments WHERE request_id = %s ORDER BY index_no", (request_id,)
    )


async def statuses(db: Database, request_id: int) -> list[str]:
    """The statuses of a request's segments, in order."""
    return [row["status"] for row in await segment_rows(db, request_id)]


async def find_request(db: Database, public_id: str) -> Request | None:
    """The request of this id, as the door finds it; None when it is gone."""
    return await read_request(db, TENANT, public_id)


async def arrived(db: Database, public_id: str | None = None) -> Request:
    """The request of this id, else the newest, once a call has brought it."""

    async def there() -> Request | None:
        name = public_id
        if name is None:
            rows = await db.read("SELECT public_id FROM requests ORDER BY id DESC LIMIT 1")
            name = rows[0]["public_id"] if rows else ""
        return await find_request(db, name)

    request = await wait_until(there, "the request to be stored")
    assert isinstance(request, Request)
    return request


async def worked(db: Database, request_id: int, count: int) -> None:
    """Claim so many segments and write each source back unchanged, as a worker would."""
    leases = await claimed(db, request_id, count)
    assert len(leases) == count
    assert not (await exchanged(db, [Ready(lease, lease.source) for lease in leases])).lost


async def request_row(db: Database, request_id: int) -> Row | None:
    """The row of a request; None when it is gone."""
    rows = await db.read("SELECT * FROM requests WHERE id = %s", (request_id,))
    return rows[0] if rows else None


async def meter_rows(db: Database, public_id: str | None = None) -> list[Row]:
    """The records of an id, or all of them."""
    rows = await db.read("SELECT * FROM meter ORDER BY settled_at")
    return [row for row in rows if public_id in (None, row["public_id"])]


async def answer_of(db: Database, public_id: str) -> Answer:
    """The answer as it stands."""
    answer = await read_answer(db, TENANT, public_id)
    assert answer is not None
    return answer


@asynccontextmanager
async def frozen(url: str, *statements: tuple[str, Sequence[Any]]) -> AsyncIterator[Any]:
    """A client that stops in the middle of a transaction, after these statements.

    What the block gets can run further statements in it; at the end it is rolled back.
    """
    connection = await connect(read_address(url))
    cursor = await connection.cursor(aiomysql.DictCursor)
    try:
        await cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        await connection.begin()
        for statement, values in statements:
            await cursor.execute(statement, values)
        yield cursor
        await connection.rollback()
    finally:
        connection.close()


class Answering(Protocol):
    """A server that answers a statement, as root where it is private."""

    def execute(self, statement: str, *parameters: object) -> tuple[tuple[Any, ...], ...]:
        """The rows of one statement."""


async def somebody_waits_for_a_lock(server: Answering) -> None:
    """Come back once a transaction on the server waits for another."""

    async def waits() -> bool:
        said = server.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
        return int(said[0][1]) > 0

    await wait_until(waits, "a transaction that waits for a lock")


class Program:
    """One real program of a test, with what it writes."""

    def __init__(
        self,
        words: Sequence[str],
        environment: dict[str, str],
        log: Path,
        fork_server: ForkServer | None = None,
    ) -> None:
        self.log = log
        self.process: subprocess.Popen[bytes] | Forked
        if fork_server is not None:
            self.process = fork_server.start(words, environment, log)
            return
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "partway", *words],
                cwd=ROOT,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def said(self) -> str:
        """All that it has written so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def ended(self, seconds: float = WAIT_SECONDS) -> int:
        """Its exit status, once it has ended."""

        async def has_ended() -> bool:
            return self.process.poll() is not None

        await wait_until(has_ended, f"the end of {self.log.name}", seconds)
        return self.process.wait()

    async def says(self, words: str, seconds: float = WAIT_SECONDS) -> None:
        """Come back once it has written these words."""

        async def has_said() -> bool:
            assert self.process.poll() is None or words in self.said(), self.said()
            return words in self.said()

        await wait_until(has_said, f"{words!r} in {self.log.name}", seconds)


def run_to_the_end(
    commands: Sequence[Sequence[str]], environment: dict[str, str]
) -> list[tuple[int, str, str]]:
    """How each `partway WORDS` of these ended: status, standard output, standard error."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = []
        for number, words in enumerate(commands):
            out, errors = folder / f"{number}.out", folder / f"{number}.err"
            process: subprocess.Popen[bytes] | Forked
            if Programs.fork_server is not None:
                process = Programs.fork_server.start(words, environment, out, errors)
            else:
                process = subprocess.Popen(
                    [sys.executable, "-m", "partway", *words],
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=stack.enter_context(out.open("wb")),
                    stderr=stack.enter_context(errors.open("wb")),
                )
            stack.callback(process.wait)
            stack.callback(process.kill)
            running.append((process, out, errors))
        return [
            (process.wait(WAIT_SECONDS), out.read_text("utf-8"), errors.read_text("utf-8"))
            for process, out, errors in running
        ]


class Programs:
    """The real programs of one test, all on its database."""

    # The tests of a process share one; None where programs start as people start them.
    fork_server: ClassVar[ForkServer | None] = None

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.all: list[Program] = []
        self.clients: list[Client] = []

    def start(self, *words: str, url: str | None = None, **settings: object) -> Program:
        """Start `partway WORDS` with these PARTWAY_ settings."""
        log = self.folder / f"{len(self.all)}-{words[0]}.log"
        program = Program(words, self.environment(url, settings), log, self.fork_server)
        self.all.append(program)
        return program

    def environment(self, url: str | None, settings: dict[str, object]) -> dict[str, str]:
        """The environment of a program: ours, without PARTWAY_ settings of the machine's."""
        ours = {k: v for k, v in os.environ.items() if not k.startswith("PARTWAY_")}
        return {
            **ours,
            "PYTHONUNBUFFERED": "1",
            "PARTWAY_DATABASE_URL": url or self.url,
            # Most tests are of one caller; those of keys ask for them.
            "PARTWAY_APP_KEYLESS": "on",
            **{f"PARTWAY_{name}": str(value) for name, value in settings.items()},
        }

    async def app(self, url: str | None = None, **settings: object) -> "Client":
        """A client of a new app process that is ready; `client.program` is the process."""
        port = free_port()
        program = self.start("app", "--port", str(port), url=url, **settings)
        client = Client(program, f"http://127.0.0.1:{port}")
        self.clients.append(client)

        async def ready() -> bool:
            assert program.process.poll() is None, program.said()
            try:
                return (await client.get("/readyz")).status_code == 200
            except httpx.TransportError:
                return False

        await wait_until(ready, "the app to be ready")
        return client

    async def worker(
        self, handler: str = "sleep", concurrency: int = 4, **settings: object
    ) -> Program:
        """A worker process that has begun to look for work."""
        words = ("worker", "--handler", handler, "--concurrency", str(concurrency))
        program = self.start(*words, url=None, **settings)
        await program.says("slots")
        return program

    async def batch(self, **settings: object) -> Program:
        """A batch that has begun to settle; it keeps answers for a second unless told to."""
        program = self.start("batch", url=None, **{"BATCH_RETENTION_SECONDS": 1, **settings})
        await program.says("settling")
        return program

    async def end(self) -> None:
        """End what still runs."""
        for client in self.clients:
            await client.aclose()
        for program in self.all:
            if program.process.poll() is None:
                program.process.kill()
                program.process.wait()


class Client(httpx.AsyncClient):
    """An HTTP client of one app process."""

    def __init__(self, program: Program, base_url: str) -> None:
        super().__init__(base_url=base_url, timeout=WAIT_SECONDS * 2)
        self.program = program


@asynccontextmanager
async def raw_call(
    client: Client, content: bytes
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which exactly these bytes were sent; it is closed at the end of the block."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    try:
        writer.write(content)
        await writer.drain()
        yield reader, writer
    finally:
        writer.close()


def raw_request(method: str, path: str, body: bytes, *headers: str) -> bytes:
    """An HTTP request as it goes over the wire."""
    lines = (
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        *(headers or (f"Content-Length: {len(body)}",)),
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
