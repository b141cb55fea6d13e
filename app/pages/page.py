"""People watch a document come in: their pages are made of the rows, anew at each call."""

import hashlib
import json
import math
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Response
from fastapi import Request as Call
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined

from partway.app.api.access import COOKIE, Caller, require_scope
from partway.app.api.body import PUBLIC_ID
from partway.app.metrics import PROBLEMS
from partway.app.problems import Problem
from partway.app.requests.answer import Answer, Request, join_document, read_answer, read_request
from partway.app.requests.ledger import Settled
from partway.store.close import close
from partway.store.database import Database, Unavailable

if TYPE_CHECKING:
    from partway.app.api.routes import Door

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

# What a page calls the state of a segment.
STATUS_LABELS = {
    "pending": "waiting",
    "processing": "working",
    "done": "done",
    "failed": "failed",
    "timed_out": "timed out",
    "cancelled": "cancelled",
}

# What a fault of a body is about, for one who has never seen the body.
FIELDS = {
    "document": "The text",
    "segments": "The segments",
    "language": "The language",
    "deadline_ms": "The deadline in milliseconds",
    "params": "What is chosen for the handler",
}

# Those that most is written in; a program may name any other.
LANGUAGES = {
    "ar": "Arabic",
    "bn": "Bengali",
    "ca": "Catalan",
    "zh": "Chinese",
    "cs": "Czech",
    "nl": "Dutch",
    "en": "English",
    "fr": "French",
    "de": "German",
    "el": "Greek",
    "hi": "Hindi",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "fa": "Persian",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "es": "Spanish",
    "sv": "Swedish",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "vi": "Vietnamese",
}

DEFAULT_SECONDS = 30

JSON = "application/json"

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

# A browser writes the name of a field so, and every other one of the name's characters in it.
FIELD_NAME = re.compile(rb'[;\s]name="([^"]*)"')
BOUNDARY = re.compile(r'multipart/form-data\s*;.*?boundary="?([^";]+)"?', re.IGNORECASE)


@dataclass(frozen=True)
class Form:
    """What somebody wrote into the form of the first page."""

    id: str
    text: str
    file: str
    language: str
    seconds: str
    params: Mapping[str, str]


def read_fields(raw: bytes, content_type: str) -> dict[str, str]:
    """The fields and files of a form as a browser sends it, by name.

    Problem 415 when it is no such form, 422 when a text in it is not UTF-8.
    """
    boundary = BOUNDARY.match(content_type)
    if boundary is None:
        raise Problem("unsupported-media-type", "Send the form of this page.")
    fields = {}
    for part in (b"\r\n" + raw).split(b"\r\n--" + boundary[1].encode())[1:]:
        head, _, value = part.partition(b"\r\n\r\n")
        name = FIELD_NAME.search(head)
        try:
            if name is not None:
                # An editor may have marked a file as UTF-8 at its beginning; nobody reads the mark.
                fields[name[1].decode()] = value.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Problem("invalid-request", "The text is not UTF-8.") from None
    return fields


def read_form(fields: Mapping[str, str], offered: Mapping[str, Any], seconds: int) -> Form:
    """The form in these fields, with our defaults for what is not there."""
    return Form(
        id=fields.get("id", ""),
        # A browser sends each line end of a textarea as two characters.
        text=fields.get("text", "").replace("\r\n", "\n"),
        file=fields.get("file", ""),
        language=fields.get("language", "en"),
        seconds=fields.get("seconds", str(seconds)),
        params={name: fields[f"param.{name}"] for name in offered if f"param.{name}" in fields},
    )


def form_id(form: Form) -> str:
    """The id that a form was given, or a new one where it has none."""
    return form.id if PUBLIC_ID.fullmatch(form.id) else str(uuid.uuid4())


def to_body(form: Form) -> dict[str, Any]:
    """The body that a program would send for this form; Problem 422 where there can be none."""
    if not (form.text + form.file).strip():
        raise Problem("invalid-request", "There is no text.")
    if form.text.strip() and form.file:
        raise Problem("invalid-request", "There is a text and a file. Send one of them.")
    try:
        deadline_ms = round(float(form.seconds) * 1000)
    except (ValueError, OverflowError):
        raise Problem("invalid-request", "The seconds to wait are not a number.") from None
    return {
        "document": form.file or form.text,
        "language": form.language,
        "deadline_ms": deadline_ms,
        "params": form.params,
        "on_missing": "source",
    }


def error_sentences(problem: Problem) -> list[str]:
    """A problem in sentences, for one who has never seen a body."""
    return [
        f"{FIELDS.get(wrong.pointer.split('/')[1], 'The text')} {wrong.detail}."
        if wrong.pointer
        else f"The text {wrong.detail}."
        for wrong in problem.wrong
    ] or [problem.detail]


