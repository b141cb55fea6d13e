"""What the programs count is what happened, and says nothing of whose it was."""

import asyncio
import re
import signal
import socket
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import partway.batch.metrics
import partway.worker.metrics
from partway.app.metrics import OUTCOMES, OpenCall
from partway.app.metrics import REGISTRY as NODE
from partway.app.problems import KINDS, NO_TYPE
from partway.batch import gauges
from partway.batch.run import Batch
from partway.batch.settings import BatchSettings
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import CONFLICTS, UNAVAILABLE, Database
from partway.store.exposition import MetricsSettings, serve_metrics
from partway.store.metrics import REGISTRY
from partway.store.settings import read_address
from partway.worker import choice
from partway.worker.compute import Compute
from partway.worker.settings import WorkerSettings
from partway.worker.slots import Slots
from tests.actions import (
    ROOT,
    WAIT_SECONDS,
    Client,
    Program,
    Programs,
    arrived,
    bearer,
    claimed,
    expire,
    free_port,
    frozen,
    meter_rows,
    pass_time,
    raw_call,
    raw_request,
    statuses,
    submitted,
    wait_until,
    worked,
    written,
)
from tests.app.test_http_api import REQUESTS
from tests.conftest import AnyServer
from tests.store.test_log import lines
from tests.store.test_start import endings

pytestmark = pytest.mark.one_server

MINE = f"{REQUESTS}/mine"
LATER = "tests.told_handlers:told_later"
AFTER = "tests.told_handlers:told_after"

# How a histogram is written: its figures are series of their own.
OF_A_HISTOGRAM = re.compile(r"_(bucket|count|sum)$")

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Shown:
    """What a program showed at one time."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.series: Series = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """One figure."""
        return self.series[f"partway_{name}", frozenset(labels.items())]

    def values(self, name: str) -> dict[str, float]:
        """The figures of a metric by its only label."""
        return {
            label[1]: value
            for (found, labels), value in self.series.items()
            if found == f"partway_{name}"
            for label in labels
        }


async def shown(address: str | Client) -> Shown:
    """What the program at this address shows now."""
    if isinstance(address, Client):
        response = await address.get("/metrics")
    else:
        async with httpx.AsyncClient(trust_env=False) as client:
            response = await client.get(f"{address}/metrics", timeout=WAIT_SECONDS)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Shown(response.text)


async def until(address: str | Client, name: str, value: float, **labels: str) -> Shown:
    """What a program shows once this figure is that large."""

    async def is_there() -> Shown | None:
        found = await shown(address)
        return found if found.value(name, **labels) >= value else None

    found = await wait_until(is_there, f"{name} {labels} to be {value}")
    assert isinstance(found, Shown)
    return found


async def a_worker(
    programs: Programs, handler: str = "sleep", **settings: object
) -> tuple[Program, str]:
    """A worker that serves its metrics, and where."""
    port = free_port()
    program = await programs.worker(handler, 4, METRICS_PORT=port, **settings)
    return program, f"http://127.0.0.1:{port}"


async def a_batch(programs: Programs, **settings: object) -> tuple[Program, str]:
    """A batch that serves its metrics, and where."""
    port = free_port()
    program = await programs.batch(METRICS_PORT=port, **settings)
    return program, f"http://127.0.0.1:{port}"


# What is exported.


def documented() -> dict[str, dict[str, tuple[str, set[str]]]]:
    """By program: the type and the labels of each metric in docs/metrics.md."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    found: dict[str, dict[str, tuple[str, set[str]]]] = defaultdict(dict)
    for line in text.splitlines():
        if not line.startswith("| `partway_"):
            continue
        name, kind, labels, of, said = [cell.strip() for cell in line.strip("|").split("|")]
        assert said.endswith("."), name
        programs = ("app", "worker", "batch") if of == "all" else (of.split(",")[0],)
        for program in programs:
            found[program][name.strip("`")] = kind, set(re.findall(r"`(\w+)`", labels))
    return found


