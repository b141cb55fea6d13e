"""`partway migrate`, and how every command starts its log and its event loop."""

from collections.abc import Coroutine
from typing import Any, TypeVar

import click
import uvloop

from partway.command import say
from partway.store import start
from partway.store.database import Unavailable
from partway.store.log import start_log
from partway.store.settings import DatabaseSettings, LogSettings, read_settings
from partway.store.start import StartupError

Result = TypeVar("Result")


def start_program(program: str) -> DatabaseSettings:
    """Start the log of a program, and return its database settings.

    Exits with status 2, and one line for each wrong setting.
    """
    start_log(program, read_settings(LogSettings, program).log_format)
    return read_settings(DatabaseSettings, program)


def run_program(
    program: str, main: Coroutine[Any, Any, Result], own_error: type[Exception] = StartupError
) -> Result:
    """Run a program and return its result.

    An error of the database, or `own_error`, ends the process with one line and status 1.
    """
    try:
        return uvloop.run(main)
    except (StartupError, Unavailable, own_error) as error:
        say(program, str(error))
        raise SystemExit(1) from None


@click.command()
@click.option(
    "--check", is_flag=True, help="Change nothing; exit status 1 when a migration is pending."
)
def migrate(check: bool) -> int:
    """Bring the tables to the version of this program.

    Prints the name of each migration that it applies, or, with --check, of each that is pending.
    The first program that starts migrates too. The database: PARTWAY_DATABASE_URL.
    """
    database = start_program("migrate")
    names = run_program("migrate", (start.pending if check else start.migrate)(database))
    for name in names:
        print(name)
    if not names:
        say("migrate", "the tables are up to date")
    return 1 if check and names else 0
