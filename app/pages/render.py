"""Every page is made from a template, and so is every error of a page."""

import hashlib
from collections.abc import Callable, Coroutine
from importlib.resources import files
from pathlib import PurePath
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Response
from fastapi import Request as Call
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined

from partway.app.api.access import COOKIE
from partway.app.metrics import PROBLEMS
from partway.app.pages.labels import STATUS_LABELS, error_sentences
from partway.app.problems import Problem
from partway.app.requests.ledger import Settled
from partway.app.settings import AppSettings
from partway.store.database import Unavailable

# Nothing from elsewhere, and nothing that stands in the page itself: what a caller sent is never
# run. The referrer stays with us; without any, a browser calls the origin of our own forms null.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}

MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

# A node tells the page in which version each file is, and the browser asks for it once.
FOR_EVER = "public, max-age=31536000, immutable"

# They come with the program and never change while it runs.
FILES = {
    entry.name: entry.read_bytes()
    for entry in (files("partway.app.pages") / "static").iterdir()
    if PurePath(entry.name).suffix in MEDIA_TYPES
}

VERSIONS = {name: hashlib.sha256(content).hexdigest()[:12] for name, content in FILES.items()}

TEMPLATES = Environment(
    loader=PackageLoader("partway.app.pages"),
    autoescape=True,
    # A name that a template has and we do not give is our mistake, and not an empty place.
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)

TEMPLATES.globals["static"] = lambda name: f"/static/{name}?v={VERSIONS[name]}"

TEMPLATES.globals["words"] = STATUS_LABELS


class PageRoute(APIRoute):
    """A route for browsers: whatever it answers is a page, also where something is wrong."""

    def get_route_handler(self) -> Callable[[Call], Coroutine[Any, Any, Response]]:
        """The handler of the framework, with a page in the place of its errors."""
        inner = super().get_route_handler()

        async def handle(call: Call) -> Response:
            try:
                response = await inner(call)
            except Problem as problem:
                if problem.kind == "unauthorized":
                    opens = call.url.path if call.method == "GET" else "/"
                    response = RedirectResponse(f"/login?{urlencode({'next': opens})}", 303)
                else:
                    PROBLEMS[problem.kind].inc()
                    response = render_message(
                        call, problem.status, problem.title, error_sentences(problem)
                    )
            except Settled as settled:
                PROBLEMS["settled"].inc()
                said = "Its text is no longer kept. This is what was metered:"
                response = render_message(call, 410, "This request is settled", [said], settled)
            except Unavailable:
                PROBLEMS["unavailable"].inc()
                said = "Nothing is lost by it. Try again in a moment."
                response = render_message(call, 503, "The database cannot be reached", [said])
            response.headers.update(HEADERS)
            return response

        return handle


def page_router(settings: AppSettings, prefix: str = "") -> APIRouter:
    """A router whose routes answer with pages; the OpenAPI document leaves them out."""

    async def note_session(call: Call) -> None:
        call.state.session = not settings.keyless and COOKIE in call.cookies

    return APIRouter(
        prefix=prefix,
        route_class=PageRoute,
        include_in_schema=False,
        dependencies=[Depends(note_session)],
    )


def render_message(
    call: Call, status: int, title: str, said: list[str], settled: Settled | None = None
) -> Response:
    """A page that only says something."""
    again = call.url.path if status >= 500 and call.method == "GET" else None
    return render(
        *(call, "told.html", status),
        title=title,
        said=said,
        metered=settled.metered if settled else None,
        again=again,
        # A key for the one thing is not for the other, and its holder may not know the way.
        is_scope=status == 403,
    )


def render(call: Call, template: str, status: int = 200, **values: Any) -> Response:
    """A page made of a template; what stands in it is true at this moment only."""
    content = TEMPLATES.get_template(template).render(values, session=call.state.session)
    return HTMLResponse(content, status, {"Cache-Control": "no-store"})
