"""Several actors do anything in any order, and after each step the rows keep the laws."""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import partway.batch.settle
import partway.store.close
import partway.worker.lease
from partway.app.problems import Problem
from partway.app.requests.answer import Answer, read_answer, read_request
from partway.app.requests.fanin import wait_until_final
from partway.app.requests.fanout import submit
from partway.app.requests.ledger import Metered, Settled
from partway.app.requests.service import RequestService
from partway.app.requests.watch import Watch
from partway.app.settings import AppSettings
from partway.batch.reaper import abandon, overdue
from partway.batch.settle import settle, settleable
from partway.store.close import close
from partway.store.database import Database
from partway.store.settings import DatabaseSettings
from partway.store.start import open_database
from partway.worker.lease import Lease, Ready, exchange, fail, give_back, renew
from tests.actions import TENANT, pass_time, submission
from tests.sweeps import sampled

pytestmark = pytest.mark.snapshot_isolation

# A minute on all servers together, where all are taken.
EXAMPLES = sampled(60, sample=8)
STEPS = 30

# A mutant ends its test at its first breach, which may take so many.
MUTANT_EXAMPLES = 300

# Leases and deadlines end when a rule says so, and never by themselves.
LEASE_SECONDS = 3600
DEADLINE_MS = 3_000_000
PAST_DEADLINE_SECONDS = 3100

# No answer is kept; a cancelled request waits for its leases until its deadline.
RETENTION_SECONDS = 0

MAX_ATTEMPTS = 2

# Few requests, so that actors meet.
AT_ONCE = 2

FINAL = ("completed", "cancelled", "abandoned")

# By the node that waits, at its end or as the caller has left; by a cancel; by one that looked
# while the request was active and closes only now.
CLOSES = ("waited", "waited", "caller left", "cancelled", "late")

# Those that begin and write more often than those that end.
OF_LEASES = ("write_back", "exchange_all", "renew", "give_back", "fail")
ACTS = (
    *("submit_another", "come_back", "close", "claim", "claim", "claim_and_crash", "pause"),
    *("pass_the_deadline", "reap", "settle", "write_back", *OF_LEASES),
)

Draw = Callable[[st.SearchStrategy[Any]], Any]

DOCUMENT = st.lists(st.sampled_from(["a", "é", "🫠 b", "cc\n"]), min_size=1, max_size=3)

T = TypeVar("T")


@dataclass
class Segment:
    """What we expect of one row."""

    source: str
    status: Literal["pending", "processing", "done", "failed"] = "pending"
    token: bytes | None = None
    attempts: int = 0
    result: str | None = None
    # Whether its lease has run out or, pending, its time has come.
    is_due: bool = True


@dataclass
class Asked:
    """What we expect of one request, and what its callers were told."""

    public_id: str
    number: int
    segments: list[Segment]
    status: Literal["active", "completed", "cancelled", "abandoned", "settled"] = "active"
    is_past: bool = False
    outcome: str | None = None
    bill: tuple[int, int, int] | None = None
    last: Answer | None = None

    def paid(self) -> tuple[int, int, int]:
        """Segments and characters that it would pay for if it were settled now."""
        counted = "d" if self.status == "completed" else "dr"
        paid = [
            segment
            for segment, letter in zip(self.segments, self.outcome or "", strict=True)
            if segment.status == "done" and letter in counted
        ]
        results = sum(len(segment.result or "") for segment in paid)
        return len(paid), sum(len(segment.source) for segment in paid), results

    def close(self, status: Literal["completed", "cancelled", "abandoned"]) -> None:
        """Expect it to be closed so, unless it is final already."""
        if self.status == "active":
            letter = {"pending": "p", "processing": "r", "done": "d", "failed": "f"}
            self.status = status
            self.outcome = "".join(letter[segment.status] for segment in self.segments)


def figures(found: Any) -> tuple[int, int, int]:
    """Segments and characters of a record or of a usage."""
    return found.segments, found.input_characters, found.output_characters


