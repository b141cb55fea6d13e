"""The answer says what is there, to the character, in the same bytes for whoever asks."""

import json

import pytest

from partway.app.api.body import read_submission
from partway.app.requests.answer import read_answer, read_newly_finished
from partway.app.requests.fanout import submit
from partway.app.requests.ledger import Settled
from partway.app.settings import AppSettings
from partway.batch.settle import settle
from partway.store.close import Final, close
from partway.store.database import Database
from partway.worker.lease import fail, give_back
from tests.actions import (
    TENANT,
    answer_of,
    arrived,
    claimed,
    expire,
    meter_rows,
    pass_time,
    segment_rows,
    submitted,
    worked,
    written,
)

# One code point each is one character: composed é 1, decomposed 2, a family 7, CRLF 2, 𠮷 1.
TEXTS = (
    "é",
    "e\u0301",
    "👨\u200d👩\u200d👧\u200d👦",
    "a\r\nb",
    "𠮷野家",
    "NUL \x00 inside",
    "\ufeffa mark in front",
    "not a character \ufffe\uffff \U0010ffff",
    "🫠 🇩🇰 \u202bעברית\u202c",
    "&eacute; %C3%A9 \\u00e9 \\ ' \" ` %s %(a)s {} ; --",
    "x\u3000y",
)


async def sent(db: Database, **body: object) -> int:
    """A request as the door stores it; its number."""
    content = json.dumps(body).encode()
    new = read_submission(content, "application/json", "mine", "own", AppSettings())
    assert await submit(db, TENANT, new, 0)
    return (await arrived(db, "mine")).id


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
async def test_any_text_comes_back_exactly_and_is_counted_in_code_points(
    db: Database, text: str
) -> None:
    """The database itself is latin1: the tables and the connection say what they are."""
    document = f"{text}\n\n{text}. \t"
    request_id = await sent(db, document=document)
    request = await arrived(db, "mine")
    await worked(db, request_id, request.segments)
    await close(db, request_id, "completed")

    answer = await answer_of(db, "mine")
    rows = await segment_rows(db, request_id)
    counted = await db.read(
        "SELECT CAST(SUM(CHAR_LENGTH(source)) AS SIGNED) AS i,"
        " CAST(SUM(CHAR_LENGTH(result)) AS SIGNED) AS o FROM segments"
    )
    assert await settle(db, request_id, 0) == "settled"

    assert answer.document == document
    assert answer.status == "completed"
    length = sum(len(row["source"]) for row in rows)
    assert (answer.usage.input_characters, answer.usage.output_characters) == (length, length)
    assert counted == [{"i": length, "o": length}]
    (record,) = await meter_rows(db, "mine")
    assert (record["input_characters"], record["output_characters"]) == (length, length)
    assert record["segments"] == answer.usage.segments == len(rows)
    json.loads(answer.model_dump_json())


async def test_a_running_request_says_what_is_pending_processing_and_done(db: Database) -> None:
    request_id, public_id = await submitted(db, 4)
    await worked(db, request_id, 1)
    (lease,) = await claimed(db, request_id, 1)
    await fail(db, lease, "the handler said no", 0, 0)
    await claimed(db, request_id, 1)

    answer = await answer_of(db, public_id)

    assert [s.status for s in answer.segments] == ["done", "failed", "processing", "pending"]
    assert answer.status == "running"
    assert answer.finished_at is None
    assert answer.document is None
    assert vars(answer.counts) == {
        "total": 4,
        "done": 1,
        "failed": 1,
        "timed_out": 0,
        "cancelled": 0,
    }
    assert (answer.usage.segments, answer.usage.final) == (1, False)


async def test_what_was_not_done_at_the_close_is_timed_out(db: Database) -> None:
    request_id, public_id = await submitted(db, 3)
    await worked(db, request_id, 1)
    await claimed(db, request_id, 1)
    await close(db, request_id, "completed")

    answer = await answer_of(db, public_id)

    assert answer.status == "partial"
    assert [(s.status, s.result) for s in answer.segments] == [
        ("done", "s0"),
        ("timed_out", None),
        ("timed_out", None),
    ]
    assert answer.finished_at is not None
    assert answer.usage.final


async def test_what_is_done_after_the_close_is_neither_answered_nor_billed(db: Database) -> None:
    request_id, public_id = await submitted(db, 2)
    await worked(db, request_id, 1)
    (late,) = await claimed(db, request_id, 1)
    await close(db, request_id, "completed")
    before = await answer_of(db, public_id)

    assert await written(db, late) == []

    assert await answer_of(db, public_id) == before
    assert await settle(db, request_id, 0) == "settled"
    (record,) = await meter_rows(db, public_id)
    assert (record["segments"], record["input_characters"]) == (1, 2)


