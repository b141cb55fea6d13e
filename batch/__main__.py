"""`python -m batch` closes what is overdue and settles; its other words report and exit."""

import argparse
import asyncio
import functools
import json
import logging
import random
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import uvloop
from pymysql.err import MySQLError

from partway.batch.audit import audit
from partway.batch.gauges import GAUGE_SECONDS, read_gauges
from partway.batch.metrics import ABANDONED, BLOCKED, LAST_SUCCESS, REGISTRY, SETTLEMENTS
from partway.batch.reaper import abandon, overdue
from partway.batch.report import status_rows, usage
from partway.batch.settings import BatchSettings
from partway.batch.settle import PAGE, settle, settleable
from partway.store.database import Database, Row, Unavailable, error_text
from partway.store.exposition import MetricsSettings, serve_metrics
from partway.store.log import start_log
from partway.store.loop import repeat, stop_on_signals, until_idle
from partway.store.settings import DatabaseSettings, Flags, LogSettings, read_settings
from partway.store.start import StartupError, open_database

log = logging.getLogger("partway.batch")

# No statement takes so long while the database is there, so beyond this it was away.
SILENT_SECONDS = 2.0

# Settlements that run at once, for each waits for the disk: one alone kept 1.8 times ahead of the
# fastest fleet on MySQL, where twice is asked for.
AT_ONCE = 4

WORDS = ("usage", "audit", "status")

ABOUT = """Closes what is overdue and settles what is ready, until it is told to stop.
--once does so until nothing more is ready, and exits. `python -m batch usage`, `audit` and `status`
report what was metered, whether rows and ledger agree, and what waits (each has --help)."""


class Batch:
    """One batch: where its next look begins, and what it has complained of, to do so once."""

    def __init__(self, db: Database, settings: BatchSettings, stop: asyncio.Event) -> None:
        self._db = db
        self._settings = settings
        self._stop = stop
        self._after = 0
        self._deferred = 0
        self._refused: set[int] = set()
        self._read_at = time.monotonic()
        self._gives_up_at = float("-inf")

    async def step(self) -> bool:
        """Close what is overdue, settle a page of what is ready; False when nothing more waits."""
        closed = settled = 0
        late = await overdue(self._db, self._settings.grace_seconds)
        self._note_read()
        for request_id in late if time.monotonic() >= self._gives_up_at else []:
            if await self._tried(request_id, abandon(self._db, request_id)):
                closed += 1
                ABANDONED.inc()
                log.warning("closed as abandoned", extra=await named(self._db, request_id))
        page = await settleable(self._db, self._settings.retention_seconds, self._after)
        # However many are deferred, those behind them come next.
        more = len(page) == PAGE
        self._after = page[-1] if more else 0
        # In no order, so that two batches seldom meet.
        ready = random.sample(page, len(page))
        for first in range(0, len(ready), AT_ONCE):
            if self._stop.is_set():
                break
            tries = (self._tried(id_, self._settled(id_)) for id_ in ready[first : first + AT_ONCE])
            settled += sum(await asyncio.gather(*tries))
            self._note_read()
        if closed or settled:
            log.info("%d closed as abandoned, %d settled", closed, settled)
        if not more:
            BLOCKED.set(self._deferred)
            self._deferred = 0
        LAST_SUCCESS.set_to_current_time()
        return bool(closed or settled or more)

    def _note_read(self) -> None:
        """After a silence of the database, give nothing up for another grace.

        Callers at whose deadline it was away were told to come back, and can do so only now.
        """
        now = time.monotonic()
        if now - self._read_at > self._settings.idle_seconds + SILENT_SECONDS:
            self._gives_up_at = now + self._settings.grace_seconds
        self._read_at = now

    async def _settled(self, request_id: int) -> bool:
        try:
            settling = await settle(self._db, request_id, self._settings.retention_seconds)
        except MySQLError:
            SETTLEMENTS["refused"].inc()
            raise
        self._deferred += settling == "deferred"
        return settling == "settled"

    async def _tried(self, request_id: int, doing: Awaitable[bool]) -> bool:
        try:
            return await doing
        except MySQLError as error:
            # Another record of the same id, or rows that the tables refuse. Nothing is deleted, and
            # one does not hold up the rest.
            if request_id not in self._refused:
                self._refused.add(request_id)
                log.error(
                    "request %d is left as it is: %s",
                    request_id,
                    error_text(error),
                    extra=await named(self._db, request_id),
                )
            return False


