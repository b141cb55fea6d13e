"""The command `partway`: each program brings its own commands, which are loaded when called."""

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    # It comes with the server's packages, which a caller does not have.
    from pydantic_settings import BaseSettings

# Where each command is, and what `partway --help` says of it without loading it.
COMMANDS = {
    "send": ("partway.client.command", "Send a document, wait, write the answer."),
    "app": ("partway.app.command", "Run a node, which answers callers."),
    "worker": ("partway.worker.command", "Run a worker, which computes segments."),
    "batch": ("partway.batch.command", "Run the batch, which settles closed requests."),
    "usage": ("partway.batch.command", "Show what was metered."),
    "status": ("partway.batch.command", "Show what waits."),
    "audit": ("partway.batch.command", "Check that rows and ledger obey the laws."),
    "keys": ("partway.app.command", "Create, list and revoke the keys of callers."),
    "migrate": ("partway.store.command", "Bring the tables to this version."),
    "openapi": ("partway.app.command", "Print the OpenAPI document of a node."),
}


class Commands(click.Group):
    """The commands, of which only the one that is called is loaded."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name; None when there is none."""
        if cmd_name not in COMMANDS:
            return None
        try:
            found = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing == "partway":
                raise
            say(
                f"partway {cmd_name}",
                "this needs the server's packages: pip install 'partway[server]' "
                f"(there is no {missing})",
            )
            ctx.exit(1)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, loading none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and write all that it printed; what it returned."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            # The reader has read enough. Python would try again at its end, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)


@click.group(
    cls=Commands,
    help="Send a document and a deadline; get back what is done by then; pay for exactly that.",
    epilog="Each command has --help. Exit status: 0 done, 1 refused or failed, 2 wrongly called.",
)
@click.version_option(package_name="partway", message="%(package)s %(version)s")
def partway() -> None:
    """All of them."""


def run(words: Sequence[str]) -> int:
    """The exit status of the command that the words name."""
    try:
        status = partway.main(words, prog_name="partway", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        # Click does not say where an option lacks its value.
        context = error.ctx if isinstance(error, click.UsageError) else None
        path = context.command_path if context else " ".join(words[:1])
        # It puts a list of choices on lines of its own.
        say(speaker(path), " ".join(error.format_message().split()))
        return error.exit_code
    return status if isinstance(status, int) else 0


def speaker(path: str) -> str:
    """Who says what is wrong in the command of this path: `keys create` for `partway keys create`.

    It is `partway` for what is no program: the command itself, and its client.
    """
    name = path.removeprefix("partway").strip()
    return "partway" if name in ("", "send") else name


def say(who: str, words: str) -> None:
    """One line on standard error; nothing comes back."""
    # What a handler or a server said may hold line ends, or move the cursor of a terminal.
    line = "".join(letter if letter.isprintable() else " " for letter in words)
    print(f"{who}: {line}", file=sys.stderr)


Function = TypeVar("Function", bound=Callable[..., Any])


def settings_options(kind: "type[BaseSettings]") -> Callable[[Function], Function]:
    """A decorator that gives a command a flag for each setting; the command checks them.

    Click hands them on as they were written: a setting is checked in one way, wherever it is from.
    """

    def decorate(function: Function) -> Function:
        prefix = kind.model_config.get("env_prefix", "")
        # The last decorator is the first in the help.
        for name, field in reversed(kind.model_fields.items()):
            by_default = "" if field.is_required() else default_of(field.default)
            function = click.option(
                f"--{name.replace('_', '-')}",
                name,
                metavar="VALUE",
                help=f"{field.description} ({prefix}{name.upper()}{by_default})",
            )(function)
        return function

    return decorate


def default_of(value: object) -> str:
    """What help says of a default; "" where it says more than a value could."""
    if isinstance(value, bool):
        value = "on" if value else "off"
    return f"; default {value}" if isinstance(value, int | float | str) and value != "" else ""


def name_value(text: str) -> tuple[str, Any]:
    """The name and the value of NAME=VALUE; a value that is no JSON is the text it looks like."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def seconds(text: str | float) -> float:
    """A number of seconds that a clock can count: from a millisecond to a day."""
    try:
        number = float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a number of seconds") from None
    if not 0.001 <= number <= 86_400:
        raise click.BadParameter("must be from 0.001 to 86400")
    return number
