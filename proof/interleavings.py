"""Every order in which the statements of sessions that meet can run, on a real server.

A session runs one of the product's own functions on a connection of its own, which stops before
each statement until it is let go; COMMIT and ROLLBACK are statements, BEGIN goes with the one after
it, since under READ COMMITTED it neither reads nor locks. Who waits for a lock is found by asking
the server, and goes on when another lets it. After each order the laws are read from the rows.
`python -m proof.interleavings` runs larger samples and prints the table of docs/interleavings.md.
"""

import argparse
import asyncio
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiomysql
import pytest
from pymysql.err import MySQLError

import local.server
import partway.app.requests.admission
import partway.app.requests.answer
import partway.app.requests.fanin
import partway.app.requests.fanout
import partway.app.requests.ledger
import partway.batch.reaper
import partway.batch.settle
import partway.store.close
import partway.store.database
import partway.worker.lease
from partway.app.requests.answer import Answer, read_answer
from partway.app.requests.ledger import Metered, Settled
from partway.store.database import Database, Row, error_number, pooled
from partway.store.settings import DatabaseSettings
from partway.store.start import open_database
from partway.worker.lease import Ready
from proof.transaction_pairs import THREE, TWO, Act, Told, TransactionPair, World
from tests.actions import TENANT, WAIT_SECONDS
from tests.conftest import GIVEN, SNAPSHOT_ISOLATION, AnyServer, GivenServer, kinds

# Who waits for a lock is asked after this long without progress, and believed when the server says
# it several times in a row: its counter falls a moment after the lock was granted.
PATIENCE_SECONDS = 0.004
ASKED_TIMES = 3

# None of these may ever wait: nobody who answers does (law 10), and SKIP LOCKED does not.
NEVER_WAIT = frozenset(
    {
        "CLOSE",
        "READ_REQUEST",
        "NEWLY_FINISHED",
        "PROCESSING",
        "SOURCES",
        "FIND_METERED",
        "ACTIVE_TOTALS",
        "SETTLEABLE",
    }
    | {"OVERDUE", "CLAIM", "LOCK_REQUEST", "LOCK_SEGMENTS", "LOCKABLE", "STILL_FREE"}
)


@dataclass(frozen=True)
class View:
    """The committed rows after so many steps of an order."""

    steps: int
    requests: list[Row]
    segments: list[Row]
    meter: list[Row]


@dataclass
class Step:
    """One statement of one session, and how it went."""

    session: int
    statement: str
    waited: bool = False


