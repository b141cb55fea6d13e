"""A caller's own id is computed and billed once, whoever sends it, how often and to which node."""

import asyncio
from typing import Any

import httpx
import pytest

from partway.app.requests.fanout import submit
from partway.app.requests.ledger import Settled
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database
from partway.worker.lease import Ready
from tests.actions import (
    TENANT,
    WAIT_SECONDS,
    Client,
    Programs,
    arrived,
    claimed,
    exchanged,
    frozen,
    meter_rows,
    pass_time,
    request_row,
    segment_rows,
    statuses,
    submission,
    submitted,
    wait_until,
    worked,
    written,
)

MINE = "/v1/requests/mine"
BODY: dict[str, Any] = {"document": "One. Two.\n\nThree.", "deadline_ms": 50_000}


@pytest.fixture
async def node(programs: Programs) -> Client:
    """One node of the door."""
    return await programs.app()


@pytest.fixture
async def other(programs: Programs) -> Client:
    """Another node, on the same database."""
    return await programs.app()


def putting(node: Client, **fields: Any) -> "asyncio.Task[httpx.Response]":
    """An open PUT."""
    return asyncio.create_task(node.put(MINE, json=BODY | fields))


async def settled(db: Database, request_id: int) -> None:
    """Settle a closed request at once."""
    assert await settle(db, request_id, 0) == "settled"


async def test_a_put_waits_and_answers_under_the_callers_id(db: Database, node: Client) -> None:
    call = putting(node)
    await worked(db, (await arrived(db, "mine")).id, 3)

    response = await call

    assert response.status_code == 200
    assert response.headers["Partway-Outcome"] == "completed"
    answer = response.json()
    assert (answer["id"], answer["status"]) == ("mine", "completed")
    assert answer["document"] == BODY["document"]


async def test_the_same_put_on_another_node_joins_and_gets_the_same_bytes(
    db: Database, node: Client, other: Client
) -> None:
    first = putting(node)
    request = await arrived(db, "mine")
    same = b'{"deadline_ms": 50000,  "document": "One. Two.\\n\\nThr\\u0065e."}'
    second = asyncio.create_task(
        other.put(MINE, content=same, headers={"Content-Type": "application/json"})
    )
    await worked(db, request.id, 3)

    one, two = await first, await second

    assert (one.status_code, two.status_code) == (200, 200)
    assert one.content == two.content
    assert await db.read("SELECT COUNT(*) AS n FROM requests") == [{"n": 1}]
    assert [row["attempts"] for row in await segment_rows(db, request.id)] == [1, 1, 1]


async def test_after_the_close_put_and_get_give_the_same_bytes_on_every_node(
    db: Database, node: Client, other: Client
) -> None:
    call = putting(node)
    await worked(db, (await arrived(db, "mine")).id, 3)
    first = await call

    again = [await putting(node), await putting(other), await node.get(MINE), await other.get(MINE)]

    assert [response.content for response in again] == [first.content] * 4


async def test_two_puts_of_a_new_id_at_once_on_two_nodes_are_one_request(
    db: Database, node: Client, other: Client
) -> None:
    for number in range(10):
        path = f"/v1/requests/twin-{number}"
        calls = [asyncio.create_task(n.put(path, json=BODY)) for n in (node, other, node, other)]
        request = await arrived(db, f"twin-{number}")
        await worked(db, request.id, 3)

        answers = [await call for call in calls]

        assert {response.status_code for response in answers} == {200}
        assert len({response.content for response in answers}) == 1
    assert await db.read("SELECT COUNT(*) AS n, SUM(segments) AS s FROM requests") == [
        {"n": 10, "s": 30}
    ]
    assert await db.read("SELECT COUNT(*) AS n FROM segments") == [{"n": 30}]


@pytest.mark.parametrize("is_closed", [False, True])
async def test_another_body_under_the_same_id_is_refused_and_changes_nothing(
    db: Database, node: Client, other: Client, is_closed: bool
) -> None:
    call = putting(node)
    request = await arrived(db, "mine")
    if is_closed:
        await worked(db, request.id, 3)
        await call
    before = await request_row(db, request.id), await segment_rows(db, request.id)

    refused = await putting(other, document="Something else.")

    assert refused.status_code == 422
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:partway:problem:id-reused"
    assert (await request_row(db, request.id), await segment_rows(db, request.id)) == before
    if not is_closed:
        await worked(db, request.id, 3)
        assert (await call).json()["document"] == BODY["document"]


