"""Pages of other sites must not call this node by a person's browser, with that person's cookie."""

import re
from collections.abc import Mapping

from partway.app.problems import Problem
from partway.app.settings import AppSettings

# A page cannot make a browser send one of these names for a host of its own.
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

# Methods that change nothing.
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(?::\d*)?")


def allowed_hosts(settings: AppSettings) -> frozenset[str]:
    """The host names by which browsers may call this node."""
    listening = f"[{settings.host}]" if ":" in settings.host else settings.host
    return LOOPBACK_NAMES | {listening.lower()} | settings.host_names()


def check_origin(
    method: str, scheme: str, headers: Mapping[str, str], names: frozenset[str]
) -> None:
    """Raise Problem 421 or 403 for a call that a page of another site has made.

    Another site can point its own host name at this address, and its pages could then read the
    answers; the name in Host shows that. Its pages can also send forms, or calls whose answers they
    cannot read. Then the browser names their origin, which no script can prevent.
    """
    host = headers.get("host", "")
    name = HOST.fullmatch(host)
    if name is None or name[1].lower() not in names:
        raise Problem(
            "misdirected",
            "Host is not a name of this service. The setting PARTWAY_APP_HOSTS lists its names.",
        )
    origin = headers.get("origin")
    # A proxy that ends TLS sends the call on as http, but the browser's origin is https.
    if origin is not None and origin not in (f"{scheme}://{host}", f"https://{host}"):
        raise Problem("foreign-origin", "Pages of other origins must not send this.")
    opens_a_page = method in SAFE and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not opens_a_page:
        raise Problem("foreign-origin", "Pages of other sites must not send this.")