@dataclass
class Order:
    """One order: which session was let go at each step, which could have been, and what followed.

    `closes` are the rows right after each close, `counts` right after each metering, and
    `deletions` right after settlement deleted the segments, before it committed.
    """

    before: View
    after: View = field(default_factory=lambda: View(0, [], [], []))
    picks: list[int] = field(default_factory=list)
    ready: list[list[int]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    errors: Counter[int] = field(default_factory=Counter)
    closes: list[View] = field(default_factory=list)
    counts: list[View] = field(default_factory=list)
    deletions: list[View] = field(default_factory=list)
    answer: Answer | Metered | None = None

    def waits(self) -> int:
        """How many of its statements waited for a lock."""
        return sum(step.waited for step in self.steps)

    def replay(self) -> str:
        """The picks as one word, which `run` takes again."""
        return "".join("ABCD"[pick] for pick in self.picks)

    def told_in_full(self, meeting: TransactionPair) -> str:
        """The steps in order, a line each."""
        names = meeting.names()
        lines = [
            f"  {'ABCD'[step.session]} {names[step.session]:<16} {step.statement}"
            + (" (waited)" if step.waited else "")
            for step in self.steps
        ]
        return "\n".join([f"  order {self.replay()}", *lines])


# --- The sessions ---------------------------------------------------------------------------------


class Alone:
    """A pool of one connection: a session has one and keeps it."""

    maxsize = 1

    def __init__(self, connection: aiomysql.Connection) -> None:
        self.connection = connection

    async def acquire(self) -> aiomysql.Connection:
        """The connection."""
        return self.connection

    async def release(self, connection: aiomysql.Connection) -> None:
        """Nothing: it stays ours."""


class Session(Database):
    """A database whose one connection stops before each statement until it is let go."""

    def __init__(
        self,
        connection: aiomysql.Connection,
        name_of: Callable[[str], str],
        moved: asyncio.Event,
    ) -> None:
        super().__init__(Alone(connection))
        self.moved = moved
        self.stands_before: str | None = None
        self.turn: asyncio.Future[None] | None = None
        self.ran: list[str] = []
        self.errors: Counter[int] = Counter()
        self.task: asyncio.Task[None] | None = None
        query, commit, rollback = connection.query, connection.commit, connection.rollback

        async def held_query(sql: str | bytearray, unbuffered: bool = False) -> Any:
            text = sql if isinstance(sql, str) else sql.decode(errors="replace")
            return await self.run(name_of(text), lambda: query(sql, unbuffered))

        async def held_commit() -> None:
            await self.run("COMMIT", commit)

        async def held_rollback() -> None:
            await self.run("ROLLBACK", rollback)

        connection.query = held_query
        connection.commit = held_commit
        connection.rollback = held_rollback

    async def run(self, statement: str, send: Callable[[], Awaitable[Any]]) -> Any:
        """What the statement brings, once it was let go and has run."""
        self.stands_before = statement
        self.turn = asyncio.get_running_loop().create_future()
        self.moved.set()
        await self.turn
        try:
            return await send()
        except MySQLError as error:
            self.errors[error_number(error) or 0] += 1
            raise
        finally:
            self.ran.append(statement)

    def let_go(self) -> None:
        """Let it run the statement that it stands before; nothing comes back."""
        assert self.turn is not None
        self.stands_before = None
        self.turn.set_result(None)

    def is_moving(self) -> bool:
        """Whether it neither stands before a statement nor has ended."""
        return self.task is not None and not self.task.done() and self.stands_before is None


WORDS_OF_SQL = ("SELECT", "INSERT", "UPDATE", "DELETE")


def namer() -> Callable[[str], str]:
    """Gives a statement as it is sent the name that it has in the code."""
    patterns = []
    modules = (
        partway.app.requests.answer,
        partway.app.requests.fanout,
        partway.app.requests.ledger,
        partway.app.requests.admission,
        partway.worker.lease,
        partway.batch.settle,
        partway.batch.reaper,
    )
    for module in (*modules, partway.store.close):
        for name, text in vars(module).items():
            if name.isupper() and isinstance(text, str) and text.split()[:1]:
                words = " ".join(text.split())
                if words.startswith(WORDS_OF_SQL):
                    pattern = re.escape(words)
                    for gap in ("%s", r"\(\.\.\.\)", r"WHEN\ \.\.\.\ THEN\ \.\.\.", r"\(held\)"):
                        pattern = pattern.replace(gap, ".+")
                    patterns.append((name, re.compile(pattern, re.DOTALL)))

    def name_of(statement: str) -> str:
        words = " ".join(statement.split())
        return next((name for name, text in patterns if text.fullmatch(words)), words[:60])

    return name_of


Choice = Callable[[list[int], int], int]

WAITING = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"


class Stage:
    """One server and one meeting: its state is restored before each order."""

    def __init__(self, db: Database, meeting: TransactionPair, sessions: list[Session]) -> None:
        self.db = db
        self.meeting = meeting
        self.sessions = sessions
        self.moved = sessions[0].moved
        self.world = World("")
        self.restoring = ""
        self.before = View(0, [], [], [])
        self.is_complete = False

    async def set_up(self) -> None:
        """Make the state once, and keep its rows; nothing comes back."""
        for table in ("segments", "requests", "meter"):
            await self.db.write(f"DELETE FROM {table}")
        self.world = await self.meeting.state(self.db)
        statements = []
        async with self.db.transaction() as cursor:
            for table in ("segments", "requests", "meter"):
                statements.append(f"DELETE FROM {table}")
                await cursor.execute(f"SELECT * FROM {table}")
                for row in await cursor.fetchall():
                    gaps = ", ".join(["%s"] * len(row))
                    insert = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({gaps})"
                    statements.append(cursor.mogrify(insert, list(row.values())))
        self.restoring = "; ".join(statements)
        self.before = await self.view(0)

    async def restore(self) -> None:
        """The rows of the state again, in one packet; nothing comes back."""
        async with self.db.transaction() as cursor:
            await cursor.execute(self.restoring)
            while await cursor.nextset():
                pass

    async def view(self, steps: int) -> View:
        """The committed rows now."""
        return View(
            steps,
            await self.db.read("SELECT * FROM requests"),
            await self.db.read(
                "SELECT *, COALESCE(lease_until > NOW(6) + INTERVAL 5400 SECOND, 0) AS is_renewed"
                " FROM segments ORDER BY request_id, index_no"
            ),
            await self.db.read("SELECT * FROM meter"),
        )

    async def run(self, choose: Choice) -> Order:
        """One order: at each step `choose` picks one of those that can go on."""
        order = Order(before=self.before)
        await self.restore()
        for session, act in zip(self.sessions, self.meeting.acts, strict=True):
            told = Told()
            order.told.append(told)
            session.ran.clear()
            session.errors.clear()
            session.task = asyncio.create_task(self.act(session, act, told))
        try:
            await self.come_to_rest()
            while True:
                ready = [i for i, s in enumerate(self.sessions) if s.stands_before is not None]
                if not ready:
                    break
                pick = choose(ready, len(order.picks))
                session = self.sessions[pick]
                step = Step(pick, session.stands_before or "")
                order.picks.append(pick)
                order.ready.append(ready)
                order.steps.append(step)
                session.let_go()
                await self.come_to_rest()
                step.waited = session.is_moving()
                await self.look(order)
        finally:
            for session in self.sessions:
                if session.task is not None and not session.task.done():
                    session.task.cancel()
                    with suppress(asyncio.CancelledError):
                        await session.task
        for session in self.sessions:
            order.errors += session.errors
        order.after = await self.view(len(order.steps))
        try:
            order.answer = await read_answer(self.db, TENANT, self.world.public_id)
        except Settled as settled:
            order.answer = settled.metered
        return order

    async def act(self, session: Session, act: Act, told: Told) -> None:
        try:
            await act(session, self.world, told)
        except Settled as settled:
            told.metered.append(settled.metered)
        except Exception as error:
            told.trouble = error
        finally:
            self.moved.set()

    async def look(self, order: Order) -> None:
        """Keep the rows after those statements that fix, count or delete; nothing comes back."""
        kept = {
            "CLOSE": order.closes,
            "METER": order.counts,
            "DELETE_SEGMENTS": order.deletions,
        }
        for session in self.sessions:
            for statement in session.ran:
                if statement in kept:
                    kept[statement].append(await self.view(len(order.steps)))
            session.ran.clear()

    async def come_to_rest(self) -> None:
        """Come back when each session stands before a statement, has ended or waits for a lock."""
        asked = 0
        ends_at = time.monotonic() + WAIT_SECONDS
        while moving := sum(session.is_moving() for session in self.sessions):
            self.moved.clear()
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self.moved.wait()
                continue
            except TimeoutError:
                waiting = int((await self.db.read(WAITING))[0]["Value"])
            asked = asked + 1 if waiting >= moving else 0
            others = any(session.stands_before is not None for session in self.sessions)
            if asked >= ASKED_TIMES and others:
                return
            assert time.monotonic() < ends_at, "nobody can go on"

    async def every(self, limit: int) -> AsyncIterator[Order]:
        """Every order, depth first; at most `limit`."""
        stack: list[list[int]] = [[]]
        count = 0
        while stack and count < limit:
            prefix = stack.pop()
            order = await self.run(follow(prefix))
            count += 1
            for depth in range(len(prefix), len(order.picks)):
                for other in order.ready[depth]:
                    if other != order.picks[depth]:
                        stack.append([*order.picks[:depth], other])
            yield order
        self.is_complete = not stack

    async def sampled(self, rng: random.Random, count: int) -> AsyncIterator[Order]:
        """So many orders by chance."""
        for _ in range(count):
            yield await self.run(lambda ready, _: rng.choice(ready))


def follow(prefix: Sequence[int]) -> Choice:
    """Picks as the prefix says, and after it always the first that can go on."""
    return lambda ready, step: (
        prefix[step] if step < len(prefix) and prefix[step] in ready else ready[0]
    )


@asynccontextmanager
async def staged(db: Database, url: str, meeting: TransactionPair) -> AsyncIterator[Stage]:
    """The stage for a meeting, its sessions connected as the programs connect."""
    async with AsyncExitStack() as stack:
        # Who is held still by us must not run out of time.
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(partway.store.database, "ATTEMPT_SECONDS", 2 * WAIT_SECONDS)
        patched.setattr(partway.store.database, "RETRY_SECONDS", 2 * WAIT_SECONDS)
        patched.setattr(partway.app.requests.fanin, "LATE_SECONDS", 2 * WAIT_SECONDS)
        moved = asyncio.Event()
        name_of = namer()
        sessions = []
        for _ in meeting.acts:
            settings = DatabaseSettings(database_url=url, pool_size=1)
            pool = (await stack.enter_async_context(pooled(settings)))._pool
            sessions.append(Session(await pool.acquire(), name_of, moved))
        stage = Stage(db, meeting, sessions)
        await stage.set_up()
        yield stage


# --- The laws, read from the rows -----------------------------------------------------------------


def letters(view: View) -> str:
    """The outcome that these segments make."""
    letter = {"done": "d", "failed": "f", "processing": "r", "pending": "p"}
    return "".join(letter[row["status"]] for row in view.segments)


def bill(view: View) -> tuple[int, int, int]:
    """Segments and characters that a final request pays for, counted here once more."""
    (request,) = view.requests
    counted = "d" if request["status"] == "completed" else "dr"
    paid = [
        row
        for row, letter in zip(view.segments, request["outcome"], strict=True)
        if row["status"] == "done" and letter in counted
    ]
    return len(paid), sum(len(r["source"]) for r in paid), sum(len(r["result"]) for r in paid)


def figures(record: Any) -> tuple[int, int, int]:
    """Segments and characters of a record, or of what an answer says is metered."""
    return record["segments"], record["input_characters"], record["output_characters"]


def breaches(meeting: TransactionPair, world: World, order: Order) -> list[str]:
    """The laws that this order broke, in words; [] when it broke none."""
    return [
        *broken_fence(order),
        *broken_close(order),
        *broken_bill(order, order.after),
        *broken_start(order, world),
        *broken_count(order),
        *broken_wait(meeting, order),
    ]


def last_rows(order: Order) -> list[Row]:
    """The segments as they are, or as settlement deleted them."""
    return order.after.segments or (order.deletions[-1].segments if order.deletions else [])


def first_writes(order: Order) -> Iterable[Ready]:
    """Of the accepted results of each lease the one that came first: a repeat changes nothing."""
    seen = {row["lease_token"] for row in order.before.segments if row["status"] == "done"}
    for step in order.steps:
        if step.statement == "WRITE_BACK":
            for ready, accepted in order.told[step.session].written:
                if accepted and ready.lease.token not in seen:
                    seen.add(ready.lease.token)
                    yield ready


def broken_fence(order: Order) -> Iterable[str]:
    """Law 1: one live lease; a write with a stale token changes nothing."""
    rows = {row["index_no"]: row for row in last_rows(order)}
    for ready in first_writes(order):
        row = rows.get(ready.lease.index_no, {})
        if (row.get("status"), row.get("result")) != ("done", ready.result):
            yield f"law 1: the accepted result {ready.result!r} is not in its row"
        elif row["lease_token"] != ready.lease.token:
            yield f"law 1: {ready.result!r} was written with a stale token"
    kept = {
        row["index_no"]: row for row in order.before.segments if row["status"] in ("done", "failed")
    }
    for index, row in kept.items():
        if rows and rows[index] != row:
            yield f"law 1: segment {index} was final and has changed"
    released = {lease for told in order.told for lease, accepted in told.released if accepted}
    for told in order.told:
        for lease in told.claimed:
            if (
                lease not in released
                and rows
                and rows[lease.index_no]["lease_token"] != lease.token
            ):
                yield f"law 1: the live lease on segment {lease.index_no} is gone"
    renewed = {(lease.index_no, lease.token) for told in order.told for lease in told.renewed}
    for index, row in rows.items():
        if row["status"] == "done" and row["lease_until"] is not None:
            yield f"law 1: segment {index} is done and has a lease"
        if row["is_renewed"] and (index, row["lease_token"]) not in renewed:
            yield f"law 1: the lease on segment {index} was renewed by another"


def broken_close(order: Order) -> Iterable[str]:
    """Law 2: the first close fixes the answer, from the rows it sees; all are told the same."""
    fixed: tuple[Any, ...] | None = None
    for view in (order.before, *order.closes, *order.counts, order.after):
        for request in view.requests:
            if request["status"] == "active":
                continue
            says = (request["status"], request["closed_at"], request["outcome"])
            if fixed is None:
                fixed = says
                if view is not order.before and request["outcome"] != letters(view):
                    yield f"law 2: the outcome {request['outcome']} of rows {letters(view)}"
            elif says != fixed:
                yield f"law 2: a final request was {fixed} and is {says}"
    now = [order.answer] if isinstance(order.answer, Answer) else []
    final = [a for told in order.told for a in told.answers if a.usage.final]
    if (
        len({answer.model_dump_json() for answer in [*final, *(a for a in now if a.usage.final)]})
        > 1
    ):
        yield "law 2: two callers were given different answers"


def broken_bill(order: Order, after: View) -> Iterable[str]:
    """Laws 3, 4 and 7: metered once, as answered; nothing lost; a settled id stays settled."""
    if after.requests and after.meter:
        yield "law 7: a settled id lives again"
    elif len(after.requests) + len(after.meter) != 1:
        yield "law 4: neither the request nor its record is there"
    if len(after.segments) != sum(request["segments"] for request in after.requests):
        yield f"law 4: {len(after.segments)} segments are left of the request"
    if sum(told.words.count("settled") for told in order.told) > 1:
        yield "law 4: settled twice"
    metered = [told for one in order.told for told in one.metered]
    for record in after.meter:
        if order.counts and figures(record) != bill(order.counts[-1]):
            yield f"law 3: metered {figures(record)}, the outcome says {bill(order.counts[-1])}"
        if order.counts and order.deletions:
            counted, deleted = bill(order.counts[-1]), bill(order.deletions[-1])
            if counted != deleted:
                yield f"law 4: {counted} when it was counted, {deleted} when it was deleted"
        for told in order.told:
            for answer in told.answers:
                if answer.usage.final and figures(vars(answer.usage)) != figures(record):
                    yield f"law 3: answered {answer.usage}, metered {figures(record)}"
        for told_record in metered:
            if figures(vars(told_record)) != figures(record):
                yield "law 7: a caller was told another record"
    if metered and not after.meter:
        yield "law 7: a caller was told a record that is not there"


def broken_start(order: Order, world: World) -> Iterable[str]:
    """Law 5: no claim begins once its request is closed or overdue."""
    closed = [
        view.steps
        for view in (order.before, *order.closes)
        if any(request["status"] != "active" for request in view.requests)
    ]
    for number, told in enumerate(order.told):
        if told.claimed:
            began = max(
                place
                for place, step in enumerate(order.steps, 1)
                if (step.session, step.statement) == (number, "CLAIM")
            )
            if world.is_overdue or (closed and closed[0] < began):
                yield "law 5: a claim began after the close or the deadline"


def broken_count(order: Order) -> Iterable[str]:
    """Law 6: every claim is counted, and only what was given back is taken off."""
    expected = Counter({row["index_no"]: row["attempts"] for row in order.before.segments})
    for told in order.told:
        expected.update(lease.index_no for lease in told.claimed)
        expected.subtract(told.given_back)
    for row in last_rows(order):
        if row["attempts"] != expected[row["index_no"]]:
            yield f"law 6: segment {row['index_no']} counts {row['attempts']} attempts"


def broken_wait(meeting: TransactionPair, order: Order) -> Iterable[str]:
    """Law 10: nobody who answers waits for a lock, and nobody meets an error."""
    for step in order.steps:
        allowed = meeting.without_keep and step.statement == "CLOSE"
        if step.waited and step.statement in NEVER_WAIT and not allowed:
            yield f"law 10: {step.statement} waited for a lock"
    for told in order.told:
        if told.trouble is not None:
            yield f"law 10: a session ended with {told.trouble!r}"


# --- Running many ---------------------------------------------------------------------------------


@dataclass
class Tally:
    """What many orders of one meeting came to."""

    meeting: TransactionPair
    orders: int = 0
    is_complete: bool = True
    waits: int = 0
    errors: Counter[int] = field(default_factory=Counter)
    waited: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def add(self, stage: Stage, order: Order) -> None:
        """Count one order; nothing comes back."""
        self.orders += 1
        self.waits += order.waits()
        self.errors += order.errors
        self.waited.update(step.statement for step in order.steps if step.waited)
        self.ends.update(how_it_ended(order))
        found = breaches(self.meeting, stage.world, order)
        if found:
            said = [f"{self.meeting.name}: {words}" for words in dict.fromkeys(found)]
            self.broken.append("\n".join([*said, order.told_in_full(self.meeting)]))


def how_it_ended(order: Order) -> set[str]:
    """What is worth counting of an order, in words."""
    words = {word for told in order.told for word in told.words}
    if any(told.metered for told in order.told):
        words.add("410")
    if any(not accepted for told in order.told for _, accepted in (*told.written, *told.released)):
        words.add("lost lease")
    if any(told.claimed for told in order.told) and order.closes:
        words |= {"void claim"} if claim_committed_late(order) else set()
    return words


def claim_committed_late(order: Order) -> bool:
    """Whether a claim was committed after the close."""
    return any(
        step.statement == "COMMIT" and order.told[step.session].claimed
        for step in order.steps[order.closes[0].steps :]
    )


async def tallied(
    stage: Stage, limit: int, rng: random.Random, until_broken: bool = False
) -> Tally:
    """Every order when there are at most `limit`; else half of that depth first, half by chance."""
    tally = Tally(stage.meeting)
    is_part = stage.meeting.has_many or len(stage.meeting.acts) > 2
    async for order in stage.every(limit // 2 if is_part else limit):
        tally.add(stage, order)
        if until_broken and tally.broken:
            return tally
    tally.is_complete = stage.is_complete
    if not tally.is_complete:
        async for order in stage.sampled(rng, limit // 2):
            tally.add(stage, order)
            if until_broken and tally.broken:
                return tally
    return tally


@asynccontextmanager
async def database_on(kind: str) -> AsyncIterator[tuple[Database, str]]:
    """A fresh database on a server of this kind, and its URL."""
    name = f"partway_orders_{os.getpid()}"
    async with AsyncExitStack() as stack:
        server: AnyServer
        if kind == "given":
            server = GivenServer(GIVEN or "")
        else:
            program = local.server.find(kind.removesuffix("-snapshot"))
            assert program is not None
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orders-")))
            options = (SNAPSHOT_ISOLATION,) if kind.endswith("-snapshot") else ()
            private = local.server.Server(program, folder, options)
            private.start()
            stack.callback(private.stop)
            server = private
        server.execute(f"CREATE DATABASE {name} CHARACTER SET latin1")
        stack.callback(server.execute, f"DROP DATABASE {name}")
        url = server.url(name)
        settings = DatabaseSettings(database_url=url, pool_size=4)
        yield await stack.enter_async_context(open_database(settings)), url


async def tallies_on(
    kind: str, wanted: Sequence[TransactionPair], count: int, seed: int
) -> list[Tally]:
    """What the orders of these meetings come to on one server."""
    tallies = []
    async with database_on(kind) as (db, url):
        for meeting in wanted:
            async with staged(db, url, meeting) as stage:
                tallies.append(await tallied(stage, count, random.Random(seed)))
            said = tallies[-1]
            print(f"{kind}: {meeting.name}: {said.orders}, {said.waits} waits", file=sys.stderr)
            print("\n".join(said.broken[:1]), end="", file=sys.stderr)
    return tallies


def table(found: Mapping[str, list[Tally]]) -> Iterator[str]:
    """The tallies of all servers as lines of Markdown: what they agree on is said once."""
    yield f"| Meeting | orders | waits ({', '.join(found)}) | errors | how they ended |"
    yield "|---|---|---|---|---|"
    for tallies in zip(*found.values(), strict=True):
        orders = agreed(f"{t.orders}{'' if t.is_complete else ' sampled'}" for t in tallies)
        waits = agreed(
            f"{t.waits} ({', '.join(sorted(t.waited))})" if t.waits else "0" for t in tallies
        )
        errors = agreed(counted(t.errors) for t in tallies)
        ends = agreed(
            f"**{len(t.broken)} breaches**" if t.broken else counted(t.ends) for t in tallies
        )
        yield f"| {tallies[0].meeting.name} | {orders} | {waits} | {errors} | {ends} |"
    yield (
        f"| **all** | {agreed(str(sum(t.orders for t in ts)) for ts in found.values())}"
        f" | {agreed(str(sum(t.waits for t in ts)) for ts in found.values())} | | |"
    )


def agreed(words: Iterable[str]) -> str:
    """The word when all are the same, else each."""
    each = list(words)
    return each[0] if len(set(each)) == 1 else " / ".join(word or "-" for word in each)


def counted(counts: Mapping[Any, int]) -> str:
    """Counts in words."""
    return ", ".join(f"{count} x {word}" for word, count in sorted(counts.items()))


def main() -> int:
    """The exit status: 0, or 1 when an order broke a law."""
    parser = argparse.ArgumentParser(prog="python -m proof.interleavings", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000, help="orders of a meeting at most")
    parser.add_argument("--only", default="", help="meetings with these words in their name")
    parser.add_argument("--replay", help="one order of it, such as AABAB, told step by step")
    servers = kinds(with_snapshot_isolation=True)
    parser.add_argument("--server", choices=servers, help="on this one only")
    flags = parser.parse_args()
    if flags.server:
        servers = [flags.server]
    wanted = [meeting for meeting in (*TWO, *THREE) if flags.only in meeting.name]
    if flags.replay:
        return asyncio.run(replayed(wanted[0], flags.replay, servers))
    found = {
        kind: asyncio.run(tallies_on(kind, wanted, flags.count, flags.seed)) for kind in servers
    }
    print("\n".join(table(found)))
    return int(any(tally.broken for tallies in found.values() for tally in tallies))


async def replayed(meeting: TransactionPair, picks: str, servers: Sequence[str]) -> int:
    """The exit status of one order, told step by step, on each server."""
    broken = False
    for kind in servers:
        async with database_on(kind) as (db, url), staged(db, url, meeting) as stage:
            order = await stage.run(follow(["ABCD".index(pick) for pick in picks]))
            said = breaches(meeting, stage.world, order)
            print("\n".join([f"{kind}: {meeting.name}", order.told_in_full(meeting), *said]))
            broken |= bool(said)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