NAMED = """
SELECT public_id AS request_id, tenant
FROM   requests
WHERE  id = %s
"""


async def named(db: Database, request_id: int) -> Row:
    """A request as logs name it, read only when there is something to say of it."""
    found = await db.read(NAMED, (request_id,))
    return {"request_no": request_id, **(found[0] if found else {})}


async def run(
    database: DatabaseSettings, settings: BatchSettings, metrics: MetricsSettings
) -> None:
    """Settle until told to stop; nothing comes back."""
    stop = stop_on_signals()
    async with (
        serve_metrics(metrics, REGISTRY),
        open_database(database) as db,
        asyncio.TaskGroup() as loops,
    ):
        batch = Batch(db, settings, stop)
        log.info("settling, %g s after the close", settings.retention_seconds)
        loops.create_task(repeat(batch.step, lambda: settings.idle_seconds, stop))
        if metrics.port:
            looks = functools.partial(read_gauges, db, settings.retention_seconds)
            loops.create_task(
                repeat(looks, lambda: GAUGE_SECONDS, stop, first_seconds=GAUGE_SECONDS)
            )


async def run_once(database: DatabaseSettings, settings: BatchSettings) -> None:
    """Settle until nothing more is ready, or told to stop; nothing comes back."""
    stop = stop_on_signals()
    async with open_database(database) as db:
        await until_idle(Batch(db, settings, stop).step, stop)


async def report(
    database: DatabaseSettings, ask: Callable[[Database], Awaitable[list[Row]]], as_json: bool
) -> int:
    """Print what was asked; how many rows it has."""
    async with open_database(database) as db:
        rows = await ask(db)
    if as_json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False, default=str))
    elif rows:
        print_table(rows)
    return len(rows)


def print_table(rows: list[Row]) -> None:
    """Rows with the same members, in columns; nothing comes back."""
    lines = [list(rows[0]), *([str("" if v is None else v) for v in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )


def point_in_time(text: str) -> datetime:
    """A date or a time (ISO 8601), UTC where it does not say, as the database keeps it."""
    try:
        given = datetime.fromisoformat(text)
        return given.astimezone(UTC).replace(tzinfo=None) if given.tzinfo else given
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time such as 2026-12-01 or 2026-12-01T09:30+01:00"
        ) from None


def ask(word: str, flags: list[str]) -> int:
    """The exit status of `usage`, `audit` or `status`."""
    parser = Flags(prog=f"python -m batch {word}", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    if word == "usage":
        first, last = datetime(1970, 1, 1), datetime(9999, 1, 1)
        for flag, default, text in (
            ("--from", first, "metered then or later"),
            ("--to", last, "metered before then"),
        ):
            parser.add_argument(
                flag, dest=flag[2:], type=point_in_time, default=default, metavar="TIME", help=text
            )
    given = vars(parser.parse_args(flags))
    if word == "usage" and given["from"] > given["to"]:
        # Exchanged by mistake they would look like a month in which nothing is to be paid.
        parser.error(f"--from is later than --to: {given['from']}, {given['to']} (UTC)")
    settings = read_settings(BatchSettings, "batch")
    database = read_settings(DatabaseSettings, "batch")
    asks: dict[str, Callable[[Database], Awaitable[list[Row]]]] = {
        "usage": lambda db: usage(db, given["from"], given["to"]),
        "audit": lambda db: audit(db, settings.grace_seconds, settings.retention_seconds),
        "status": status_rows,
    }
    found = uvloop.run(report(database, asks[word], given["json"]))
    if word != "audit":
        if not found:
            print(f"batch: nothing to show for {word}", file=sys.stderr)
        return 0
    print(f"batch: {found or 'no'} breaches of the laws", file=sys.stderr)
    return 1 if found else 0


def main() -> int:
    """The exit status: 0, 1 (refused, or the audit found something), 2 (a setting is wrong)."""
    start_log("batch", read_settings(LogSettings, "batch").log_format)
    flags = sys.argv[1:]
    try:
        if flags and flags[0] in WORDS:
            return ask(flags[0], flags[1:])
        once = "--once" in flags
        flags = [flag for flag in flags if flag != "--once"]
        settings = read_settings(BatchSettings, "batch", flags, ABOUT)
        database = read_settings(DatabaseSettings, "batch")
        metrics = read_settings(MetricsSettings, "batch")
        uvloop.run(run_once(database, settings) if once else run(database, settings, metrics))
    except (StartupError, Unavailable) as refusal:
        print(f"batch: {refusal}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
