"""A browser sends a user's cookies, and reaches this machine, for any page that it shows."""

import re
from collections.abc import Mapping

from partway.app.problems import Problem
from partway.app.settings import AppSettings

# Nothing on the network can make a browser send one of these for a name that is not its own.
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

# They change nothing.
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(?::\d*)?")


def allowed_hosts(settings: AppSettings) -> frozenset[str]:
    """The names that a browser may know this node by."""
    listening = f"[{settings.host}]" if ":" in settings.host else settings.host
    return LOOPBACK_NAMES | {listening.lower()} | settings.host_names()


def check_origin(
    method: str, scheme: str, headers: Mapping[str, str], names: frozenset[str]
) -> None:
    """Nothing for a call that a page of ours or no page at all has made; Problem 421 or 403 else.

    A page of another site can point its own name at a loopback address and then read what it likes:
    the name gives it away. It can also send forms, or requests whose answer it cannot read: then
    the browser says where they come from, which no script can prevent.
    """
    host = headers.get("host", "")
    name = HOST.fullmatch(host)
    if name is None or name[1].lower() not in names:
        raise Problem(
            "misdirected", "No name of this service is in Host. PARTWAY_APP_HOSTS lists its names."
        )
    origin = headers.get("origin")
    # https is right where a proxy ends it, and what it sends us says http.
    if origin is not None and origin not in (f"{scheme}://{host}", f"https://{host}"):
        raise Problem("foreign-origin", "A page of another origin must not send this.")
    opens_a_page = method in SAFE and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not opens_a_page:
        raise Problem("foreign-origin", "A page of another site must not send this.")