async def test_a_settled_id_answers_with_what_was_metered_and_never_runs_again(
    db: Database, node: Client
) -> None:
    call = putting(node)
    request = await arrived(db, "mine")
    await worked(db, request.id, 3)
    usage = (await call).json()["usage"]
    await settled(db, request.id)

    answers = [
        await putting(node),
        await putting(node, document="Something else."),
        await node.get(MINE),
        await node.delete(MINE),
    ]

    said = node.program.said()
    assert said.count('"settled request asked for"') == 2
    assert "request attached" not in said
    for response in answers:
        assert response.status_code == 410
        assert response.headers["Content-Type"] == "application/problem+json"
        metered = response.json()["metered"]
        assert metered.pop("settled_at").endswith("Z")
        assert metered == {
            "status": "completed",
            "segments": usage["segments"],
            "input_characters": usage["input_characters"],
            "output_characters": usage["output_characters"],
            "billed": True,
        }
    assert await db.read("SELECT id FROM requests") == []
    assert await db.read("SELECT index_no FROM segments") == []


async def test_a_settled_id_is_not_stored_by_one_who_had_looked_before_it_was_settled(
    db: Database,
) -> None:
    """The door looks first for who has paid; what counts is the look after the insert."""
    request_id, public_id = await submitted(db, 1)
    await close(db, request_id, "cancelled")
    await settled(db, request_id)

    with pytest.raises(Settled):
        await submit(db, TENANT, submission(["again"], public_id), 0)

    assert await db.read("SELECT id FROM requests") == []


async def test_a_cancel_from_a_second_client_answers_the_open_put(
    db: Database, node: Client, other: Client
) -> None:
    """The deadline is far: an answer before it is due to the cancel."""
    call = putting(node)
    request = await arrived(db, "mine")
    await worked(db, request.id, 1)

    cancelled = await other.delete(MINE)
    assert await claimed(db, request.id, 10) == []
    answer = await asyncio.wait_for(call, WAIT_SECONDS)

    assert (cancelled.status_code, answer.status_code) == (200, 200)
    assert answer.content == cancelled.content
    said = answer.json()
    assert said["status"] == answer.headers["Partway-Outcome"] == "cancelled"
    assert said["counts"] == {"total": 3, "done": 1, "failed": 0, "timed_out": 0, "cancelled": 2}
    assert said["segments"][0]["result"] == "One."
    assert said["usage"]["final"] is True


async def test_a_straggler_is_answered_and_billed_and_nothing_is_final_until_then(
    db: Database, node: Client
) -> None:
    call = putting(node)
    request = await arrived(db, "mine")
    (straggler,) = await claimed(db, request.id, 1)

    cancelled = (await node.delete(MINE)).json()
    assert (await call).json()["usage"] == cancelled["usage"]
    assert cancelled["usage"]["final"] is False
    assert await written(db, straggler, result="late") == []

    after = (await node.get(MINE)).json()
    assert after["segments"][0]["result"] == "late 0"
    assert (after["status"], after["usage"]["final"]) == ("cancelled", True)
    await settled(db, request.id)
    (record,) = await meter_rows(db, "mine")
    assert (record["segments"], record["output_characters"]) == (1, len("late 0"))


async def test_a_second_cancel_gives_the_same_answer(db: Database, node: Client) -> None:
    request_id, public_id = await submitted(db, 3)
    await worked(db, request_id, 1)

    first = await node.delete(f"/v1/requests/{public_id}")
    second = await node.delete(f"/v1/requests/{public_id}")

    assert first.json()["status"] == "cancelled"
    assert first.content == second.content


async def test_a_completed_request_stays_completed_when_it_is_cancelled(
    db: Database, node: Client
) -> None:
    request_id, public_id = await submitted(db, 1)
    await worked(db, request_id, 1)
    await close(db, request_id, "completed")

    response = await node.delete(f"/v1/requests/{public_id}")

    assert (response.status_code, response.json()["status"]) == (200, "completed")


async def test_a_cancelled_id_can_be_put_again_and_stays_cancelled(
    db: Database, node: Client
) -> None:
    call = putting(node)
    await arrived(db, "mine")
    await node.delete(MINE)
    first = await call

    assert (await putting(node)).content == first.content


