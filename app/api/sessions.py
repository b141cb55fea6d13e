"""A browser must not store a key, so it exchanges the key for a session that expires."""

import re
import secrets
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Response
from fastapi import Request as Call
from fastapi.responses import RedirectResponse

from partway.app.api.access import COOKIE, SESSION_HOURS, digest, unauthorized
from partway.app.api.body import read_body
from partway.app.problems import Problem
from partway.app.requests.service import RequestService
from partway.store.database import Database

# Enough for a key and the path of a page.
MAX_FORM_BYTES = 8192

FORM = "application/x-www-form-urlencoded"

# A path of this site. If a slash or backslash follows the first slash, browsers read a host name.
OWN_PATH = re.compile(r"/(?:[!-.0-\[\]-~][!-\[\]-~]*)?")


@dataclass(frozen=True)
class Login:
    """The fields of a login form: the key, and the path of the page to open next."""

    key: str
    next: str


def read_login(raw: bytes, content_type: str | None) -> Login:
    """The form of POST /login; Problem 415 when it is no form. Paths of other sites become `/`."""
    if (content_type or "").split(";")[0].strip().lower() != FORM:
        raise Problem("unsupported-media-type", f"Send the key as {FORM}.")
    fields = parse_qs(raw.decode("utf-8", "replace"))
    path = fields.get("next", ["/"])[0]
    return Login(fields.get("key", [""])[0].strip(), path if OWN_PATH.fullmatch(path) else "/")


# If the reply is lost, it runs again with the same token and changes nothing.
BEGIN_SESSION = """
INSERT INTO sessions (hash, key_hash, created_at)
SELECT %s, hash, NOW(6)
FROM   access_keys
WHERE  hash = %s
  AND  revoked_at IS NULL
ON DUPLICATE KEY UPDATE sessions.created_at = sessions.created_at
"""

DELETE_OLD_SESSIONS = """
DELETE FROM sessions
WHERE  created_at < NOW(6) - INTERVAL %s HOUR
ORDER  BY created_at
LIMIT  100
"""


async def begin_session(db: Database, key: str) -> str | None:
    """The token of a new session of this key; None when the key is not valid.

    Each login also deletes expired sessions, so that their number stays near that of the logins of
    twelve hours.
    """
    token = secrets.token_urlsafe(32)
    if not await db.write(BEGIN_SESSION, (digest(token), digest(key))):
        return None
    await db.write(DELETE_OLD_SESSIONS, (SESSION_HOURS,))
    return token


END_SESSION = "DELETE FROM sessions WHERE hash = %s"


async def end_session(db: Database, token: str) -> None:
    """End this session, if it exists."""
    await db.write(END_SESSION, (digest(token),))


def session_routes(service: RequestService) -> APIRouter:
    """The routes by which a browser logs in and out; the OpenAPI document leaves them out."""
    router = APIRouter(include_in_schema=False)

    @router.post("/login")
    async def login(call: Call) -> Response:
        """Exchange a key for a browser session, then redirect; Problem 401 for a wrong key."""
        raw = await read_body(call, MAX_FORM_BYTES)
        form = read_login(raw, call.headers.get("content-type"))
        token = await begin_session(service.db, form.key)
        if token is None:
            if "text/html" in call.headers.get("accept", ""):
                return RedirectResponse(f"/login?{urlencode({'wrong': 1, 'next': form.next})}", 303)
            raise unauthorized("This is not a key, or it was revoked.")
        response = RedirectResponse(form.next, 303)
        response.set_cookie(
            COOKIE,
            token,
            max_age=SESSION_HOURS * 3600,
            httponly=True,
            samesite="strict",
            # Behind a proxy that ends TLS, only the browser's origin shows https.
            secure="https" in (call.scope["scheme"], call.headers.get("origin", "").split(":")[0]),
        )
        return response

    @router.post("/logout")
    async def logout(call: Call) -> Response:
        """End the session of this browser, then redirect to the start page."""
        token = call.cookies.get(COOKIE)
        if token is not None:
            await end_session(service.db, token)
        response = RedirectResponse("/", 303)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response

    return router
