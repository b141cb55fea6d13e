"""`partway worker` claims and computes segments; `partway worker try` tries a handler."""

import asyncio
import signal
import sys
import time
from typing import Any

import click

from partway.command import name_value, seconds, settings_options
from partway.store.command import run_program, start_program
from partway.store.exposition import MetricsSettings
from partway.store.settings import read_settings
from partway.worker.compute import Compute
from partway.worker.handler import HandlerError
from partway.worker.process import Ending, Work
from partway.worker.run import work
from partway.worker.settings import WorkerSettings

# In a trial, a person wants to see the result, however long it is.
MAX_OUTPUT_CHARACTERS = 10_000_000


@click.group(
    invoke_without_command=True,
    epilog="The database: PARTWAY_DATABASE_URL and PARTWAY_POOL_SIZE.",
)
@settings_options(WorkerSettings)
@click.pass_context
def worker(ctx: click.Context, /, **flags: str | None) -> None:
    """Claim segments, compute them and write the results back, until stopped.

    Your own handler is searched in the current folder, after the installed packages.
    """
    if ctx.invoked_subcommand is not None:
        return
    database = start_program("worker")
    settings = read_settings(WorkerSettings, "worker", flags)
    metrics = read_settings(MetricsSettings, "worker")
    run_program("worker", work(database, settings, metrics), HandlerError)


@worker.command("try")
@click.option("--handler", required=True, help="package.module:name, or a short name.")
@click.option("--text", help="The text; without it, standard input is read.")
@click.option(
    "--param",
    "params",
    type=name_value,
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter for the handler; repeatable.",
)
@click.option(
    "--seconds",
    "limit_seconds",
    type=seconds,
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="The time limit.",
)
def try_out(
    handler: str, text: str | None, params: tuple[tuple[str, Any], ...], limit_seconds: float
) -> int:
    """Compute one text without a database, and print the result.

    Exit status: 0 done, 1 not done, 130 ended by Ctrl-C.
    """
    if text is None:
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise click.UsageError(f"standard input is not UTF-8: {error}") from None
    # Ctrl-C must raise KeyboardInterrupt here, so that the handler is closed before the exit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        ending = asyncio.run(run_one(handler, text, dict(params), limit_seconds))
    except HandlerError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    message = f"{ending.kind} after {ending.run_seconds:.3f} s"
    if ending.after_seconds is not None:
        message = f"asks for another attempt in {ending.after_seconds:g} s"
    print(f"{message}: {ending.error}" if ending.error else message, file=sys.stderr)
    if ending.kind != "done":
        return 1
    print(ending.result)
    return 0


async def run_one(handler: str, text: str, params: dict[str, Any], limit_seconds: float) -> Ending:
    """Run one attempt in a child, as in production; HandlerError when the handler is unusable."""
    compute = Compute(handler, 1, limit_seconds, MAX_OUTPUT_CHARACTERS)
    try:
        await compute.start()
        # The time limit ends the attempt. There is no request, so the deadline is later.
        return await compute.run(Work(0, 0, 1, text, params, time.monotonic() + 2 * limit_seconds))
    finally:
        await compute.close()
