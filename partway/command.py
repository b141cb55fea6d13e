"""The command `partway`; the command of each program is imported only when it is called."""

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    # Part of the extra `server`, which is not installed with the client alone.
    from pydantic_settings import BaseSettings

# The module of each command, and its line in `partway --help`, which imports no module.
COMMANDS = {
    "send": ("partway.client.command", "Send a document, wait, write the answer."),
    "app": ("partway.app.command", "Run a node, which answers callers."),
    "worker": ("partway.worker.command", "Run a worker, which computes segments."),
    "batch": ("partway.batch.command", "Run the batch, which settles closed requests."),
    "usage": ("partway.batch.command", "Show what was metered."),
    "status": ("partway.batch.command", "Show what waits."),
    "audit": ("partway.batch.command", "Check that rows and ledger keep the laws."),
    "keys": ("partway.app.command", "Create, list and revoke the keys of callers."),
    "migrate": ("partway.store.command", "Bring the tables to this version."),
    "openapi": ("partway.app.command", "Print the OpenAPI document of a node."),
}


class Commands(click.Group):
    """A group that imports only the command that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name; None when there is none."""
        if cmd_name not in COMMANDS:
            return None
        try:
            command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing == "partway":
                raise
            say(
                f"partway {cmd_name}",
                "this command needs the server's packages: pip install 'partway[server]' "
                f"({missing} is missing)",
            )
            ctx.exit(1)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, flush its output, and return its result."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            # The reader closed the pipe. Otherwise Python would flush again at exit, and print an
            # error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)


@click.group(
    cls=Commands,
    help="Send a document and a deadline; get back what is done by then; pay for exactly that.",
    epilog="Each command has --help. Exit status: 0 done, 1 refused or failed, 2 wrong usage.",
)
@click.version_option(package_name="partway", message="%(package)s %(version)s")
def partway() -> None:
    """The group of all commands."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit status."""
    try:
        status = partway.main(arguments, prog_name="partway", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        # Some errors of Click, such as an option without its value, do not name the command.
        context = error.ctx if isinstance(error, click.UsageError) else None
        path = context.command_path if context else " ".join(arguments[:1])
        # Click writes a list of choices on several lines; here the message is one line.
        say(program_name(path), " ".join(error.format_message().split()))
        return error.exit_code
    return status if isinstance(status, int) else 0


def program_name(path: str) -> str:
    """The name before an error message: `keys create` for `partway keys create`.

    It is `partway` for the command itself and for its client.
    """
    name = path.removeprefix("partway").strip()
    return "partway" if name in ("", "send") else name


def say(program: str, message: str) -> None:
    """Print one line on standard error."""
    # A message of a handler or a server can contain line ends, or move the cursor of a terminal.
    line = "".join(letter if letter.isprintable() else " " for letter in message)
    print(f"{program}: {line}", file=sys.stderr)


Function = TypeVar("Function", bound=Callable[..., Any])


def settings_options(kind: "type[BaseSettings]") -> Callable[[Function], Function]:
    """A decorator that gives a command a flag for each setting.

    The values are passed as strings: read_settings checks a setting in one way, from whatever
    source it comes.
    """

    def decorate(function: Function) -> Function:
        prefix = kind.model_config.get("env_prefix", "")
        # In reverse, since the last decorator is the first in the help.
        for name, field in reversed(kind.model_fields.items()):
            default = "" if field.is_required() else describe_default(field.default)
            function = click.option(
                f"--{name.replace('_', '-')}",
                name,
                metavar="VALUE",
                help=f"{field.description} ({prefix}{name.upper()}{default})",
            )(function)
        return function

    return decorate


def describe_default(value: object) -> str:
    """The text of a default in the help; "" when the default is empty or not a plain value."""
    if isinstance(value, bool):
        value = "on" if value else "off"
    return f"; default {value}" if isinstance(value, int | float | str) and value != "" else ""


def name_value(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE; a value that is not JSON is taken as text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def seconds(text: str | float) -> float:
    """Parse a number of seconds, from a millisecond to a day."""
    try:
        number = float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a number of seconds") from None
    if not 0.001 <= number <= 86_400:
        raise click.BadParameter("must be from 0.001 to 86400")
    return number
