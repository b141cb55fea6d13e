"""Programs send, read, stream and cancel requests by these routes."""

import asyncio
import logging
import time
import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response
from fastapi import Request as Call

from partway.app.api.access import Caller, require_scope
from partway.app.api.body import check_public_id, read_body, read_submission
from partway.app.api.contract import (
    ID_IN_PATH,
    LAST_EVENT_ID,
    PREFERENCE_APPLIED,
    RESPOND_ASYNC,
    WAIT,
    answer_responses,
    api_router,
    begin_responses,
    event_responses,
    header_parameter,
    request_body,
)
from partway.app.api.prefer import NO_PREFERENCES, Preferences, read_prefer
from partway.app.api.replies import answer_reply
from partway.app.api.streaming import EventStream, disconnecting, events_reply, wants_events
from partway.app.api.trace import read_traceparent
from partway.app.metrics import OpenCall
from partway.app.requests.allowance import read_rate_headers
from partway.app.requests.answer import read_answer, read_request
from partway.app.requests.events import read_position
from partway.app.requests.fanin import never_disconnects
from partway.app.requests.service import Begun, RequestService, log_fields

log = logging.getLogger("partway.app")

# FastAPI does not check the pattern, since it would refuse a wrong id with a problem of its own.
PublicId = Annotated[
    str, Path(description="The id that the caller chose.", json_schema_extra=ID_IN_PATH)
]

# The problems of each group of routes, by their kinds.
KEY_PROBLEMS = ("unauthorized", "forbidden")
BODY_PROBLEMS = ("invalid-json", "body-too-large", "unsupported-media-type", "invalid-request")
ID_PROBLEMS = ("unknown-request", "settled", "invalid-request", "unavailable")
LIMIT_PROBLEMS = ("unavailable", "overloaded", "too-many-requests")


async def begin(service: RequestService, call: Call, tenant: str, public_id: str | None) -> Begun:
    """Read the body of a call, and store its request or attach to the one of the same id."""
    arrived = time.monotonic()
    raw = await read_body(call, service.settings.max_body_bytes)
    # In a thread, since every other call would wait while a document of two megabytes is split.
    new = await asyncio.to_thread(
        read_submission,
        *(raw, call.headers.get("content-type"), public_id, str(uuid.uuid4()), service.settings),
    )
    traceparent = read_traceparent(call.headers.getlist("traceparent"))
    return await service.begin(tenant, new, arrived, traceparent, is_id_ours=public_id is None)


async def answer(
    service: RequestService, call: Call, tenant: str, public_id: str | None
) -> Response:
    """Store the request, wait until it is closed, and answer: POST and PUT from end to end."""
    as_events = wants_events(call)
    # Before a POST there is no request, so no event of it can have been read.
    last_event_id = call.headers.get("last-event-id") if as_events and public_id else None
    position = read_position(last_event_id)
    preferences = read_prefer(call.headers.getlist("prefer"))
    arrived = time.monotonic()
    begun = await begin(service, call, tenant, public_id)
    request = begun.request
    open_call: OpenCall = call.state.open_call
    if request is not None and as_events:
        return events_reply(service, tenant, request, position, begun, open_call)
    if request is not None and request.status == "active":
        open_call.due_at = request.ends_at
        if preferences.respond_async:
            service.detached.track(request)
            if preferences.wait_seconds:
                async with disconnecting(call) as has_left:
                    await service.wait_at_most(request, preferences.wait_seconds, has_left)
        else:
            async with disconnecting(call) as has_left:
                # A caller that attached closes nothing when it leaves: the first may still wait.
                closes = has_left if begun.ends_with_its_caller else never_disconnects
                await service.wait_until_closed(request, closes)
    current = await read_answer(service.db, tenant, begun.public_id)
    if current is not None:
        duration_ms = round((time.monotonic() - arrived) * 1000)
        log.info(
            "request answered",
            extra=log_fields(tenant, begun.public_id, request)
            | {"duration_ms": duration_ms, "outcome": current.status},
        )
        open_call.outcome = "client_gone" if await call.is_disconnected() else current.status
    return answer_reply(current, preferences if preferences.respond_async else NO_PREFERENCES)