async def test_an_unknown_id_is_not_found(db: Database, node: Client) -> None:
    await submitted(db, 1, public_id="mine", tenant="somebody-else")

    for response in (await node.get(MINE), await node.delete(MINE)):
        assert response.status_code == 404
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.json()["type"] == "urn:partway:problem:unknown-request"
    assert (await db.read("SELECT status FROM requests"))[0]["status"] == "active"


async def test_get_shows_a_running_request_as_it_grows(db: Database, node: Client) -> None:
    call = putting(node)
    request = await arrived(db, "mine")
    await worked(db, request.id, 1)
    (running,) = await claimed(db, request.id, 1)

    said = (await node.get(MINE)).json()

    assert [s["status"] for s in said["segments"]] == ["done", "processing", "pending"]
    assert (said["status"], said["usage"]["segments"]) == ("running", 1)
    await exchanged(db, [Ready(running, running.source)])
    await worked(db, request.id, 1)
    assert (await call).json()["status"] == "completed"


async def test_a_request_whose_node_died_is_answered_by_the_next_put(
    db: Database, node: Client, other: Client
) -> None:
    call = putting(node)
    request = await arrived(db, "mine")
    await worked(db, request.id, 2)
    node.program.process.kill()
    with pytest.raises(httpx.TransportError):
        await call
    await pass_time(db, request.id, 60)

    response = await putting(other)

    assert (response.status_code, response.json()["status"]) == (200, "partial")
    assert response.json()["counts"]["done"] == 2
    assert await statuses(db, request.id) == ["done", "done", "pending"]


async def test_a_put_beside_a_frozen_submit_of_its_id_is_told_to_come_back(
    db: Database, node: Client, url: str
) -> None:
    submit = (
        "INSERT INTO requests (tenant, public_id, body_hash, segments, characters, params,"
        " on_missing, created_at, deadline)"
        " VALUES ('default', 'mine', '', 0, 0, '{}', 'null', NOW(6), NOW(6))"
    )
    async with frozen(url, (submit, ())):
        refused = await putting(node)

        assert refused.status_code == 503
        assert refused.headers["Content-Type"] == "application/problem+json"
        assert int(refused.headers["Retry-After"]) >= 1
        assert "another call is submitting this id" in refused.json()["detail"]

    call = putting(node)
    await worked(db, (await arrived(db, "mine")).id, 3)
    assert (await call).json()["status"] == "completed"


async def test_a_put_does_not_wait_for_settlement_to_hear_that_it_is_settled(
    db: Database, node: Client, url: str
) -> None:
    """Joining and reading lock nothing: a settlement in flight holds the row meanwhile."""
    request_id, public_id = await submitted(db, 1)
    await worked(db, request_id, 1)
    await close(db, request_id, "completed")
    held = ("SELECT id FROM requests WHERE id = %s FOR UPDATE", (request_id,))
    async with frozen(url, held):
        path = f"/v1/requests/{public_id}"
        answers = await asyncio.gather(node.get(path), node.delete(path))

    assert [response.json()["status"] for response in answers] == ["completed", "completed"]


async def test_the_answer_of_a_deadline_that_passed_names_what_was_late(
    db: Database, node: Client
) -> None:
    call = putting(node, deadline_ms=1_000)
    request = await arrived(db, "mine")
    leases = await claimed(db, request.id, 2)
    await exchanged(db, [Ready(leases[1], leases[1].source)])

    response = await call
    assert await written(db, leases[0], result="late") == []

    assert response.status_code == 200
    assert response.headers["Partway-Outcome"] == response.json()["status"] == "partial"
    said = [(s["index"], s["status"], s["result"]) for s in response.json()["segments"]]
    assert said == [(0, "timed_out", None), (1, "done", "Two."), (2, "timed_out", None)]
    assert (await node.get(MINE)).content == response.content
    assert response.json()["finished_at"] >= response.json()["deadline_at"]


async def test_a_real_worker_and_batch_bill_exactly_the_answer(
    db: Database, node: Client, programs: Programs
) -> None:
    await programs.worker(concurrency=3, SLEEP_SECONDS=0)
    answer = (await putting(node, document="Ünö. 𠮷.\n\nThree. " * 20)).json()
    assert answer["status"] == "completed"
    await programs.batch()

    async def is_settled() -> bool:
        return bool(await meter_rows(db, "mine"))

    await wait_until(is_settled, "the settlement")

    (record,) = await meter_rows(db, "mine")
    for figure in ("segments", "input_characters", "output_characters"):
        assert record[figure] == answer["usage"][figure]
    assert record["billed"] == 1