class Actors(RuleBasedStateMachine):
    """Callers, workers and a batch on one database, and a record of what they were told."""

    run: Callable[[Awaitable[Any]], Any]
    db: Database

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Asked] = []
        self.leases: list[tuple[Asked, Lease]] = []
        self.count = 0

    @initialize(sources=DOCUMENT)
    def begin(self, sources: list[str]) -> None:
        for table in ("segments", "requests", "meter"):
            self.run(self.db.write(f"DELETE FROM {table}"))
        self.submit(sources)

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        """One rule, not one for each act: Hypothesis switches about half of the rules off in each
        example, and most breaches need four acts or five.
        """
        acts = [act for act in ACTS if self.leases or act not in OF_LEASES]
        if sum(one.status != "settled" for one in self.asked) >= AT_ONCE:
            acts.remove("submit_another")
        getattr(self, data.draw(st.sampled_from(acts)))(data.draw)

    # Callers.

    def submit_another(self, draw: Draw) -> None:
        self.submit(draw(DOCUMENT))

    def submit(self, sources: list[str]) -> None:
        new = submission(sources, f"id-{len(self.asked)}", DEADLINE_MS)
        assert self.run(submit(self.db, TENANT, new, 0))
        request = self.run(read_request(self.db, TENANT, new.public_id))
        self.asked.append(Asked(new.public_id, request.id, [Segment(text) for text in sources]))

    def come_back(self, draw: Draw) -> None:
        """With GET, or with PUT under an id that was used before."""
        one = self.one_of(draw)
        if draw(st.booleans()):
            self.told(one, read_answer(self.db, TENANT, one.public_id))
            return
        again = submission(["again"], one.public_id, DEADLINE_MS)
        try:
            assert not self.run(submit(self.db, TENANT, again, 0))
            assert one.status != "settled", "law 7: a settled id lives again"
        except Settled as settled:
            self.told_settled(one, settled.metered)

    def close(self, draw: Draw) -> None:
        one = self.one_of(draw)
        how = draw(st.sampled_from(CLOSES))
        if how == "cancelled":
            one.close("cancelled")
            self.told(one, self.cancelled(one))
        elif how == "late":
            was_active = one.status == "active"
            assert self.run(close(self.db, one.number, "abandoned")) == was_active, (
                "law 2: a late close"
            )
            one.close("abandoned")
        else:
            left = how == "caller left"
            is_finished = all(segment.status in ("done", "failed") for segment in one.segments)
            one.close("abandoned" if left and not is_finished else "completed")
            self.told(one, self.waited(one, left))

    async def cancelled(self, one: Asked) -> Answer:
        answer = await RequestService(self.db, AppSettings()).cancel(TENANT, one.public_id)
        if answer is None:
            raise Problem("unknown-request", "There is no such request.")
        return answer

    async def waited(self, one: Asked, left: bool) -> Answer | None:
        request = await read_request(self.db, TENANT, one.public_id)
        if request is not None:
            ends_at = time.monotonic() + 60 if left else 0.0
            await wait_until_final(
                self.db, Watch(self.db, 0.01), request, lambda: ends_at, lambda: left
            )
        return await read_answer(self.db, TENANT, one.public_id)

    # Workers.

    def claim(self, draw: Draw) -> None:
        self.exchange(self.one_of(draw), [], draw(st.integers(1, 3)))

    def claim_and_crash(self, draw: Draw) -> None:
        """The worker dies with what it has just claimed; the row does not know."""
        self.exchange(self.one_of(draw), [], draw(st.integers(1, 3)), is_lost=True)

    def write_back(self, draw: Draw) -> None:
        """With any lease that was ever given: fresh, stale, used before, of a settled request."""
        one, lease = self.a_lease(draw)
        self.exchange(one, [(lease, draw(st.sampled_from(["", "r", "ṙ🫠"])))], 0)

    def exchange_all(self, draw: Draw) -> None:
        one, _ = self.a_lease(draw)
        mine = list(dict.fromkeys(lease for other, lease in self.leases if other is one))
        self.exchange(one, [(lease, f"all {lease.index_no}") for lease in mine], 1)

    def renew(self, draw: Draw) -> None:
        one, lease = self.a_lease(draw)
        held = self.holder_of(one, lease)
        lost = self.run(renew(self.db, [lease], LEASE_SECONDS))
        assert lost == ([] if held else [lease]), "law 1: renewed with a stale token"
        if held:
            held.is_due = False

    def give_back(self, draw: Draw) -> None:
        one, lease = self.a_lease(draw)
        held = self.holder_of(one, lease)
        assert self.run(give_back(self.db, lease)) == bool(held), "law 1: a stale token gave back"
        if held:
            held.status, held.token, held.is_due = "pending", None, True
            held.attempts -= 1

    def fail(self, draw: Draw) -> None:
        one, lease = self.a_lease(draw)
        after_seconds = draw(st.sampled_from([0, 3600]))
        held = self.holder_of(one, lease)
        most = draw(st.sampled_from([0, MAX_ATTEMPTS]))
        accepted = self.run(fail(self.db, lease, "broken", after_seconds, most))
        assert accepted == bool(held), "law 1: a stale token failed a segment"
        if held:
            held.status = "failed" if held.attempts >= most else "pending"
            held.token, held.is_due = None, after_seconds == 0

    # Time, and the batch.

    def pause(self, draw: Draw) -> None:
        """Longer than every lease and every wait of a request; another may take what is due."""
        one = self.one_of(draw)
        self.run(
            self.db.write(
                "UPDATE segments SET lease_until = NOW(6) - INTERVAL 1 SECOND"
                " WHERE request_id = %s AND lease_until IS NOT NULL",
                (one.number,),
            )
        )
        for segment in one.segments:
            segment.is_due = True
        if draw(st.booleans()):
            self.exchange(one, [], len(one.segments))

    def pass_the_deadline(self, draw: Draw) -> None:
        one = self.one_of(draw)
        if not one.is_past:
            self.run(pass_time(self.db, one.number, PAST_DEADLINE_SECONDS))
            one.is_past = True
            one.last = None  # it says when it was closed, which has moved as well

    def reap(self, _: Draw) -> None:
        late = {one.number for one in self.asked if one.status == "active" and one.is_past}
        assert set(self.run(overdue(self.db, 0))) == late, "law 6: overdue requests"
        for one in self.asked:
            if one.number in late:
                assert self.run(abandon(self.db, one.number))
                one.close("abandoned")

    def settle(self, _: Draw) -> None:
        final = [one for one in self.asked if one.status in FINAL]
        ready = self.run(settleable(self.db, RETENTION_SECONDS, 0))
        assert ready == [one.number for one in final], "law 4: what is ready to be settled"
        for one in final:
            runs = any(s.status == "processing" and not s.is_due for s in one.segments)
            waits = one.status == "cancelled" and not one.is_past and runs
            said = self.run(settle(self.db, one.number, RETENTION_SECONDS))
            assert said == ("deferred" if waits else "settled")
            if not waits:
                one.bill = one.paid()
                if one.last is not None and one.last.usage.final:
                    assert figures(one.last.usage) == one.bill, "law 3: answered and metered"
                one.status = "settled"

    # The laws.

    @invariant()
    def the_rows_are_as_expected(self) -> None:
        requests = {row["id"]: row for row in self.rows("SELECT * FROM requests")}
        alive = [one for one in self.asked if one.status != "settled"]
        assert list(requests) == [one.number for one in alive], "law 4: requests"
        for one in alive:
            row = requests[one.number]
            says = (row["status"], row["outcome"])
            assert says == (one.status, one.outcome), "law 2: the close"
        rows = self.rows("SELECT * FROM segments ORDER BY request_id, index_no")
        expected = [
            (one.number, index, segment)
            for one in alive
            for index, segment in enumerate(one.segments)
        ]
        assert len(rows) == len(expected), "law 4: segments"
        for row, (number, index, segment) in zip(rows, expected, strict=True):
            assert (row["request_id"], row["index_no"]) == (number, index)
            fenced = (row["status"], row["lease_token"], row["result"])
            wanted = (segment.status, segment.token, segment.result)
            assert fenced == wanted, "law 1: the fence"
            assert row["attempts"] == segment.attempts, "law 6: attempts"

    @invariant()
    def the_ledger_is_what_was_answered(self) -> None:
        records = {row["public_id"]: row for row in self.rows("SELECT * FROM meter")}
        settled = {one.public_id: one for one in self.asked if one.status == "settled"}
        assert records.keys() == settled.keys(), "law 4: one record for each settled request"
        for public_id, row in records.items():
            says = (row["segments"], row["input_characters"], row["output_characters"])
            assert says == settled[public_id].bill, "law 3: the bill"

    # What the rules share.

    def rows(self, statement: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.run(self.db.read(statement))
        return found

    def one_of(self, draw: Draw) -> Asked:
        """Any request; as often one that is not settled."""
        there = [one for one in self.asked if one.status != "settled"]
        anyone = st.sampled_from(self.asked)
        drawn: Asked = draw(st.sampled_from(there) | anyone if there else anyone)
        return drawn

    def a_lease(self, draw: Draw) -> tuple[Asked, Lease]:
        """Any lease that was ever given; as often one that still holds its segment."""
        live = [(one, lease) for one, lease in self.leases if self.holder_of(one, lease)]
        anyone = st.sampled_from(self.leases)
        drawn: tuple[Asked, Lease] = draw(st.sampled_from(live) | anyone if live else anyone)
        return drawn

    def holder_of(self, one: Asked, lease: Lease) -> Segment | None:
        """The segment, when this lease still holds it."""
        segment = one.segments[lease.index_no]
        holds = segment.status == "processing" and segment.token == lease.token
        return segment if holds and one.status != "settled" else None

    def exchange(
        self, one: Asked, results: list[tuple[Lease, str]], count: int, is_lost: bool = False
    ) -> None:
        """Write back and claim, and see that exactly the holders could and nothing was too late."""
        lost = set()
        for lease, result in results:
            held = self.holder_of(one, lease)
            segment = one.segments[lease.index_no]
            if held:
                held.status, held.result, held.is_due = "done", result, True
            elif one.status == "settled" or (segment.status, segment.token) != (
                "done",
                lease.token,
            ):
                lost.add(lease)
        ready = [Ready(lease, result) for lease, result in results]
        brought = self.run(
            exchange(
                *(self.db, ready, one.number if count else None, count),
                *("worker", LEASE_SECONDS, MAX_ATTEMPTS),
            )
        )
        assert set(brought.lost) == lost, "law 1: a write with a stale token"
        assert brought.deferred == []
        due = [
            (index, segment)
            for index, segment in enumerate(one.segments)
            if segment.status in ("pending", "processing") and segment.is_due
        ][:count]
        if one.status != "active" or one.is_past:
            due = []
        spent = [segment for _, segment in due if segment.attempts >= MAX_ATTEMPTS]
        fresh = [(i, segment) for i, segment in due if segment.attempts < MAX_ATTEMPTS]
        assert [lease.index_no for lease in brought.claimed] == [i for i, _ in fresh], (
            "law 5: what could be claimed"
        )
        assert brought.exhausted == len(spent), "law 6: what was given up"
        for segment in spent:
            segment.status, segment.token = "failed", None
        for lease, (_, segment) in zip(brought.claimed, fresh, strict=True):
            segment.status, segment.token, segment.is_due = "processing", lease.token, False
            segment.attempts += 1
            if not is_lost:
                self.leases.append((one, lease))

    def told(self, one: Asked, answering: Awaitable[Answer | None]) -> None:
        """Compare an answer with what we expect and with what was answered before."""
        try:
            answer = self.run(answering)
        except Settled as settled:
            self.told_settled(one, settled.metered)
            return
        assert answer is not None
        assert one.status != "settled"
        if one.status == "active":
            assert answer.status == "running"
            return
        assert answer.finished_at is not None
        assert figures(answer.usage) == one.paid(), "law 3: what is answered is what is paid"
        if one.last is not None and one.last.usage.final:
            assert answer == one.last, "law 2: another answer"
        one.last = answer

    def told_settled(self, one: Asked, metered: Metered) -> None:
        assert one.status == "settled", "law 4: settled too early"
        assert figures(metered) == one.bill, "law 7: another record"


@contextmanager
def actors_on(url: str) -> Iterator[type[Actors]]:
    """The actors on this database, with an event loop that all of them share."""
    with asyncio.Runner() as runner, ExitStack() as stack:
        opening = open_database(DatabaseSettings(database_url=url, pool_size=4))
        db = runner.run(opening.__aenter__())
        stack.callback(lambda: runner.run(opening.__aexit__(None, None, None)))

        class Here(Actors):
            def run(self, doing: Awaitable[T]) -> T:
                async def done() -> T:
                    return await doing

                return runner.run(done())

        Here.db = db
        yield Here


COMMON = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    # The same examples at every run of the same code; more examples are other examples.
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.sweep
def test_any_order_of_acts_by_several_actors_keeps_the_laws(url: str) -> None:
    with actors_on(url) as actors:
        run_state_machine_as_test(actors, settings=COMMON)


TOKEN = "  AND  lease_token = UNHEX(%s)\n"
STATUS = "  AND  status = 'processing'\n"
ANY_TOKEN = "  AND  lease_token <> CONCAT('not ', %s)\n"

MUTANTS: tuple[tuple[str, int, ModuleType, str, str, str], ...] = (
    ("write-back without token", 1, partway.worker.lease, "WRITE_BACK", TOKEN, ANY_TOKEN),
    ("write-back without status", 1, partway.worker.lease, "WRITE_BACK", STATUS, ""),
    ("giving back without status", 1, partway.worker.lease, "GIVE_BACK", STATUS, ""),
    ("failure without token", 1, partway.worker.lease, "FAIL", TOKEN, ANY_TOKEN),
    ("close without guard", 2, partway.store.close, "CLOSE", "  AND  r.status = 'active'\n", ""),
    ("bill without outcome", 3, partway.batch.settle, "METER", "(SUBSTRING", "(TRUE OR SUBSTRING"),
    ("claim without status", 5, partway.worker.lease, "CLAIM", "r.status = 'active' AND ", ""),
    ("claim without deadline", 5, partway.worker.lease, "CLAIM", " AND r.deadline > NOW(6)", ""),
    ("uncounted claim", 6, partway.worker.lease, "LEASE", ",\n       attempts = attempts + 1", ""),
)

TRIED = sampled(MUTANTS, sample=MUTANTS[2::3])


# What the harness can see is its own matter: one server shows it.
@pytest.mark.one_server
@pytest.mark.sweep
@pytest.mark.parametrize(
    "law, module, statement, line, instead", [m[1:] for m in TRIED], ids=[m[0] for m in TRIED]
)
def test_a_statement_without_its_line_is_seen_to_break_its_law(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    law: int,
    module: ModuleType,
    statement: str,
    line: str,
    instead: str,
) -> None:
    whole = getattr(module, statement)
    assert whole.count(line) == 1
    monkeypatch.setattr(module, statement, whole.replace(line, instead))
    many = settings(COMMON, max_examples=MUTANT_EXAMPLES, phases=[Phase.generate])

    with actors_on(url) as actors, pytest.raises((AssertionError, FlakyFailure)) as caught:
        run_state_machine_as_test(actors, settings=many)

    # Tokens are drawn by the product, so a repeat may fail in another way and be called flaky.
    assert f"law {law}:" in "".join(traceback.format_exception(caught.value))
