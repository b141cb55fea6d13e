"""Tenants share the service, so each call is authenticated, by a key or by a browser session."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from fastapi import Request as Call

from partway.app.problems import Problem
from partway.app.settings import AppSettings
from partway.store.database import Database

Scope = Literal["requests", "operator"]

SCOPES: tuple[Scope, ...] = ("requests", "operator")

# A browser sends this instead of a key. No script can read it, and no other site can send it.
COOKIE = "partway_session"

# A working day. After it, a person logs in again.
SESSION_HOURS = 12


@dataclass(frozen=True)
class Caller:
    """The tenant that calls, and the scopes of its key."""

    tenant: str
    scopes: frozenset[str]


# Every caller of a node that requires no keys.
ANYBODY = Caller("default", frozenset(SCOPES))


def digest(secret: str) -> bytes:
    """The hash that is stored of a key or a session; it cannot be sent in place of the secret.

    The secret is 32 random bytes and cannot be guessed, so the hash needs no salt and need not be
    slow. A search by the hash reveals nothing about similar keys.
    """
    return hashlib.sha256(secret.encode()).digest()


FIND_KEY = """
SELECT tenant, scopes
FROM   access_keys
WHERE  hash = %s
  AND  revoked_at IS NULL
"""

FIND_SESSION = """
SELECT k.tenant, k.scopes
FROM   sessions s
JOIN   access_keys k ON k.hash = s.key_hash
WHERE  s.hash = %s
  AND  s.created_at > NOW(6) - INTERVAL %s HOUR
  AND  k.revoked_at IS NULL
"""


async def find_caller(db: Database, key: str | None, session: str | None) -> Caller | None:
    """The caller that has this key, or else this session; None when it is not valid.

    It is read at each call, by primary key, so that a revoked key ends at once on all nodes.
    """
    if key is not None:
        rows = await db.read(FIND_KEY, (digest(key),))
    elif session is not None:
        rows = await db.read(FIND_SESSION, (digest(session), SESSION_HOURS))
    else:
        rows = []
    return Caller(rows[0]["tenant"], frozenset(rows[0]["scopes"].split(","))) if rows else None


ANY_KEY = "SELECT 1 FROM access_keys WHERE revoked_at IS NULL LIMIT 1"


async def has_any_key(db: Database) -> bool:
    """Whether there is a key that is not revoked."""
    return bool(await db.read(ANY_KEY))


def require_scope(
    db: Database, settings: AppSettings, *scopes: Scope
) -> Callable[[Call], Awaitable[Caller]]:
    """The FastAPI dependency of a route for callers that have any of these scopes.

    It returns the Caller. It raises Problem 401 when the key or session is not valid, and 403 when
    the key has none of the scopes.
    """

    async def caller(call: Call) -> Caller:
        given = call.headers.get("authorization")
        scheme, _, key = (given or "").partition(" ")
        if settings.keyless:
            found: Caller | None = ANYBODY
        elif given is None:
            found = await find_caller(db, None, call.cookies.get(COOKIE))
        else:
            found = await find_caller(db, key.strip() if scheme.lower() == "bearer" else None, None)
        if found is None:
            raise unauthorized("Send a valid key: Authorization: Bearer pw_…")
        if found.scopes.isdisjoint(scopes):
            raise Problem("forbidden", f"This needs a key with the scope {' or '.join(scopes)}.")
        return found

    return caller


def unauthorized(detail: str) -> Problem:
    """The problem for a caller without a valid key; it never repeats the key."""
    return Problem("unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})
