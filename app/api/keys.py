"""`python -m app keys`: whoever may use the database makes keys for others, and takes them back."""

import argparse
import asyncio
import re
import secrets
import sys
from collections.abc import Sequence

from partway.app.api.access import SCOPES, digest
from partway.app.requests.submission import PUBLIC_ID
from partway.store.database import Database, Row, Unavailable
from partway.store.settings import DatabaseSettings, Flags, read_settings
from partway.store.start import StartupError, open_database

# By which a key that leaked is found, in a text or by a program that looks for such.
MARK = "pw_"

# Enough to tell a thousand million keys apart, and short enough to be typed.
SHOWN_HEX_DIGITS = 12

CREATE_KEY = """
INSERT INTO access_keys (hash, tenant, scopes, name, created_at)
VALUES (%s, %s, %s, %s, NOW(6))
ON DUPLICATE KEY UPDATE tenant = tenant
"""


async def create_key(db: Database, tenant: str, scopes: Sequence[str], name: str) -> str:
    """A new key of this tenant's, which nobody can read again anywhere."""
    key = MARK + secrets.token_urlsafe(32)
    await db.write(CREATE_KEY, (digest(key), tenant, ",".join(scopes), name))
    return key


LIST_KEYS = """
SELECT LEFT(LOWER(HEX(hash)), %s) AS `key`, tenant, scopes, name, created_at, revoked_at
FROM   access_keys
ORDER  BY tenant, created_at
"""


COLUMNS = ("key", "tenant", "scopes", "name", "created_at", "revoked_at")


async def list_keys(db: Database) -> list[Row]:
    """What is known of every key; the key itself is not."""
    return await db.read(LIST_KEYS, (SHOWN_HEX_DIGITS,))


FIND_BY_PREFIX = """
SELECT hash, LOWER(HEX(hash)) AS digits, tenant, name
FROM   access_keys
WHERE  LEFT(LOWER(HEX(hash)), %s) = %s
ORDER  BY hash
LIMIT  2
"""

REVOKE_KEY = """
UPDATE access_keys
SET    revoked_at = COALESCE(revoked_at, NOW(6))
WHERE  hash = %s
"""


async def revoke_key(db: Database, prefix: str) -> Row:
    """The key that begins like this, which is worth nothing from now on; Refusal when not one."""
    found = await db.read(FIND_BY_PREFIX, (len(prefix), prefix))
    if not found:
        raise StartupError(f"no key begins with {prefix}")
    if len(found) > 1:
        raise StartupError(f"more than one key begins with {prefix}: write more of it")
    await db.write(REVOKE_KEY, (found[0]["hash"],))
    return found[0]


def tenant_name(text: str) -> str:
    """The text, where it can be a tenant's name."""
    if PUBLIC_ID.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            "a tenant is a letter or digit, then at most 63 of letters, digits and . _ ~ -"
        )
    return text


def key_name(text: str) -> str:
    """The text, where it fits into a line of a list."""
    if len(text) > 100 or not text.isprintable():
        raise argparse.ArgumentTypeError("a name is at most 100 characters that can be printed")
    return text


def prefix_of_a_hash(text: str) -> str:
    """The text, where `list` could show it."""
    if re.fullmatch("[0-9a-f]{4,64}", text) is None:
        raise argparse.ArgumentTypeError("the digits that `list` shows, four of them at least")
    return text


async def create(database: DatabaseSettings, given: argparse.Namespace) -> None:
    """Print a new key: alone on standard output, what it is on standard error."""
    scopes = [scope for scope in SCOPES if scope in (given.scope or ["requests"])]
    async with open_database(database) as db:
        key = await create_key(db, given.tenant, scopes, given.name)
    print(key)
    print(
        f"app: a key of {given.tenant} for {' and '.join(scopes)}; it is shown this once",
        file=sys.stderr,
    )


async def show(database: DatabaseSettings, _: argparse.Namespace) -> None:
    """Print what is known of every key, a line each, between tabs."""
    async with open_database(database) as db:
        rows = await list_keys(db)
    print(*COLUMNS, sep="\t")
    for row in rows:
        print(*("" if row[name] is None else row[name] for name in COLUMNS), sep="\t")


async def revoke(database: DatabaseSettings, given: argparse.Namespace) -> None:
    """Revoke a key, and say whose it was."""
    async with open_database(database) as db:
        found = await revoke_key(db, given.prefix)
    named = f" ({found['name']})" if found["name"] else ""
    digits = found["digits"][:SHOWN_HEX_DIGITS]
    print(f"app: the key {digits} of {found['tenant']}{named} is revoked", file=sys.stderr)


def main(flags: Sequence[str]) -> int:
    """The exit status: 0, 1 (refused, or no such key), 2 (a flag or a setting is wrong)."""
    parser = Flags(prog="python -m app keys", allow_abbrev=False)
    words = parser.add_subparsers(required=True, metavar="create|list|revoke")
    creating = words.add_parser("create", help="make a key and show it once", allow_abbrev=False)
    creating.add_argument("--tenant", type=tenant_name, required=True, help="whose key it is")
    creating.add_argument(
        "--scope", action="append", choices=SCOPES, help="what it is for (requests); may be both"
    )
    creating.add_argument("--name", type=key_name, default="", help="where it is used")
    creating.set_defaults(run=create)
    listing = words.add_parser("list", help="show what is known of each key", allow_abbrev=False)
    listing.set_defaults(run=show)
    revoking = words.add_parser("revoke", help="end a key at once", allow_abbrev=False)
    revoking.add_argument("prefix", type=prefix_of_a_hash, help="the digits that list shows")
    revoking.set_defaults(run=revoke)
    given = parser.parse_args(flags)
    database = read_settings(DatabaseSettings, "app")
    try:
        asyncio.run(given.run(database, given))
    except (StartupError, Unavailable) as refusal:
        print(f"app: {refusal}", file=sys.stderr)
        return 1
    return 0
