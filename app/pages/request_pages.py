"""People send a text by a form and watch it come in, with or without JavaScript."""

import asyncio
import json
import math
import time
import uuid
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from fastapi import Request as Call
from fastapi.responses import PlainTextResponse, RedirectResponse

from partway.app.api.access import Caller, require_scope
from partway.app.api.body import read_body, read_submission
from partway.app.metrics import PROBLEMS
from partway.app.pages.form import Form, form_id, read_fields, read_form, to_body
from partway.app.pages.labels import LANGUAGES, error_sentences
from partway.app.pages.render import FILES, FOR_EVER, MEDIA_TYPES, VERSIONS, page_router, render
from partway.app.pages.view import load_request_view, other_counts, outcome_sentence
from partway.app.problems import Problem
from partway.app.requests.ledger import Settled
from partway.app.requests.service import RequestService
from partway.store.database import Unavailable

DEFAULT_SECONDS = 30

JSON = "application/json"


def request_pages(service: RequestService) -> APIRouter:
    """The routes of the pages; they stand in no contract."""
    settings = service.settings

    router = page_router(settings)
    offered = settings.page_params
    longest_seconds = max(settings.max_deadline_ms // 1000, 1)
    seconds = min(DEFAULT_SECONDS, longest_seconds)
    Watcher = Annotated[Caller, Depends(require_scope(service.db, settings, "requests"))]

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

        A form that is sent twice, by a double click, is one request. If it is sent again after the
        request was settled, or with changes, it is another request.
        """
        raw = json.dumps(body).encode()
        for public_id in (first_id, str(uuid.uuid4())):
            try:
                arrived = time.monotonic()
                # In a thread: a large text takes seconds to split.
                new = await asyncio.to_thread(
                    read_submission, raw, JSON, public_id, public_id, settings
                )
                begun = await service.begin(tenant, new, arrived)
            except Settled:
                continue
            except Problem as problem:
                if problem.kind != "id-reused":
                    raise
                continue
            if begun.request is not None and begun.request.status == "active":
                service.detached.track(begun.request)
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
        seen = await load_request_view(service.db, caller.tenant, public_id)
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
        seen = await load_request_view(service.db, caller.tenant, public_id)
        named = {"Content-Disposition": f'attachment; filename="{public_id}.txt"'}
        return PlainTextResponse(seen.text, headers=named | {"Cache-Control": "no-store"})

    @router.post("/requests/{public_id}/cancel")
    async def cancel(public_id: str, caller: Watcher) -> Response:
        """Cancel, and show what stands."""
        await load_request_view(service.db, caller.tenant, public_id)
        await service.cancel(caller.tenant, public_id)
        return RedirectResponse(f"/requests/{public_id}", 303)

    @router.post("/requests/{public_id}/again")
    async def again(public_id: str, caller: Watcher) -> Response:
        """Ask for what is missing in a request of its own, and show how that comes in."""
        seen = await load_request_view(service.db, caller.tenant, public_id)
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
