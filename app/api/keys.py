"""People who have the database make keys for callers, list them, and revoke them."""

import secrets
from collections.abc import Sequence

from partway.app.api.access import digest
from partway.store.database import Database, Row

# By which a key that leaked is found, in a text or by a program that looks for such.
MARK = "pw_"

# Enough to tell a thousand million keys apart, and short enough to be typed.
SHOWN_HEX_DIGITS = 12


class KeyNotFound(Exception):
    """No key, or more than one, begins with the digits; the message says which."""


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


def prefix_of(key: str) -> str:
    """The digits by which a list shows a key, and by which it is revoked."""
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
    """The key that begins like this, worth nothing from now on; KeyNotFound when it is not one."""
    found = await db.read(FIND_BY_PREFIX, (len(prefix), prefix))
    if not found:
        raise KeyNotFound(f"no key begins with {prefix}")
    if len(found) > 1:
        raise KeyNotFound(f"more than one key begins with {prefix}: write more of it")
    await db.write(REVOKE_KEY, (found[0]["hash"],))
    return found[0]
