"""`partway app` runs a node, `keys` makes and ends keys, `openapi` prints what a node offers."""

import json
import re
from collections.abc import Callable
from typing import cast

import click

from partway.app.api.access import SCOPES
from partway.app.api.keys import (
    COLUMNS,
    SHOWN_HEX_DIGITS,
    KeyNotFound,
    create_key,
    list_keys,
    prefix_of,
    revoke_key,
)
from partway.app.application import build
from partway.app.requests.service import RequestService
from partway.app.requests.submission import PUBLIC_ID
from partway.app.serve import serve
from partway.app.settings import AppSettings
from partway.command import say, settings_options
from partway.store.command import run_program, start_program
from partway.store.database import Database, Row
from partway.store.settings import read_settings
from partway.store.start import open_database


@click.command(epilog="The database: PARTWAY_DATABASE_URL and PARTWAY_POOL_SIZE.")
@settings_options(AppSettings)
def app(**flags: str | None) -> None:
    """Answer callers until told to stop.

    `partway keys` creates, lists and revokes their keys.
    """
    database = start_program("app")
    run_program("app", serve(database, read_settings(AppSettings, "app", flags)))


@click.command(epilog="It needs no database.")
@settings_options(AppSettings)
def openapi(**flags: str | None) -> None:
    """Print the OpenAPI document of a node with these settings."""
    settings = read_settings(AppSettings, "openapi", flags)
    # Nobody calls it, so it touches no database.
    contract = build(RequestService(cast(Database, None), settings)).openapi()
    print(json.dumps(contract, indent=2, ensure_ascii=False))


def checked(
    is_right: Callable[[str], object], wanted: str
) -> Callable[[click.Context, click.Parameter, str], str]:
    """A callback that refuses a value which is not right, and says what is wanted."""

    def check(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
        if not is_right(value):
            raise click.BadParameter(wanted)
        return value

    return check


@click.group(epilog="The database: PARTWAY_DATABASE_URL.")
def keys() -> None:
    """Create, list and revoke the keys by which callers are known."""


@keys.command()
@click.option(
    "--tenant",
    required=True,
    help="Whose key it is.",
    callback=checked(
        PUBLIC_ID.fullmatch,
        "a tenant is a letter or digit, then at most 63 of letters, digits and . _ ~ -",
    ),
)
@click.option(
    "--scope",
    "wanted",
    multiple=True,
    default=["requests"],
    show_default=True,
    type=click.Choice(SCOPES),
    help="What it is for; repeatable.",
)
@click.option(
    "--name",
    default="",
    help="Where it is used.",
    callback=checked(
        lambda name: len(name) <= 100 and name.isprintable(),
        "a name is at most 100 characters that can be printed",
    ),
)
def create(tenant: str, wanted: tuple[str, ...], name: str) -> None:
    """Create a key and print it, this once."""
    scopes = [scope for scope in SCOPES if scope in wanted]

    async def created() -> str:
        async with open_database(database) as db:
            return await create_key(db, tenant, scopes, name)

    database = start_program("keys create")
    key = run_program("keys create", created())
    print(key)
    say(
        "keys create",
        f"a key of {tenant} for {' and '.join(scopes)}; it is shown this once, "
        f"and `partway keys revoke {prefix_of(key)}` ends it",
    )


@keys.command("list")
def list_() -> None:
    """Print what is known of each key, a line each, between tabs."""

    async def listed() -> list[Row]:
        async with open_database(database) as db:
            return await list_keys(db)

    database = start_program("keys list")
    rows = run_program("keys list", listed())
    print(*COLUMNS, sep="\t")
    for row in rows:
        print(*("" if row[name] is None else row[name] for name in COLUMNS), sep="\t")


@keys.command()
@click.argument(
    "prefix",
    callback=checked(
        re.compile("[0-9a-f]{4,64}").fullmatch,
        "the digits that `partway keys list` shows, four of them at least",
    ),
)
def revoke(prefix: str) -> None:
    """End a key at once; PREFIX is what `partway keys list` shows of it."""

    async def revoked() -> Row:
        async with open_database(database) as db:
            return await revoke_key(db, prefix)

    database = start_program("keys revoke")
    found = run_program("keys revoke", revoked(), KeyNotFound)
    named = f" ({found['name']})" if found["name"] else ""
    digits = found["digits"][:SHOWN_HEX_DIGITS]
    say("keys revoke", f"the key {digits} of {found['tenant']}{named} is revoked")