async def read(service: RequestService, call: Call, tenant: str, public_id: str) -> Response:
    """The answer as it is now, or after the wait that the call asks for."""
    check_public_id(public_id)
    seconds = read_prefer(call.headers.getlist("prefer")).wait_seconds
    if seconds:
        request = await read_request(service.db, tenant, public_id)
        if request is not None and request.status == "active":
            async with disconnecting(call) as has_left:
                await service.wait_at_most(request, seconds, has_left)
    current = await service.read(tenant, public_id)
    return answer_reply(current, Preferences(wait_seconds=seconds))


async def watch(service: RequestService, call: Call, tenant: str, public_id: str) -> Response:
    """The events of a request, from the reader's position on."""
    check_public_id(public_id)
    position = read_position(call.headers.get("last-event-id"))
    request = await read_request(service.db, tenant, public_id)
    if request is None:
        return answer_reply(await read_answer(service.db, tenant, public_id))
    return events_reply(service, tenant, request, position)


def request_routes(service: RequestService) -> APIRouter:
    """The routes of /v1/requests."""
    router = api_router()
    settings = service.settings
    body = request_body(settings) | header_parameter(RESPOND_ASYNC)
    Requester = Annotated[Caller, Depends(require_scope(service.db, settings, "requests"))]

    async def with_rate_headers(response: Response, tenant: str) -> Response:
        per_minute = settings.tenant_characters_per_minute
        response.headers.update(await read_rate_headers(service.db, tenant, per_minute))
        return response

    @router.post(
        "/v1/requests",
        openapi_extra=body,
        responses=begin_responses(*KEY_PROBLEMS, *BODY_PROBLEMS, *LIMIT_PROBLEMS),
    )
    async def post_request(call: Call, caller: Requester) -> Response:
        """Split the document, wait for its segments, and answer. The server chooses the id."""
        response = await answer(service, call, caller.tenant, None)
        return await with_rate_headers(response, caller.tenant)

    @router.put(
        "/v1/requests/{public_id}",
        openapi_extra=body,
        responses=begin_responses(
            *KEY_PROBLEMS, *BODY_PROBLEMS, "settled", "id-reused", *LIMIT_PROBLEMS
        ),
    )
    async def put_request(call: Call, public_id: PublicId, caller: Requester) -> Response:
        """The same with an id that the caller chose. A retry attaches, or gets the same answer."""
        response = await answer(service, call, caller.tenant, check_public_id(public_id))
        return await with_rate_headers(response, caller.tenant)

    @router.get(
        "/v1/requests/{public_id}",
        openapi_extra=header_parameter(WAIT),
        responses=answer_responses(*KEY_PROBLEMS, *ID_PROBLEMS, headers=PREFERENCE_APPLIED),
    )
    async def get_request(call: Call, public_id: PublicId, caller: Requester) -> Response:
        """The answer as it is now. `Prefer: wait=N` waits for the end, at most N seconds."""
        return await read(service, call, caller.tenant, public_id)

    @router.get(
        "/v1/requests/{public_id}/events",
        response_class=EventStream,
        openapi_extra=header_parameter(LAST_EVENT_ID),
        responses=event_responses(*KEY_PROBLEMS, *ID_PROBLEMS),
    )
    async def get_events(call: Call, public_id: PublicId, caller: Requester) -> Response:
        """The answer while it grows, as events. Last-Event-ID resumes a broken stream."""
        return await watch(service, call, caller.tenant, public_id)

    @router.delete(
        "/v1/requests/{public_id}", responses=answer_responses(*KEY_PROBLEMS, *ID_PROBLEMS)
    )
    async def cancel_request(public_id: PublicId, caller: Requester) -> Response:
        """Cancel the request. Done segments are billed; running ones can still become done."""
        check_public_id(public_id)
        return answer_reply(await service.cancel(caller.tenant, public_id))

    return router
