"""Strangers share the service, so a call shows who it comes from: by a key or a browser session."""

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

# What a browser sends in place of a key, which no script can read and no other site can send.
COOKIE = "partway_session"

# A working day; who works longer shows the key once more.
SESSION_HOURS = 12


@dataclass(frozen=True)
class Caller:
    """Who calls, and what the key was made for."""

    tenant: str
    scopes: frozenset[str]


# Everybody, where no key is asked for.
ANYBODY = Caller("default", frozenset(SCOPES))


def digest(secret: str) -> bytes:
    """What is stored of a key or a session: nothing that could be sent in its place.

    No salt and no slow hash, since the secret is 32 random bytes: there is nothing to guess, and a
    look-up by the hash tells nothing of keys that are nearly right.
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
    """Whose key or else whose session this is; None when it is nobody's (any more).

    Asked at each call: one read by primary key, and a key that is revoked ends at once everywhere.
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
    """Whether there is a key with which anybody could call."""
    return bool(await db.read(ANY_KEY))


def require_scope(
    db: Database, settings: AppSettings, *scopes: Scope
) -> Callable[[Call], Awaitable[Caller]]:
    """The dependency of a route that a caller with any of these scopes may use.

    It gives the Caller; Problem 401 when nobody is known by what was sent, 403 without a scope.
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
            raise unauthorized("Send a key that is not revoked: Authorization: Bearer pw_…")
        if found.scopes.isdisjoint(scopes):
            raise Problem("forbidden", f"This needs a key with the scope {' or '.join(scopes)}.")
        return found

    return caller


def unauthorized(detail: str) -> Problem:
    """The problem of one who is not known; it never repeats what was sent."""
    return Problem("unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})
