"""How a command starts its log and its loop, and `partway migrate`, which needs the store alone."""

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
    """Where the database of a program is, once its log is set up.

    Ends the process with status 2 and a line for each setting that is wrong.
    """
    start_log(program, read_settings(LogSettings, program).log_format)
    return read_settings(DatabaseSettings, program)


def run_program(
    program: str, working: Coroutine[Any, Any, Result], refusal: type[Exception] = StartupError
) -> Result:
    """What the program comes to; a refusal ends the process with one line and status 1.

    `refusal` is one of its own, besides those that concern the database.
    """
    try:
        return uvloop.run(working)
    except (StartupError, Unavailable, refusal) as error:
        say(program, str(error))
        raise SystemExit(1) from None


@click.command()
@click.option(
    "--check", is_flag=True, help="Change nothing; exit status 1 when a migration is pending."
)
def migrate(check: bool) -> int:
    """Bring the tables to the version of this Partway.

    Prints the name of each migration that it applies, or with --check of each that is pending. The
    first program that starts does the same. The database: PARTWAY_DATABASE_URL.
    """
    database = start_program("migrate")
    look = start.pending if check else start.migrate
    names = run_program("migrate", look(database))
    for name in names:
        print(name)
    if not names:
        say("migrate", "the tables are up to date")
    return 1 if check and names else 0
