"""Operators create the keys of tenants, list them and revoke them, all directly in the database."""

import secrets
from collections.abc import Sequence

from partway.app.api.access import digest
from partway.store.database import Database, Row

# Every key begins with this, so that a scanner for secrets can find one that leaked.
MARK = "pw_"

# Enough to distinguish a thousand million keys, and short enough to type.
SHOWN_HEX_DIGITS = 12


class KeyNotFound(Exception):
    """Raised when no key, or more than one key, begins with the digits; the message says which."""


CREATE_KEY = """
INSERT INTO access_keys (hash, tenant, scopes, name, created_at)
VALUES (%s, %s, %s, %s, NOW(6))
ON DUPLICATE KEY UPDATE tenant = tenant
"""


async def create_key(db: Database, tenant: str, scopes: Sequence[str], name: str) -> str:
    """A new key of this tenant. Only its hash is stored, so it cannot be read again."""
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
    """What is stored of every key, which is not the key itself."""
    return await db.read(LIST_KEYS, (SHOWN_HEX_DIGITS,))


def prefix_of(key: str) -> str:
    """The first digits of the key's hash, by which it is listed and revoked."""
    return digest(key).hex()[:SHOWN_HEX_DIGITS]


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
    """Revoke the key whose hash begins with these digits, and return its row.

    Raises KeyNotFound when there is not exactly one such key.
    """
    rows = await db.read(FIND_BY_PREFIX, (len(prefix), prefix))
    if not rows:
        raise KeyNotFound(f"no key begins with {prefix}")
    if len(rows) > 1:
        raise KeyNotFound(f"more than one key begins with {prefix}: give more digits")
    await db.write(REVOKE_KEY, (rows[0]["hash"],))
    return rows[0]