def other_counts(answer: Answer) -> str:
    """How many segments of a closed request ended otherwise than done, as the end of a line."""
    if answer.finished_at is None:
        return ""
    counts = answer.counts
    ends = {
        "failed": counts.failed,
        "timed out": counts.timed_out,
        "cancelled": counts.cancelled,
    }
    return "".join(f", {count:,} {word}" for word, count in ends.items() if count)


def outcome_sentence(answer: Answer) -> str:
    """How a closed request ended, in one sentence; none for a request that runs."""
    if answer.finished_at is None:
        return ""
    allowed = answer.deadline_at - answer.created_at
    took = min((answer.finished_at - answer.created_at) / allowed, 1) * allowed.total_seconds()
    after = f"after {took:.1f} of {allowed.total_seconds():g} s"
    if answer.status == "completed":
        return f"The text is complete {after}."
    if answer.status == "cancelled":
        return f"It was cancelled {after}; what is done stays and is billed."
    if answer.status == "abandoned":
        return f"Nobody waited for it any more {after}, so nothing is billed."
    if answer.counts.timed_out:
        return f"The time was up after {allowed.total_seconds():g} s."
    return f"Not all of it could be done; the answer came {after}."


SOURCES = """
SELECT index_no, source
FROM   segments
WHERE  request_id = %s
ORDER  BY index_no
"""

PARAMS = "SELECT params FROM requests WHERE id = %s"


@dataclass(frozen=True)
class RequestView:
    """All that a page shows of a request: its answer, and what was sent."""

    request: Request
    answer: Answer
    sources: list[str]
    params: dict[str, Any]

    @property
    def missing(self) -> list[int]:
        """The indexes of what is not done, once it is closed."""
        if self.answer.status == "running":
            return []
        return [segment.index for segment in self.answer.segments if segment.status != "done"]

    @property
    def grows(self) -> bool:
        """Whether anything of it may still change."""
        return not self.answer.usage.final

    @property
    def text(self) -> str:
        """The whole text, with the source of what is not done."""
        parts: list[str | None] = [
            source if segment.result is None else segment.result
            for source, segment in zip(self.sources, self.answer.segments, strict=True)
        ]
        whole = join_document(self.request.separators, parts)
        return whole if whole is not None else "\n".join(filter(None, parts))

    @property
    def counts(self) -> dict[str, int]:
        """How many segments are in each state: those it can be in by now."""
        states: list[str] = [segment.status for segment in self.answer.segments]
        possible = (
            ("pending", "processing", "done", "failed")
            if self.answer.status == "running"
            else ("done", "failed", "timed_out", "cancelled")
        )
        found = {state: states.count(state) for state in possible}
        if self.answer.status == "running":
            return found
        return {state: count for state, count in found.items() if count or state == "done"}

    @property
    def bill(self) -> str:
        """What becomes of the characters."""
        if not self.answer.usage.billed:
            return "nothing"
        return "provisional" if self.grows else "final"

    def named_params(self, offered: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        """What was chosen for the handler, in the words of the form where it is of the form."""
        return {
            name.capitalize() if name in offered else name: offered.get(name, {}).get(value, value)
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False)
            for name, value in self.params.items()
        }


async def load_request_view(db: Database, tenant: str, public_id: str) -> RequestView:
    """The tenant's request of this id; Problem 404 when there is none. Raises Settled."""
    if PUBLIC_ID.fullmatch(public_id) is not None:
        request = await read_request(db, tenant, public_id)
        number = request.id if request is not None else 0
        is_active = request is not None and request.status == "active"
        if request is not None and is_active and request.ends_at <= time.monotonic():
            # The node that took it has died; whoever looks is answered all the same.
            await close(db, number, "completed")
        # Before the answer, which is none when they are gone: with it, all of them were there.
        sources = [row["source"] for row in await db.read(SOURCES, (number,))]
        params = await db.read(PARAMS, (number,))
        answer = await read_answer(db, tenant, public_id)
        if request is not None and answer is not None and params:
            return RequestView(request, answer, sources, json.loads(params[0]["params"]))
    raise Problem("unknown-request", "There is no request of this id, or it is not yours.")


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


