"""Operators look at the rows in a browser, find a request there, and may cancel it."""

import re
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Response
from fastapi import Request as Call
from fastapi.responses import RedirectResponse

from partway.app.api.access import Caller, require_scope
from partway.app.api.body import read_body
from partway.app.api.sessions import MAX_FORM_BYTES
from partway.app.metrics import PROBLEMS
from partway.app.pages.labels import OPS_LABELS, format_duration
from partway.app.pages.ops_overview import read_overview
from partway.app.pages.ops_request import read_row, read_segment_histories, read_texts
from partway.app.pages.ops_summary import SEGMENTS_READ, read_letters, request_path
from partway.app.pages.render import page_router, render
from partway.app.pages.strip import SegmentStrip
from partway.app.requests.ledger import find_metered
from partway.app.requests.service import RequestService
from partway.app.requests.submission import PUBLIC_ID

# Segments on a page, and fewer where their texts come with them.
SEGMENTS_SHOWN = 1_000

TEXTS_SHOWN = 100

# A strip is one line on a desk, and a grid of them where a request stands alone.
CELLS_ALONE = 500

# Who wants to watch says so: a page that moves by itself is taken from who still reads it.
FOLLOW_SECONDS = 5

# An index beyond the largest that a segment can have is none.
INDEX = re.compile(r"[0-9]{1,9}")


def ops_pages(service: RequestService) -> APIRouter:
    """The routes of the operators' pages; they stand in no contract."""
    settings = service.settings

    router = page_router(settings, "/ops")
    Operator = Annotated[Caller, Depends(require_scope(service.db, settings, "operator"))]

    def page(call: Call, template: str, status: int = 200, **values: Any) -> Response:
        return render(call, template, status, words=OPS_LABELS, lasting=format_duration, **values)

    async def without_rows(call: Call, tenant: str, public_id: str) -> Response:
        """What was metered of a request that has no row, or that there is none such."""
        # A name that no request can have was metered for none.
        is_name = PUBLIC_ID.fullmatch(tenant) and PUBLIC_ID.fullmatch(public_id)
        metered = await find_metered(service.db, tenant, public_id) if is_name else None
        if metered is None:
            PROBLEMS["unknown-request"].inc()
        status = 404 if metered is None else 200
        named = {"tenant": tenant, "public_id": public_id}
        return page(call, "ops_told.html", status, metered=metered, tenants=[], **named)

    @router.get("")
    async def open_overview(
        call: Call, caller: Operator, after: str = "", follow: str = ""
    ) -> Response:
        """What there is now."""
        # A name that no tenant can have is before all of them.
        begin = after if PUBLIC_ID.fullmatch(after) else ""
        seen = await read_overview(service.db, begin)
        response = page(call, "ops.html", seen=seen, after=begin, follow=bool(follow))
        if follow:
            response.headers["Refresh"] = str(FOLLOW_SECONDS)
        return response

    # With its tenant, as the logs name it: an id belongs to a tenant, others may have the same, and
    # a search in all tenants would cost one read for each of them.
    @router.get("/find")
    async def look_up(call: Call, caller: Operator, tenant: str = "", id: str = "") -> Response:
        """Go to the request of this tenant and id."""
        tenant, public_id = tenant.strip(), id.strip()
        if PUBLIC_ID.fullmatch(tenant) and PUBLIC_ID.fullmatch(public_id):
            return RedirectResponse(request_path(tenant, public_id), 303)
        return await without_rows(call, tenant, public_id)

    @router.get("/requests/{tenant}/{public_id}")
    async def open_request(
        call: Call,
        tenant: str,
        public_id: str,
        caller: Operator,
        text: str = "",
        first: str = "",
    ) -> Response:
        """A request with the life of each segment; the texts only where they are asked for."""
        with_texts = text == "show"
        most = TEXTS_SHOWN if with_texts else SEGMENTS_SHOWN
        begin = int(first) if INDEX.fullmatch(first) else 0
        request = await read_row(service.db, tenant, public_id, begin, most)
        if request is None:
            return await without_rows(call, tenant, public_id)
        lives = await read_segment_histories(service.db, request, begin, most)
        texts = await read_texts(service.db, request.id, begin, most) if with_texts else {}
        # Last: when these are there, all of the others were.
        letters = (await read_letters(service.db, [request.id])).get(request.id, "")
        if len(letters) < min(request.segments, SEGMENTS_READ):
            return await without_rows(call, tenant, public_id)
        return page(
            *(call, "ops_request.html"),
            request=request,
            progress=SegmentStrip(request.segments, letters.replace("p", request.late)),
            most_cells=CELLS_ALONE,
            lives=lives,
            texts=texts,
            with_texts=with_texts,
            first=begin,
            most=most,
        )

    @router.get("/requests/{tenant}/{public_id}/cancel")
    async def ask_to_cancel(call: Call, tenant: str, public_id: str, caller: Operator) -> Response:
        """Ask whether it is meant."""
        request = await read_row(service.db, tenant, public_id, 0, 0)
        if request is None:
            return await without_rows(call, tenant, public_id)
        if request.status != "active":
            return RedirectResponse(request.path, 303)
        letters = (await read_letters(service.db, [request.id])).get(request.id, "")
        progress = SegmentStrip(request.segments, letters)
        return page(call, "ops_cancel.html", request=request, progress=progress)

    @router.post("/requests/{tenant}/{public_id}/cancel")
    async def cancel_request(call: Call, tenant: str, public_id: str, caller: Operator) -> Response:
        """Cancel what somebody was asked about, and show what stands."""
        path = request_path(tenant, public_id)
        if not is_sure(await read_body(call, MAX_FORM_BYTES)):
            return RedirectResponse(f"{path}/cancel", 303)
        # A name that no request can have is not worth a statement.
        if PUBLIC_ID.fullmatch(tenant) and PUBLIC_ID.fullmatch(public_id):
            event = "request cancelled by an operator"
            await service.close_as_cancelled(tenant, public_id, event)
        return RedirectResponse(path, 303)

    return router


def is_sure(raw: bytes) -> bool:
    """Whether this is the form of the question whether it is meant."""
    return parse_qs(raw.decode("utf-8", "replace")).get("sure") == ["yes"]
