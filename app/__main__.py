"""`python -m partway.app` serves a node, makes keys, or prints the OpenAPI document."""

import json
import sys
from collections.abc import Sequence
from typing import cast

import uvloop

from partway.app.api import keys
from partway.app.application import build
from partway.app.requests.service import RequestService
from partway.app.serve import serve
from partway.app.settings import AppSettings
from partway.store.database import Database
from partway.store.log import start_log
from partway.store.settings import DatabaseSettings, LogSettings, read_settings
from partway.store.start import StartupError

ABOUT = """Serves the door until it is told to stop. `python -m app keys` makes, lists and revokes
keys (it has --help); `python -m app openapi` prints the OpenAPI document of a node."""


def print_contract(flags: Sequence[str]) -> int:
    """Print the OpenAPI document of a node with these flags; the exit status."""
    settings = read_settings(AppSettings, "app", flags)
    # Nobody calls it, so it touches no database.
    contract = build(RequestService(cast(Database, None), settings)).openapi()
    print(json.dumps(contract, indent=2, ensure_ascii=False))
    return 0


def main() -> int:
    """The exit status of the program: 0, 1 (refused), or 2 (a setting is wrong)."""
    words = sys.argv[1:]
    if words[:1] == ["openapi"]:
        return print_contract(words[1:])
    start_log("app", read_settings(LogSettings, "app").log_format)
    if words[:1] == ["keys"]:
        return keys.main(words[1:])
    settings = read_settings(AppSettings, "app", words, ABOUT)
    database = read_settings(DatabaseSettings, "app")
    try:
        uvloop.run(serve(database, settings))
    except StartupError as refusal:
        print(f"app: {refusal}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