def pages(door: "Door", read_body: Callable[[Call, int], Awaitable[bytes]]) -> APIRouter:
    """The routes of the pages; they stand in no contract."""
    settings = door.settings

    async def look_for_a_session(call: Call) -> None:
        call.state.session = not settings.keyless and COOKIE in call.cookies

    router = APIRouter(
        route_class=PageRoute,
        include_in_schema=False,
        dependencies=[Depends(look_for_a_session)],
    )
    offered = settings.page_params
    longest_seconds = max(settings.max_deadline_ms // 1000, 1)
    seconds = min(DEFAULT_SECONDS, longest_seconds)
    Watcher = Annotated[Caller, Depends(require_scope(door.db, settings, "requests"))]

    def start(call: Call, form: Form, status: int = 200, said: list[str] | None = None) -> Response:
        return render(
            *(call, "start.html", status),
            form=form,
            faults=said or [],
            # The same again: what was stored although it was not answered is not stored twice.
            new_id=form_id(form),
            languages=LANGUAGES,
            offered=offered,
            longest_seconds=longest_seconds,
        )

    async def asked(tenant: str, body: Mapping[str, Any], first_id: str) -> str:
        """The id under which this body is worked on from now on, whether or not anybody watches.

        A form that is sent twice, by a double click, is one request. Whoever goes back to it later,
        or changes it, means another.
        """
        raw = json.dumps(body).encode()
        for public_id in (first_id, str(uuid.uuid4())):
            try:
                arrived = time.monotonic()
                begun = await door.take(tenant, raw, JSON, public_id, None, arrived)
            except Settled:
                continue
            except Problem as problem:
                if problem.kind != "other-body":
                    raise
                continue
            if begun.request is not None and begun.request.status == "active":
                door.unattended.track(begun.request)
                break
        return public_id

    @router.get("/")
    async def open_start(call: Call, caller: Watcher) -> Response:
        """The form."""
        return start(call, read_form({}, offered, seconds))

    @router.post("/")
    async def send(call: Call, caller: Watcher) -> Response:
        """Store what the form says, and show how it comes in."""
        form = read_form({}, offered, seconds)
        try:
            raw = await read_body(call, settings.max_body_bytes)
            fields = read_fields(raw, call.headers.get("content-type", ""))
            form = read_form(fields, offered, seconds)
            public_id = await asked(caller.tenant, to_body(form), form_id(form))
        except Problem as problem:
            PROBLEMS[problem.kind].inc()
            return start(call, form, problem.status, error_sentences(problem))
        except Unavailable:
            PROBLEMS["unavailable"].inc()
            said = "The database cannot be reached. Your text is still here: send it again."
            return start(call, form, 503, [said])
        return RedirectResponse(f"/requests/{public_id}", 303)

    @router.get("/requests/{public_id}")
    async def open_request(call: Call, public_id: str, caller: Watcher) -> Response:
        """A request as it stands."""
        seen = await load_request_view(door.db, caller.tenant, public_id)
        answer = seen.answer
        allowed = (answer.deadline_at - answer.created_at).total_seconds()
        left = max(seen.request.ends_at - time.monotonic(), 0)
        if answer.finished_at is None:
            elapsed = allowed - left
        else:
            elapsed = (answer.finished_at - answer.created_at).total_seconds()
        return render(
            *(call, "request.html"),
            seen=seen,
            answer=answer,
            params=seen.named_params(offered),
            others=other_counts(answer),
            sentence=outcome_sentence(answer),
            left_seconds=math.ceil(left),
            deadline_seconds=f"{allowed:g}",
            deadline_ms=round(allowed * 1000),
            elapsed_ms=round(min(max(elapsed, 0), allowed) * 1000),
        )

    @router.get("/requests/{public_id}/text")
    async def download(public_id: str, caller: Watcher) -> Response:
        """The whole text as a file."""
        seen = await load_request_view(door.db, caller.tenant, public_id)
        named = {"Content-Disposition": f'attachment; filename="{public_id}.txt"'}
        return PlainTextResponse(seen.text, headers=named | {"Cache-Control": "no-store"})

    @router.post("/requests/{public_id}/cancel")
    async def cancel(public_id: str, caller: Watcher) -> Response:
        """Cancel, and show what stands."""
        await load_request_view(door.db, caller.tenant, public_id)
        await door.cancel(caller.tenant, public_id)
        return RedirectResponse(f"/requests/{public_id}", 303)

    @router.post("/requests/{public_id}/again")
    async def again(public_id: str, caller: Watcher) -> Response:
        """Ask for what is missing in a request of its own, and show how that comes in."""
        seen = await load_request_view(door.db, caller.tenant, public_id)
        if not seen.missing:
            return RedirectResponse(f"/requests/{public_id}", 303)
        allowed = seen.answer.deadline_at - seen.answer.created_at
        body = {
            "segments": [seen.sources[index] for index in seen.missing],
            "params": seen.params,
            "deadline_ms": round(allowed.total_seconds() * 1000),
        }
        # A name that follows from this one, so that here too a double click is one request.
        next_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"/requests/{public_id}"))
        new_id = await asked(caller.tenant, body, next_id)
        return RedirectResponse(f"/requests/{new_id}", 303)

    @router.get("/login")
    async def open_login(call: Call, wrong: str = "", next: str = "/") -> Response:
        """The form for a key."""
        if settings.keyless:
            return RedirectResponse("/", 303)
        return render(call, "login.html", wrong=bool(wrong), next=next)

    @router.get("/static/{name}")
    async def file(name: str, v: str = "") -> Response:
        """A file of the pages."""
        if name not in FILES:
            raise Problem("unknown-request", "There is no such file.")
        kept = FOR_EVER if v == VERSIONS[name] else "no-cache"
        media_type = MEDIA_TYPES[PurePath(name).suffix]
        return Response(FILES[name], media_type=media_type, headers={"Cache-Control": kept})

    return router