async def test_a_failure_after_the_close_does_not_change_the_answer(db: Database) -> None:
    request_id, public_id = await submitted(db, 1)
    (late,) = await claimed(db, request_id, 1)
    await close(db, request_id, "completed")
    before = await answer_of(db, public_id)

    assert await fail(db, late, "too late", 0, 0)

    assert await answer_of(db, public_id) == before


async def test_a_cancelled_requests_straggler_is_answered_and_billed(db: Database) -> None:
    request_id, public_id = await submitted(db, 3)
    await worked(db, request_id, 1)
    (straggler,) = await claimed(db, request_id, 1)
    await close(db, request_id, "cancelled")

    before = await answer_of(db, public_id)
    assert [s.status for s in before.segments] == ["done", "cancelled", "cancelled"]
    assert not before.usage.final
    assert before.usage.segments == 1

    assert await written(db, straggler) == []

    after = await answer_of(db, public_id)
    assert [s.status for s in after.segments] == ["done", "done", "cancelled"]
    assert after.status == "cancelled"
    assert after.usage.final
    assert await settle(db, request_id, 0) == "settled"
    (record,) = await meter_rows(db, public_id)
    assert record["segments"] == after.usage.segments == 2
    assert record["output_characters"] == after.usage.output_characters


async def test_a_straggler_that_is_given_back_leaves_the_figures_final(db: Database) -> None:
    request_id, public_id = await submitted(db, 1)
    (straggler,) = await claimed(db, request_id, 1)
    await close(db, request_id, "cancelled")

    assert await give_back(db, straggler)

    answer = await answer_of(db, public_id)
    assert [s.status for s in answer.segments] == ["cancelled"]
    assert answer.usage.final


async def test_a_pending_segment_of_a_cancelled_request_is_never_answered(db: Database) -> None:
    """The outcome decides, whatever a row says: this row is written behind its back."""
    request_id, public_id = await submitted(db, 1)
    await close(db, request_id, "cancelled")
    await db.write("UPDATE segments SET status = 'done', result = 'x', attempts = 1")

    assert [s.status for s in (await answer_of(db, public_id)).segments] == ["cancelled"]


async def test_an_abandoned_request_bills_nothing_and_says_so(db: Database) -> None:
    request_id, public_id = await submitted(db, 2)
    await worked(db, request_id, 1)
    await close(db, request_id, "abandoned")

    answer = await answer_of(db, public_id)

    assert (answer.status, answer.usage.billed, answer.usage.segments) == ("abandoned", False, 1)
    assert [s.status for s in answer.segments] == ["done", "cancelled"]


async def test_abandoned_after_its_deadline_says_timed_out(db: Database) -> None:
    request_id, public_id = await submitted(db, 1)
    await pass_time(db, request_id, 60)
    await close(db, request_id, "abandoned")

    assert [s.status for s in (await answer_of(db, public_id)).segments] == ["timed_out"]


async def test_a_failed_segment_says_why_and_after_how_many_attempts(db: Database) -> None:
    """99 finished texts are not thrown away because one failed, and 99 are billed."""
    request_id, public_id = await submitted(db, 100)
    (bad,) = await claimed(db, request_id, 1)
    await fail(db, bad, "the handler said no", 0, 3)
    leases = await claimed(db, request_id, 100)
    assert len(leases) == 100
    again = next(lease for lease in leases if lease.index_no == bad.index_no)
    assert await written(db, *[lease for lease in leases if lease is not again]) == []
    await fail(db, again, "it said no again", 0, 0)
    await close(db, request_id, "completed")

    answer = await answer_of(db, public_id)

    assert answer.status == "partial"
    assert (answer.counts.done, answer.counts.failed) == (99, 1)
    failed = answer.segments[bad.index_no]
    assert (failed.status, failed.error, failed.attempts) == ("failed", "it said no again", 2)
    assert failed.result is None
    assert await settle(db, request_id, 0) == "settled"
    assert (await meter_rows(db, public_id))[0]["segments"] == answer.usage.segments == 99


@pytest.mark.parametrize(
    "on_missing, document",
    [("null", None), ("source", " One.\n\nTwo. "), ("omit", " One.\n\n ")],
)
async def test_on_missing_decides_what_stands_for_a_missing_segment(
    db: Database, on_missing: str, document: str | None
) -> None:
    request_id = await sent(db, document=" One.\n\nTwo. ", on_missing=on_missing)
    await worked(db, request_id, 1)
    running = await answer_of(db, "mine")
    await close(db, request_id, "completed")

    answer = await answer_of(db, "mine")

    assert running.document == answer.document == document
    assert [s.result for s in answer.segments] == ["One.", None]


