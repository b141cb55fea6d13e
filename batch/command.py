"""`partway batch` closes and settles; `partway usage`, `status` and `audit` report."""

import json
from collections.abc import Awaitable, Callable
from datetime import datetime

import click

from partway.batch.audit import audit as find_breaches
from partway.batch.report import status_rows
from partway.batch.report import usage as read_usage
from partway.batch.run import run, run_once
from partway.batch.settings import BatchSettings
from partway.command import say, settings_options
from partway.store.command import run_program, start_program
from partway.store.database import Database, Row
from partway.store.exposition import MetricsSettings
from partway.store.settings import DatabaseSettings, read_settings
from partway.store.start import open_database
from partway.store.times import point_in_time


@click.command(epilog="The database: PARTWAY_DATABASE_URL and PARTWAY_POOL_SIZE.")
@click.option("--once", is_flag=True, help="Exit when nothing more is ready.")
@settings_options(BatchSettings)
def batch(once: bool, **flags: str | None) -> None:
    """Close overdue requests and settle closed ones, until stopped.

    `partway usage`, `status` and `audit` show what was metered, what waits, and whether rows and
    ledger keep the laws.
    """
    database = start_program("batch")
    settings = read_settings(BatchSettings, "batch", flags)
    metrics = read_settings(MetricsSettings, "batch")
    run_program("batch", run_once(database, settings) if once else run(database, settings, metrics))


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")


def time(text: str) -> datetime:
    """Parse the value of an option as a time, in UTC."""
    try:
        return point_in_time(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time such as 2026-12-01 or 2026-12-01T09:30+01:00"
        ) from None


@click.command()
@click.option("--from", "since", type=time, metavar="TIME", help="Metered at this time or later.")
@click.option("--to", "until", type=time, metavar="TIME", help="Metered before this time.")
@as_json
def usage(since: datetime | None, until: datetime | None, as_json: bool) -> None:
    """Show what was metered, by tenant and final status.

    TIME is a date or a time (ISO 8601), in UTC unless it has a zone. The database:
    PARTWAY_DATABASE_URL.
    """
    since, until = since or datetime(1970, 1, 1), until or datetime(9999, 1, 1)
    if since > until:
        # If the two are swapped by mistake, an empty result would look like a month without usage.
        raise click.UsageError(f"--from is later than --to: {since}, {until} (UTC)")
    database = start_program("usage")
    if not report("usage", database, lambda db: read_usage(db, since, until), as_json):
        say("usage", "nothing was metered")


@click.command()
@as_json
def status(as_json: bool) -> None:
    """Show what waits: requests by status, and the segments of the active ones.

    The database: PARTWAY_DATABASE_URL.
    """
    if not report("status", start_program("status"), status_rows, as_json):
        say("status", "nothing waits")


@click.command()
@as_json
def audit(as_json: bool) -> int:
    """Check that rows and ledger keep the laws; exit status 1 when a law is broken.

    The settings of the batch decide what is overdue. The database: PARTWAY_DATABASE_URL.
    """
    database = start_program("audit")
    settings = read_settings(BatchSettings, "audit")
    times = settings.grace_seconds, settings.retention_seconds
    breaches = report("audit", database, lambda db: find_breaches(db, *times), as_json)
    say("audit", f"{breaches or 'no'} breaches of the laws")
    return 1 if breaches else 0


def report(
    program: str,
    database: DatabaseSettings,
    read: Callable[[Database], Awaitable[list[Row]]],
    as_json: bool,
) -> int:
    """Read and print the rows of a report; returns how many there are."""

    async def read_rows() -> list[Row]:
        async with open_database(database) as db:
            return await read(db)

    rows = run_program(program, read_rows())
    if as_json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False, default=str))
    elif rows:
        print_table(rows)
    return len(rows)


def print_table(rows: list[Row]) -> None:
    """Print rows with the same keys in columns."""
    lines = [list(rows[0]), *([str("" if v is None else v) for v in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )
