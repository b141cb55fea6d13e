"""What happens between two reads of one call must not come between the caller and the truth."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

import partway.app.requests.answer
from partway.app.requests.answer import read_answer
from partway.app.requests.ledger import Settled
from partway.app.requests.service import RequestService
from partway.app.settings import AppSettings
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database, Row, Unavailable
from tests.actions import (
    TENANT,
    WAIT_SECONDS,
    claimed,
    find_request,
    meter_rows,
    submitted,
    written,
)


class Interrupted(Database):
    """The same database, on which something happens right before one of the reads."""

    def __init__(self, db: Database, before: int, happens: Callable[[], Awaitable[Any]]) -> None:
        self.db = db
        self.reads_left = before
        self.happens = happens

    async def read(
        self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[Row]:
        """The rows of one plain read."""
        if self.reads_left == 0:
            await self.happens()
        self.reads_left -= 1
        return await self.db.read(statement, values)

    async def write(self, statement: str, values: Sequence[Any] = ()) -> int:
        """How many rows one statement found to change."""
        return await self.db.write(statement, values)


@pytest.mark.parametrize("before", range(4))
async def test_final_figures_are_the_bill_whenever_the_last_straggler_is_written_back(
    db: Database, before: int
) -> None:
    """Law 3: figures that are called final are the bill."""
    request_id, public_id = await submitted(db, 3)
    first, last = await claimed(db, request_id, 2)
    await written(db, first)
    assert await close(db, request_id, "cancelled")

    interrupted = Interrupted(db, before, lambda: written(db, last))
    answer = await read_answer(interrupted, TENANT, public_id)
    if interrupted.reads_left >= 0:
        await written(db, last)

    assert answer is not None
    assert await settle(db, request_id, 60) == "settled"
    (record,) = await meter_rows(db, public_id)
    assert record["segments"] == 2
    if answer.usage.final:
        assert answer.usage.segments == record["segments"]
        assert answer.usage.output_characters == record["output_characters"]


@pytest.mark.parametrize("before", range(2))
async def test_a_cancel_is_never_told_that_the_request_runs_on(db: Database, before: int) -> None:
    """Law 2, when the call that it cancels is stored only while it looks."""
    interrupted = Interrupted(db, before, lambda: submitted(db, 2, public_id="mine"))

    answer = await RequestService(interrupted, AppSettings()).cancel(TENANT, "mine")

    assert answer is not None
    assert answer.status == "cancelled"
    request = await find_request(db, "mine")
    assert request is not None
    assert request.status == "cancelled"


@pytest.mark.parametrize("before", range(4))
async def test_an_answer_that_is_settled_between_two_reads_is_whole_or_a_record(
    db: Database, before: int
) -> None:
    """Law 2: never half of it, such as a document that lacks what it should have."""
    request_id, public_id = await submitted(db, 3, on_missing="source")
    await written(db, *await claimed(db, request_id))
    assert await close(db, request_id, "completed")

    interrupted = Interrupted(db, before, lambda: settle(db, request_id, 60))
    said: object
    try:
        answer = await read_answer(interrupted, TENANT, public_id)
        said = answer.document if answer is not None else None
    except Settled as settled:
        said = settled.metered.segments

    assert said in ("done 0 s1 s2", 1)


async def test_an_answer_that_cannot_be_read_in_time_is_a_database_that_is_away(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 10: a silent server holds a call no longer than one that is gone."""
    request_id, public_id = await submitted(db, 1)
    await close(db, request_id, "completed")
    monkeypatch.setattr(partway.app.requests.answer, "READ_SECONDS", 0.1)
    silent = Interrupted(db, 1, asyncio.Event().wait)

    with pytest.raises(Unavailable):
        await asyncio.wait_for(read_answer(silent, TENANT, public_id), WAIT_SECONDS)
