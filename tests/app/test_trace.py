"""A trace that begins at the caller goes on in the handler, whichever worker runs it."""

import asyncio

import pytest

from partway.app.api.trace import read_traceparent
from partway.store.database import Database
from partway.worker.handler import Context
from tests.actions import Programs, arrived, request_row, submitted, worked
from tests.app.test_http_api import REQUESTS

# A trace goes through the programs alike, whichever server holds the rows.
pytestmark = pytest.mark.one_server

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{PARENT}-01"


def told(_: str, ctx: Context) -> str:
    """A handler whose result is the traceparent that it was handed."""
    return str(ctx.traceparent)


@pytest.mark.parametrize(
    "lines, kept",
    [
        ([GIVEN], GIVEN),
        ([f" {GIVEN} "], GIVEN),
        ([f"00-{TRACE}-{PARENT}-ff"], f"00-{TRACE}-{PARENT}-ff"),
        ([f"01-{TRACE}-{PARENT}-01"], GIVEN),
        ([f"cc-{TRACE}-{PARENT}-01-what-comes-later"], GIVEN),
        ([], None),
        ([""], None),
        ([GIVEN, GIVEN], None),
        ([f"ff-{TRACE}-{PARENT}-01"], None),
        ([f"00-{TRACE}-{PARENT}-01-more"], None),
        ([f"cc-{TRACE}-{PARENT}-01more"], None),
        ([f"00-{TRACE.upper()}-{PARENT}-01"], None),
        ([f"00-{'0' * 32}-{PARENT}-01"], None),
        ([f"00-{TRACE}-{'0' * 16}-01"], None),
        ([f"00-{TRACE[1:]}-{PARENT}-01"], None),
        ([f"{GIVEN}\u0661"], None),
        (["x" * 60_000], None),
    ],
)
def test_a_traceparent_is_kept_where_it_is_valid(lines: list[str], kept: str | None) -> None:
    assert read_traceparent(lines) == kept


async def test_the_trace_of_a_call_reaches_its_handler_and_no_other(
    db: Database, programs: Programs
) -> None:
    node = await programs.app()
    await programs.worker(f"{__name__}:told", concurrency=2)
    sent = {"segments": ["a", "b"], "deadline_ms": 50_000}

    traced = await node.post(REQUESTS, json=sent, headers={"traceparent": GIVEN})
    plain = await node.post(REQUESTS, json=sent)
    wrong = await node.post(REQUESTS, json=sent, headers={"traceparent": "00-x"})

    results = [
        [segment["result"] for segment in response.json()["segments"]]
        for response in (traced, plain, wrong)
    ]
    assert results == [[GIVEN] * 2, ["None"] * 2, ["None"] * 2]


async def test_a_joiner_does_not_change_the_trace(db: Database, programs: Programs) -> None:
    node = await programs.app()
    sent = {"document": "One.", "deadline_ms": 50_000}
    other = GIVEN.replace(PARENT, "1" * 16)
    path = f"{REQUESTS}/mine"
    first = asyncio.create_task(node.put(path, json=sent, headers={"traceparent": GIVEN}))
    request = await arrived(db, "mine")
    second = asyncio.create_task(node.put(path, json=sent, headers={"traceparent": other}))
    await worked(db, request.id, 1)

    assert (await first).content == (await second).content
    row = await request_row(db, request.id)
    assert row is not None
    assert row["traceparent"] == GIVEN


async def test_a_request_without_a_trace_has_none(db: Database) -> None:
    request_id, _ = await submitted(db, 1)

    row = await request_row(db, request_id)
    assert row is not None
    assert row["traceparent"] is None