def exported(said: Shown) -> dict[str, tuple[str, set[str]]]:
    """The type and the labels of each metric that a program shows."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", said.text, re.MULTILINE))
    labels: dict[str, set[str]] = defaultdict(set)
    for name, pairs in said.series:
        whole = OF_A_HISTOGRAM.sub("", name)
        metric = whole if kinds.get(whole) == "histogram" else name
        labels[metric] |= {label for label, _ in pairs} - {"le"}
    assert labels.keys() == kinds.keys(), "a metric without a single series"
    return {name: (kind, labels[name]) for name, kind in kinds.items()}


async def test_the_programs_export_what_the_page_says_and_begin_at_zero(
    programs: Programs,
) -> None:
    node = await programs.app()
    _, worker = await a_worker(programs)
    _, batch = await a_batch(programs)
    await until(batch, "settlement_last_success_timestamp_seconds", 1)

    said = {"app": await shown(node), "worker": await shown(worker), "batch": await shown(batch)}

    assert {program: exported(page) for program, page in said.items()} == documented()
    for page in said.values():
        helps = re.findall(r"^# HELP \S+ (.*)$", page.text, re.MULTILINE)
        assert [text for text in helps if not text.endswith(".")] == []
        errors = {str(number) for number in CONFLICTS | UNAVAILABLE} | {"none"}
        assert page.values("db_errors_total").keys() == errors
        assert page.values("db_pool_connections").keys() == {"busy", "idle"}
        assert sum(page.values("db_pool_connections").values()) >= 1
    assert said["app"].values("requests_total") == dict.fromkeys(OUTCOMES, 0)
    assert said["app"].values("problems_total") == dict.fromkeys([*KINDS, NO_TYPE], 0)
    assert said["worker"].values("claims_total") == {"claimed": 0, "empty": 0, "error": 0}
    operations = ("write_back", "renew", "fail", "give_back")
    assert said["worker"].values("fence_rejections_total") == dict.fromkeys(operations, 0)
    assert said["worker"].values("worker_slots") == {"busy": 0, "idle": 4}
    for outcome in worker_outcomes():
        attempts = said["worker"].value("segments_total", outcome=outcome, handler="sleep")
        assert attempts == 0, outcome
    results = ("settled", "deferred", "gone", "refused")
    assert said["batch"].values("settlements_total") == dict.fromkeys(results, 0)
    assert said["batch"].values("metered_characters_total") == {"input": 0, "output": 0}
    # Of tables that are empty, but for the worker.
    assert said["batch"].value("workers") == 1
    assert said["batch"].value("fleet_slots") == 4


def worker_outcomes() -> Iterator[str]:
    """How an attempt can end."""
    yield from ("done", "failed", "retry", "rejected", "stopped", "given_up", "given_back")


async def test_a_request_moves_the_counters_of_all_three_programs_and_leaves_no_name(
    db: Database, programs: Programs
) -> None:
    node = await programs.app(APP_KEYLESS="off")
    _, worker = await a_worker(programs, "tests.told_handlers:told", WORKER_RETRY_SECONDS=0.1)
    program, batch = await a_batch(programs)
    key = await bearer(db, "xanthippe", "requests")
    body = {"segments": ["a xylophone", "fail xylophone", "reject xylophone", "retry xylophone"]}

    answer = (await node.put(MINE, json=body, headers=key)).json()
    after = await until(batch, "settlements_total", 1, result="settled")
    app, work = await shown(node), await shown(worker)

    assert answer["status"] == "partial"
    assert app.value("requests_total", outcome="partial") == 1
    assert sum(app.values("requests_total").values()) == 1
    assert app.value("request_duration_seconds_count") == 1
    # In time, which is no more than 0 late.
    assert app.value("request_deadline_overrun_seconds_bucket", le="0.0") == 1
    assert app.value("fanin_polls_total") > 0
    ended = {
        outcome: work.value("segments_total", outcome=outcome, handler="tests.told_handlers:told")
        for outcome in worker_outcomes()
    }
    assert ended == {"done": 2, "failed": 3, "rejected": 1, "retry": 1} | dict.fromkeys(
        ("stopped", "given_up", "given_back"), 0
    )
    handler = "tests.told_handlers:told"
    # Four segments for the first time, and seven attempts.
    assert work.value("segment_queue_wait_seconds_count", handler=handler) == 4
    assert work.value("segment_run_seconds_count", handler=handler) == 7
    claims = work.values("claims_total")
    assert claims["claimed"] > 0
    assert work.value("claim_duration_seconds_count") == claims["claimed"] + claims["empty"]
    (record,) = await meter_rows(db)
    assert after.value("metered_segments_total") == record["segments"] == 2
    assert after.value("metered_characters_total", direction="input") == len(
        "a xylophone" + "retry xylophone"
    )
    assert after.value("settlement_duration_seconds_count") == 1
    (settled,) = (line for line in lines(program.said()) if line["event"] == "request settled")
    assert settled["request_id"] == "mine"
    assert (settled["tenant"], settled["outcome"]) == ("xanthippe", "completed")
    assert settled["segments"] == 2
    for page in (app, work, after):
        for named in ("xanthippe", "xylophone", "XYLOPHONE", "mine", key["Authorization"][7:]):
            assert named not in page.text


# The app.


async def test_a_call_is_counted_by_how_it_ended(db: Database, programs: Programs) -> None:
    node = await programs.app()
    body = {"segments": ["one", "two"], "deadline_ms": 100}
    long = body | {"deadline_ms": 50_000}
    events = {"Accept": "text/event-stream"}

    # Late, and again a while later: a second answer, that waited for nothing.
    assert (await node.put(MINE, json=body)).json()["status"] == "partial"
    assert (await node.put(MINE, json=body)).json()["status"] == "partial"
    assert b"event: end" in (await node.post(REQUESTS, json=body, headers=events)).content
    assert (await node.post(REQUESTS, content=b"{")).status_code == 415
    assert (await node.patch(MINE)).status_code == 405
    early = {"Prefer": "respond-async"}
    assert (await node.post(REQUESTS, json=long, headers=early)).status_code == 202
    # Cancelled while it was open.
    cancelled = asyncio.create_task(node.put(f"{REQUESTS}/other", json=long))
    await arrived(db, "other")
    assert (await node.delete(f"{REQUESTS}/other")).status_code == 200
    assert (await cancelled).json()["status"] == "cancelled"
    # Gone before the answer, the first with its request, the second from events.
    leaving = b'{"segments": ["one"], "deadline_ms": 50000}'
    for accepts in ("application/json", "text/event-stream"):
        before = (await shown(node)).value("requests_total", outcome="client_gone")
        length = f"Content-Length: {len(leaving)}"
        sent = raw_request("POST", REQUESTS, leaving, length, f"Accept: {accepts}")
        async with raw_call(node, sent):
            await arrived(db)
        await until(node, "requests_total", before + 1, outcome="client_gone")
    said = await shown(node)

    assert said.values("requests_total") == {
        "partial": 3,
        "cancelled": 1,
        "running": 1,
        "rejected": 1,
        "client_gone": 2,
        "completed": 0,
        "abandoned": 0,
    }
    # The two partial ones that waited are late, by however little; the cancelled one is not.
    assert said.value("request_deadline_overrun_seconds_count") == 3
    assert said.value("request_deadline_overrun_seconds_bucket", le="0.0") == 1
    assert said.value("request_deadline_overrun_seconds_sum") > 0
    assert {"0.1", "1.0"} <= {
        dict(labels)["le"]
        for name, labels in said.series
        if name == "partway_request_deadline_overrun_seconds_bucket"
    }
    assert said.value("request_duration_seconds_count") == 5
    problems = {kind: value for kind, value in said.values("problems_total").items() if value}
    assert problems == {"unsupported-media-type": 1, NO_TYPE: 1}


def test_a_call_that_breaks_after_its_answer_began_is_counted_once() -> None:
    def calls() -> list[float | None]:
        name = "partway_requests_total"
        return [NODE.get_sample_value(name, {"outcome": outcome}) for outcome in OUTCOMES]

    before = dict(zip(OUTCOMES, calls(), strict=True))
    call = OpenCall()

    call.end("completed")
    call.end("rejected")

    after = dict(zip(OUTCOMES, calls(), strict=True))
    assert after == before | {"completed": (before["completed"] or 0) + 1}


async def test_a_node_shows_for_how_many_requests_it_waits(
    db: Database, programs: Programs
) -> None:
    node = await programs.app()
    body = {"segments": ["one"], "deadline_ms": 50_000}
    calls = [
        asyncio.create_task(node.put(f"{REQUESTS}/{name}", json=body))
        for name in ("mine", "mine", "other")
    ]

    await until(node, "requests_inflight", 2)
    for name in ("mine", "other"):
        await worked(db, (await arrived(db, name)).id, 1)
    await asyncio.gather(*calls)

    async def waits_for_none() -> bool:
        return (await shown(node)).value("requests_inflight") == 0

    await wait_until(waits_for_none, "nothing to be waited for")


def errors_met() -> dict[str, float]:
    """How often this process has met each error of its database."""
    (family,) = (family for family in REGISTRY.collect() if family.name == "partway_db_errors")
    return {sample.labels["errno"]: sample.value for sample in family.samples}


async def test_a_lost_connection_and_a_lock_wait_are_counted_by_their_numbers(
    db: Database, server: AnyServer, url: str
) -> None:
    request_id, _ = await submitted(db, 1)
    name = read_address(url).database
    before = errors_met()

    async with frozen(url, ("SELECT GET_LOCK(%s, 1)", (name,))) as holder:
        waiting = asyncio.create_task(db.read("SELECT GET_LOCK(%s, 30) AS got", (name,)))

        async def is_killed() -> bool:
            for session in server.execute("SHOW PROCESSLIST"):
                if str(session[7]).startswith(f"SELECT GET_LOCK('{name}', 30"):
                    server.execute(f"KILL {session[0]}")
                    return True
            return False

        await wait_until(is_killed, "the session that waits")
        lock = "SELECT 1 FROM requests WHERE id = %s FOR UPDATE"
        await holder.execute(lock, (request_id,))
        closing = asyncio.create_task(close(db, request_id, "completed"))

        async def has_waited() -> bool:
            return errors_met()["1205"] > before["1205"]

        await wait_until(has_waited, "a lock wait")

    assert await closing
    assert (await waiting)[0]["got"] == 1
    met = {number: count - before[number] for number, count in errors_met().items()}
    assert {number for number, count in met.items() if count} - {"1205"} <= {"2013", "1927", "none"}
    assert sum(met.values()) > met["1205"]


async def test_a_database_that_is_away_is_shown_until_it_is_back(db: Database) -> None:
    is_away = True

    async def ask(_: Exception | None) -> bool:
        if is_away:
            raise ConnectionResetError
        return True

    asking = asyncio.create_task(db.retry(ask))

    async def is_shown() -> bool:
        return REGISTRY.get_sample_value("partway_db_unavailable") == 1

    await wait_until(is_shown, "the database to be away")
    is_away = False

    assert await asking
    assert REGISTRY.get_sample_value("partway_db_unavailable") == 0


# The worker.

STEAL = "UPDATE segments SET lease_token = UNHEX(REPEAT('ab', 16)) WHERE request_id = %s"


async def until_all_run(db: Database, request_id: int) -> None:
    """Come back once every segment of a request is claimed."""

    async def all_run() -> bool:
        return set(await statuses(db, request_id)) == {"processing"}

    await wait_until(all_run, "every segment to run")


async def test_a_lost_lease_is_counted_by_the_write_that_found_out(
    db: Database, programs: Programs
) -> None:
    died, _ = await submitted(db, ["0 a"])
    await claimed(db, died)
    await expire(db, died)
    # There before the worker, so that all run before it renews for the first time.
    kept, _ = await submitted(db, ["40 a"], deadline_ms=50_000)
    stolen, _ = await submitted(db, ["1 a", "1 fail", "40 a"], deadline_ms=50_000)
    _, worker = await a_worker(programs, AFTER)
    await until_all_run(db, stolen)
    await until_all_run(db, kept)
    busy = await shown(worker)
    await db.write(STEAL, (stolen,))

    await until(worker, "fence_rejections_total", 1, op="write_back")
    await until(worker, "fence_rejections_total", 1, op="fail")
    await until(worker, "fence_rejections_total", 1, op="renew")
    said = await until(worker, "segments_total", 1, outcome="stopped", handler=AFTER)

    assert busy.value("worker_slots", state="busy") >= 3
    assert said.values("fence_rejections_total") == {
        "write_back": 1,
        "fail": 1,
        "renew": 1,
        "give_back": 0,
    }
    assert said.value("lease_renewals_total") >= 1
    # The one that another had held is the second attempt, and waited for no first claim.
    assert said.value("lease_expirations_total") == 1
    assert said.value("segment_queue_wait_seconds_count", handler=AFTER) == 4
    assert await statuses(db, died) == ["done"]


def worker_value(name: str, **labels: str) -> float:
    """A figure of this process, as far as it is a worker."""
    return partway.worker.metrics.REGISTRY.get_sample_value(f"partway_{name}", labels) or 0


async def test_what_is_given_back_and_what_can_no_longer_be_is_counted(db: Database) -> None:
    request_id, _ = await submitted(db, ["for ever", "for ever"])
    compute = Compute(LATER, 2, 60, 1000)
    await compute.start()
    try:
        slots = Slots(db, compute, WorkerSettings(handler=LATER, concurrency=2))
        assert await slots.step()
        await db.write(STEAL + " AND index_no = 1", (request_id,))
        of_handler = {"handler": LATER, "outcome": "given_back"}
        before = worker_value("segments_total", **of_handler)
        lost = worker_value("fence_rejections_total", op="give_back")

        await slots.drain(0)
    finally:
        await compute.close()

    assert await statuses(db, request_id) == ["pending", "processing"]
    assert worker_value("segments_total", **of_handler) == before + 1
    assert worker_value("fence_rejections_total", op="give_back") == lost + 1


# The batch.


def batch_value(name: str, **labels: str) -> float:
    """A figure of this process, as far as it is a batch."""
    return partway.batch.metrics.REGISTRY.get_sample_value(f"partway_{name}", labels) or 0


def billed() -> list[float]:
    """What was counted as billed by this process."""
    return [
        batch_value("metered_segments_total"),
        batch_value("metered_characters_total", direction="input"),
        batch_value("metered_characters_total", direction="output"),
    ]


async def test_what_is_counted_as_billed_is_what_the_meter_holds(db: Database) -> None:
    before, settled = billed(), batch_value("settlements_total", result="settled")
    endings: tuple[Any, ...] = ("completed", "cancelled", "abandoned")
    for how in endings:
        request_id, _ = await submitted(db, ["a", "bb", "ccc"])
        await written(db, *await claimed(db, request_id, 2))
        assert await close(db, request_id, how)
        assert await settle(db, request_id, 0) == "settled"

    rows = [row for row in await meter_rows(db) if row["billed"]]
    columns = ("segments", "input_characters", "output_characters")
    assert len(rows) == 2
    assert [now - then for now, then in zip(billed(), before, strict=True)] == [
        sum(row[column] for row in rows) for column in columns
    ]
    assert batch_value("settlements_total", result="settled") == settled + 3


async def test_what_the_batch_puts_off_or_abandons_is_counted(db: Database, url: str) -> None:
    held, _ = await submitted(db, 2)
    assert await close(db, held, "completed")
    dead, _ = await submitted(db, 1)
    await pass_time(db, dead, 60)
    settings = BatchSettings.model_construct(retention_seconds=0, grace_seconds=0)
    looking = Batch(db, settings, asyncio.Event())
    abandoned = batch_value("abandoned_total")
    deferred = batch_value("settlements_total", result="deferred")

    async with frozen(url, ("SELECT 1 FROM segments WHERE request_id = %s FOR UPDATE", (held,))):
        await looking.step()
        blocked = batch_value("settlement_blocked_requests")
        assert batch_value("settlements_total", result="deferred") == deferred + 1
    await looking.step()

    assert batch_value("abandoned_total") == abandoned + 1
    assert (blocked, batch_value("settlement_blocked_requests")) == (1, 0)
    assert batch_value("settlement_last_success_timestamp_seconds") > 0


async def test_the_gauges_show_what_is_in_the_tables(db: Database) -> None:
    request_id, _ = await submitted(db, 6)
    await worked(db, request_id, 1)
    await claimed(db, request_id, 2)
    await expire(db, request_id)
    await db.write(
        "UPDATE segments SET lease_until = NOW(6) + INTERVAL 1 HOUR"
        " WHERE request_id = %s AND index_no = 2",
        (request_id,),
    )
    await db.write("UPDATE requests SET created_at = created_at - INTERVAL 1 HOUR")
    # Due, so that nobody claims from it any more; and one that is over and still kept.
    due, _ = await submitted(db, 4)
    await pass_time(db, due, 100)
    kept, _ = await submitted(db, 2)
    assert await close(db, kept, "completed")
    endings: tuple[Any, ...] = ("completed", "cancelled", "abandoned")
    for number, how in enumerate(endings):
        final, _ = await submitted(db, 2)
        assert await close(db, final, how)
        await pass_time(db, final, 1000 * (number + 1))
    for name, age in (("a", 0), ("b", 0), ("dead", 3600)):
        await db.write(
            "INSERT INTO workers (name, slots, seen_at)"
            " VALUES (%s, 3, NOW(6) - INTERVAL %s SECOND)",
            (name, age),
        )

    await gauges.read_gauges(db, retention_seconds=60)

    assert batch_value("requests_active") == 2
    states = ("pending", "processing", "lease_expired")
    assert [batch_value("segments", state=state) for state in states] == [3, 1, 1]
    assert 3600 <= batch_value("oldest_pending_age_seconds") < 3600 + WAIT_SECONDS
    assert batch_value("settlement_backlog_requests") == 3
    assert 2940 <= batch_value("settlement_lag_seconds") < 2940 + WAIT_SECONDS
    assert (batch_value("workers"), batch_value("fleet_slots")) == (2, 6)

    for table in ("segments", "requests", "workers"):
        await db.write(f"DELETE FROM {table}")
    await gauges.read_gauges(db, retention_seconds=60)

    zero = ("requests_active", "oldest_pending_age_seconds", "settlement_backlog_requests",
            "settlement_lag_seconds", "workers", "fleet_slots")  # fmt: skip
    assert [name for name in zero if batch_value(name) != 0] == []
    assert [batch_value("segments", state=state) for state in states] == [0, 0, 0]


def test_the_gauges_read_as_many_requests_as_the_list_of_a_worker_has() -> None:
    assert gauges.REQUESTS_READ == choice.LIST_LENGTH


async def test_a_look_that_fails_does_not_keep_the_batch_from_its_bill(
    db: Database, programs: Programs
) -> None:
    request_id, _ = await submitted(db, 1)
    assert await close(db, request_id, "completed")
    await db.write("DROP TABLE workers")

    program, batch = await a_batch(programs)
    await program.says("gauges not read: 1146")

    await until(batch, "settlements_total", 1, result="settled")


# The port of worker and batch.


def asked(port: int, path: str) -> int:
    """The status of an answer."""
    return httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False, timeout=30).status_code


async def test_a_program_whose_loop_is_stuck_is_not_live() -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as elsewhere:
        async with serve_metrics(MetricsSettings(port=port), partway.worker.metrics.REGISTRY):
            live = await asyncio.to_thread(asked, port, "/livez")
            # Waited for here, so that nothing else runs in this loop.
            stuck = elsewhere.submit(asked, port, "/livez").result()
            counted_all_the_same = elsewhere.submit(asked, port, "/metrics").result()
            again = await asyncio.to_thread(asked, port, "/livez")
            nowhere = await asyncio.to_thread(asked, port, "/")
        with pytest.raises(httpx.ConnectError):
            asked(port, "/livez")

    assert (live, stuck, again) == (200, 503, 200)
    assert (counted_all_the_same, nowhere) == (200, 404)


async def test_a_program_that_serves_metrics_ends_when_it_is_told(
    db: Database, programs: Programs
) -> None:
    for program, address in (await a_worker(programs), await a_batch(programs)):
        assert (await asyncio.to_thread(asked, int(address.rpartition(":")[2]), "/livez")) == 200

        program.send(signal.SIGTERM)

        assert await program.ended() == 0


def test_a_port_in_use_is_refused_in_one_line(url: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = endings(url, (("worker", "--handler", "sleep"), ("batch",)), METRICS_PORT=port)

    for program, (status, out, said) in zip(("worker", "batch"), ended, strict=True):
        assert (status, out) == (1, "")
        place = f"127.0.0.1:{port}"
        assert said == f"{program}: cannot serve metrics on {place}: Address already in use\n"
