"""The main job on real input: a document in, an answer by the deadline, a bill that equals it."""

import asyncio
import re

from partway.app.requests.split import split
from partway.store.database import Database
from tests.actions import (
    ROOT,
    Programs,
    find_request,
    meter_rows,
    pass_time,
    statuses,
    wait_until,
)

SAMPLE = ROOT / "local" / "sample.txt"


async def record_of(db: Database, public_id: str) -> dict[str, object]:
    """The one record of a request, once its rows are gone."""

    async def gone() -> bool:
        return await find_request(db, public_id) is None

    await wait_until(gone, "settlement")
    (record,) = await meter_rows(db, public_id)
    return record


async def test_a_document_is_translated_before_its_deadline_and_billed_to_the_character(
    db: Database, programs: Programs
) -> None:
    node = await programs.app()
    for _ in range(2):
        await programs.worker("apertium", concurrency=2)
    text = SAMPLE.read_text(encoding="utf-8")

    sent = {"document": text, "deadline_ms": 50_000, "params": {"source": "eng", "target": "spa"}}
    answer = (await node.put("/v1/requests/sample", json=sent)).json()

    assert answer["status"] == "completed"
    assert answer["counts"]["done"] == answer["counts"]["total"] > 90
    assert answer["finished_at"] < answer["deadline_at"]
    # Put together again with its white space: the same line ends in the same places.
    assert re.findall(r"\n+", answer["document"]) == re.findall(r"\n+", text)
    assert answer["document"] != text
    results = [segment["result"] for segment in answer["segments"]]
    assert "".join(answer["document"].split()) == "".join("".join(results).split())
    assert "*" not in answer["document"]

    await programs.batch()
    record = await record_of(db, "sample")
    assert record["segments"] == answer["usage"]["segments"] == len(results)
    assert record["output_characters"] == sum(len(result) for result in results)
    assert record["output_characters"] == answer["usage"]["output_characters"]
    assert record["input_characters"] == answer["usage"]["input_characters"]
    assert record["input_characters"] == len(text) - sum(
        len(gap) for gap in gaps(text, answer["counts"]["total"])
    )


def gaps(text: str, count: int) -> list[str]:
    """What the door left out of the segments of this document."""
    pieces = split(text, "en", 100, 5000)
    assert len(pieces.sources) == count
    return pieces.separators


async def test_at_a_deadline_too_short_the_finished_part_is_answered_and_billed(
    db: Database, programs: Programs
) -> None:
    node = await programs.app()
    await programs.worker("sleep", concurrency=4)
    sentences = [f"This is sentence number {i}." for i in range(40)]

    sent = {"document": "\n\n".join(sentences), "deadline_ms": 2500, "params": {"seconds": 0.5}}
    response = await node.put("/v1/requests/short", json=sent)

    answer = response.json()
    assert response.status_code == 200
    assert response.headers["partway-outcome"] == answer["status"] == "partial"
    said = [segment["status"] for segment in answer["segments"]]
    done = said.count("done")
    assert 4 <= done < 40
    assert said == ["done"] * done + ["timed_out"] * (40 - done)
    assert [s["result"] for s in answer["segments"][:done]] == sentences[:done]
    assert answer["document"] is None
    assert answer["finished_at"] >= answer["deadline_at"]

    await programs.batch()
    record = await record_of(db, "short")
    assert record["segments"] == done
    assert record["input_characters"] == sum(len(sentence) for sentence in sentences[:done])


async def test_a_cancel_while_the_call_is_open_is_answered_and_its_stragglers_are_billed(
    db: Database, programs: Programs
) -> None:
    node, other = await programs.app(), await programs.app()
    await programs.worker("sleep", concurrency=2)
    batch = await programs.batch()
    sent = {"segments": [f"sentence {i}" for i in range(10)], "params": {"seconds": 2}}
    call = asyncio.create_task(node.put("/v1/requests/mine", json=sent))

    async def some_run() -> int:
        request = await find_request(db, "mine")
        said = await statuses(db, request.id) if request else []
        return request.id if request and "done" in said and said.count("processing") == 2 else 0

    request_id = await wait_until(some_run, "two done and two running")
    cancelled = (await other.delete("/v1/requests/mine")).json()
    answer = (await call).json()

    assert cancelled["status"] == answer["status"] == "cancelled"
    assert cancelled["counts"]["done"] == 2
    begun = cancelled["counts"]["done"] + 2
    assert not answer["usage"]["final"]

    # Kept long enough, but a straggler runs: settlement waits for it, and only for it.
    await pass_time(db, request_id, 0)

    async def stragglers_done() -> bool:
        rows = await meter_rows(db, "mine")
        return bool(rows) or (await statuses(db, request_id)).count("done") == begun

    await wait_until(stragglers_done, "the stragglers")
    record = await record_of(db, "mine")
    assert record["segments"] == begun
    assert record["billed"] == 1
    assert batch.process.poll() is None