async def test_a_failed_segment_is_missing_from_the_document_too(db: Database) -> None:
    request_id = await sent(db, document="One. Two.", on_missing="source")
    (first, second) = await claimed(db, request_id, 2)
    await fail(db, first, "no", 0, 0)
    await written(db, second, result="zwei")
    await close(db, request_id, "completed")

    assert (await answer_of(db, "mine")).document == "One. zwei 1"


@pytest.mark.parametrize("on_missing", ["null", "source", "omit"])
async def test_segments_have_no_document_and_keep_their_places(
    db: Database, on_missing: str
) -> None:
    request_id = await sent(
        db, segments=["one", "", " \n", "two", "\u200b\ufeff"], on_missing=on_missing
    )
    await worked(db, request_id, 2)
    await close(db, request_id, "completed")

    answer = await answer_of(db, "mine")

    assert answer.document is None
    assert answer.status == "completed"
    assert [s.result for s in answer.segments] == ["one", "", " \n", "two", "\u200b\ufeff"]


async def test_blank_segments_are_done_at_once_and_never_claimed(db: Database) -> None:
    request_id = await sent(db, segments=["", "a", " \u3000", "\ufeff"])

    assert [lease.source for lease in await claimed(db, request_id, 10)] == ["a"]


async def test_an_empty_result_is_a_result(db: Database) -> None:
    request_id = await sent(db, document="One. Two.")
    leases = await claimed(db, request_id, 2)
    await db.write("UPDATE segments SET status = 'done', result = ''")
    await close(db, request_id, "completed")

    answer = await answer_of(db, "mine")

    assert len(leases) == 2
    assert answer.status == "completed"
    assert [s.result for s in answer.segments] == ["", ""]
    assert answer.document == " "
    assert (answer.usage.input_characters, answer.usage.output_characters) == (8, 0)


async def test_a_blank_document_is_complete_and_costs_nothing(db: Database) -> None:
    request_id = await sent(db, document=" \n\u3000")
    await close(db, request_id, "completed")

    answer = await answer_of(db, "mine")

    assert (answer.status, answer.document, answer.segments) == ("completed", " \n\u3000", [])
    assert await settle(db, request_id, 0) == "settled"
    (record,) = await meter_rows(db, "mine")
    assert (record["segments"], record["input_characters"], record["billed"]) == (0, 0, 1)


@pytest.mark.parametrize("ending", ["completed", "cancelled", "abandoned"])
async def test_whoever_asks_gets_the_same_bytes(db: Database, ending: Final) -> None:
    """The closer has read the results already; a joiner and GET read them anew."""
    request_id, public_id = await submitted(db, 3, on_missing="source")
    await worked(db, request_id, 2)
    _, seen = await read_newly_finished(db, request_id, {})
    await close(db, request_id, ending)

    closer = await read_answer(db, TENANT, public_id, seen)
    other = await read_answer(db, TENANT, public_id)

    assert closer is not None
    assert other is not None
    assert closer.model_dump_json() == other.model_dump_json()


async def test_the_answer_does_not_depend_on_what_was_seen_before_the_close(db: Database) -> None:
    """What was read before counts only as far as the outcome names it."""
    request_id, public_id = await submitted(db, 2)
    (first, second) = await claimed(db, request_id, 2)
    await written(db, first)
    await close(db, request_id, "completed")
    await written(db, second)
    _, seen = await read_newly_finished(db, request_id, {})
    assert set(seen) == {0, 1}

    answer = await read_answer(db, TENANT, public_id, seen)

    assert answer is not None
    assert [s.status for s in answer.segments] == ["done", "timed_out"]


async def test_an_id_that_was_never_there_has_no_answer(db: Database) -> None:
    _, public_id = await submitted(db, 1)

    assert await read_answer(db, TENANT, public_id + "x") is None
    assert await read_answer(db, "somebody else", public_id) is None
    assert await read_answer(db, TENANT, public_id.upper(), {}) is None


async def test_a_settled_request_has_a_record_instead_of_an_answer(db: Database) -> None:
    request_id, public_id = await submitted(db, 1)
    await worked(db, request_id, 1)
    await close(db, request_id, "completed")
    assert await settle(db, request_id, 0) == "settled"

    with pytest.raises(Settled) as found:
        await read_answer(db, TENANT, public_id)

    assert found.value.metered.segments == 1
    assert found.value.metered.billed is True


async def test_the_result_of_a_second_attempt_is_the_answer(db: Database) -> None:
    request_id, public_id = await submitted(db, 1)
    (stale,) = await claimed(db, request_id, 1)
    await expire(db, request_id)
    (fresh,) = await claimed(db, request_id, 1)
    await written(db, fresh, result="fresh")
    assert await written(db, stale, result="stale") == [stale]
    await close(db, request_id, "completed")

    (segment,) = (await answer_of(db, public_id)).segments

    assert (segment.result, segment.attempts) == ("fresh 0", 2)
