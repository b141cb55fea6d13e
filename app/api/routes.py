"""Callers need one synchronous door: these are its routes; they decide nothing that rows decide."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlencode

from fastapi import Depends, FastAPI, Path, Query, Response
from fastapi import Request as Call
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, StreamingResponse
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from partway.app.api.access import (
    COOKIE,
    MAX_FORM_BYTES,
    SCOPES,
    SESSION_HOURS,
    Caller,
    begin_session,
    end_session,
    read_login,
    require_scope,
    unauthorized,
)
from partway.app.api.body import Submission, check_public_id, read_submission
from partway.app.api.contract import (
    ID_IN_PATH,
    LAST_EVENT_ID,
    PREFERENCE_APPLIED,
    RESPOND_ASYNC,
    TENANT_IN_QUERY,
    TIME_IN_QUERY,
    WAIT,
    WITHOUT_A_KEY,
    answer_responses,
    begin_responses,
    complete_document,
    event_responses,
    header_parameter,
    problem_responses,
    request_body,
    usage_responses,
)
from partway.app.api.guard import allowed_hosts, check_origin
from partway.app.api.limits import LimitsAnswer, charge, read_limits, read_rate_headers, refund
from partway.app.api.prefer import NO_PREFERENCES, Preferences, read_prefer, read_quality
from partway.app.api.trace import read_traceparent
from partway.app.api.usage import (
    DAY_COLUMNS,
    REQUEST_COLUMNS,
    Period,
    as_csv,
    by_day,
    by_request,
    read_period,
    sum_usage,
)
from partway.app.metrics import PROBLEMS, REGISTRY, OpenCall
from partway.app.pages.ops import ops_pages
from partway.app.pages.page import pages
from partway.app.problems import NO_TYPE, PROBLEM_MEDIA_TYPE, Problem, plain_document
from partway.app.requests.admission import AdmissionControl
from partway.app.requests.answer import Answer, Request, is_known, read_answer, read_request
from partway.app.requests.detached import DetachedRequests
from partway.app.requests.events import (
    EVENTS,
    RequestSubscriptions,
    StreamPosition,
    read_position,
    stream,
    unknown_position,
)
from partway.app.requests.fanin import LATE_SECONDS, never_disconnects, polls, wait_until_final
from partway.app.requests.fanout import submit
from partway.app.requests.ledger import Settled
from partway.app.requests.watch import Watch
from partway.app.settings import AppSettings
from partway.store.close import close
from partway.store.database import Database, Row, Unavailable
from partway.store.metrics import TEXT, render_metrics

SESSION_PATHS = ("/login", "/logout")

log = logging.getLogger("partway.app")

# A restarted database is back by then, and the caller's request still runs.
RETRY_AFTER_SECONDS = 2

# The largest document takes this to be stored on a busy machine, however short its deadline.
STORE_SECONDS = 5.0

# A reader that is slow is kept waiting with this and what the socket holds, never a whole answer.
PIECE_BYTES = 65_536

# A proxy must neither keep the events nor give them to anybody else.
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

# Checked by us: the framework would refuse it in another form.
PublicId = Annotated[str, Path(description="The caller's own id.", json_schema_extra=ID_IN_PATH)]
SinceTime = Annotated[str | None, Query(alias="from", json_schema_extra=TIME_IN_QUERY)]
UntilTime = Annotated[str | None, Query(alias="to", json_schema_extra=TIME_IN_QUERY)]
TenantName = Annotated[str | None, Query(json_schema_extra=TENANT_IN_QUERY)]


@dataclass(frozen=True)
class Begun:
    """What a call stored or joined; the request is None when it is settled by now."""

    public_id: str
    request: Request | None
    ends_with_its_caller: bool


class Door:
    """What the routes share: the database, the settings, and when this node stops."""

    def __init__(self, db: Database, settings: AppSettings) -> None:
        self.db = db
        self.settings = settings
        self.room = AdmissionControl(settings)
        self.watch = Watch(db, settings.poll_seconds)
        self.feeds = RequestSubscriptions(db, self.watch)
        self.unattended = DetachedRequests(db, self.watch)
        self.stops_at = float("inf")

    def drain(self) -> None:
        """Let open calls go on for drain_seconds, then answer each with what is there."""
        self.stops_at = min(self.stops_at, time.monotonic() + self.settings.drain_seconds)

    async def end(self) -> None:
        """After the last call: hand over what goes on without one, and read nothing more."""
        await self.unattended.hand_over(self.stops_at)
        await self.watch.end()

    async def answer(self, call: Call, tenant: str, public_id: str | None) -> Response:
        """Split, store or join, wait, and answer: the whole of POST and PUT."""
        as_events = wants_events(call)
        # Of a request that POST is about to make, no event can have been read.
        place = (
            read_position(call.headers.get("last-event-id")) if as_events and public_id else None
        )
        wanted = read_prefer(call.headers.getlist("prefer"))
        arrived = time.monotonic()
        begun = await self.begin(call, tenant, public_id)
        request = begun.request
        open_call: OpenCall = call.state.open_call
        if request is not None and as_events:
            return self.stream(tenant, request, place, begun, open_call)
        if request is not None and request.status == "active":
            open_call.due_at = request.ends_at
            if wanted.respond_async:
                self.unattended.track(request)
                if wanted.wait_seconds:
                    await self.wait(call, request, wanted.wait_seconds)
            else:
                async with leaving(call) as has_left:
                    await wait_until_final(
                        self.db,
                        self.watch,
                        request,
                        lambda: min(request.ends_at, self.stops_at),
                        # A joiner ends nothing: the one who began may still be waiting.
                        has_left if begun.ends_with_its_caller else never_disconnects,
                    )
        answer = await read_answer(self.db, tenant, begun.public_id)
        if answer is not None:
            took = {"duration_ms": round((time.monotonic() - arrived) * 1000)}
            log.info(
                "request answered",
                extra=named(tenant, begun.public_id, request) | took | {"outcome": answer.status},
            )
            open_call.outcome = "client_gone" if await call.is_disconnected() else answer.status
        return answered(answer, wanted if wanted.respond_async else NO_PREFERENCES)

    async def wait(self, call: Call, request: Request, seconds: float) -> None:
        """Wait for the end of a request, at most so long; nothing is closed before it is due."""
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(seconds),
                leaving(call) as has_left,
                aclosing(polls(self.db, self.watch, request, lambda: request.ends_at)) as waiting,
            ):
                async for _ in waiting:
                    if self.stops_at <= time.monotonic() or has_left():
                        return

    async def watched(self, call: Call, tenant: str, public_id: str) -> Response:
        """The events of a request, from where the reader was."""
        check_public_id(public_id)
        place = read_position(call.headers.get("last-event-id"))
        request = await read_request(self.db, tenant, public_id)
        if request is None:
            return answered(await read_answer(self.db, tenant, public_id))
        return self.stream(tenant, request, place)

    def stream(
        self,
        tenant: str,
        request: Request,
        place: StreamPosition | None,
        begun: Begun | None = None,
        open_call: OpenCall | None = None,
    ) -> Response:
        """The events that a reader at this place lacks; 204 when it has had the end.

        `begun` is how the call came to the request, and `open_call` what is counted of it, None
        when it only watches.
        """
        has = place.indexes(request.segments) if place is not None else None
        if place is not None and place.is_end:
            if request.status == "active":
                raise unknown_position()
            if open_call is not None:
                open_call.outcome = request.status
            # A browser asks again when a stream has ended, until it is told that this was all.
            return Response(status_code=204)
        if open_call is not None and request.status == "active":
            open_call.due_at = request.ends_at
        ended = False

        async def pieces() -> AsyncGenerator[bytes, None]:
            nonlocal ended
            with self.feeds.watching(tenant, request) as feed:
                async for event in stream(feed, has, lambda: self.stops_at):
                    for first in range(0, len(event), PIECE_BYTES):
                        yield event[first : first + PIECE_BYTES]
            ended = True
            if open_call is not None:
                # Without an answer to its end it goes on: its reader comes back for the rest.
                open_call.end(feed.answer.status if feed.answer is not None else "running")

        async def afterwards() -> None:
            # A reader that leaves has read less; what it began is seen to as after any other call.
            if begun is None or ended:
                return
            if open_call is not None:
                open_call.end("client_gone")
            if not begun.ends_with_its_caller:
                self.unattended.track(request)
                return
            # Nobody is there to be told that the database is away; the batch closes it then.
            with contextlib.suppress(Unavailable):
                await wait_until_final(
                    self.db, self.watch, request, lambda: request.ends_at, lambda: True
                )

        return Streamed(
            pieces(),
            media_type=EVENTS,
            headers=STREAM_HEADERS | content_location(request.public_id),
            background=BackgroundTask(afterwards),
        )

    async def begin(self, call: Call, tenant: str, public_id: str | None) -> Begun:
        """Store or join the request of this call; its text is not kept here any longer."""
        arrived = time.monotonic()
        raw = await read_body(call, self.settings.max_body_bytes)
        media_type = call.headers.get("content-type")
        traceparent = read_traceparent(call.headers.getlist("traceparent"))
        return await self.take(tenant, raw, media_type, public_id, traceparent, arrived)

    async def take(
        self,
        tenant: str,
        raw: bytes,
        media_type: str | None,
        public_id: str | None,
        traceparent: str | None,
        arrived: float,
    ) -> Begun:
        """Store or join the request in a body that came in at `arrived`."""
        # In a thread: splitting a document of two megabytes would make every other call wait.
        new = await asyncio.to_thread(
            read_submission, raw, media_type, public_id, str(uuid.uuid4()), self.settings
        )
        try:
            # Who is silent to a submit would be waited for longer than its caller waits.
            async with asyncio.timeout(max(new.deadline_ms / 1000, STORE_SECONDS) + LATE_SECONDS):
                created = await self.store(tenant, new, arrived, traceparent)
                request = await read_request(self.db, tenant, new.public_id)
        except TimeoutError as error:
            raise Unavailable("the database does not answer in time") from error
        if public_id is None:
            # An id that we made and that is there already is ours: the commit's reply was lost.
            created = True
        if request is not None and request.body_hash != new.body_hash:
            raise Problem("other-body", f"The id {new.public_id} was sent with another body.")
        known = "request joined" if request is not None else "settled request asked for"
        log.info(
            "request stored" if created else known,
            extra=named(tenant, new.public_id, request)
            | {"duration_ms": round((time.monotonic() - arrived) * 1000)},
        )
        return Begun(new.public_id, request, created and new.on_disconnect == "cancel")

    async def store(
        self, tenant: str, new: Submission, arrived: float, traceparent: str | None
    ) -> bool:
        """True when this call began the request, False when it joins; Problem 429 or 503."""
        characters = new.pieces.characters
        per_minute = self.settings.tenant_characters_per_minute
        try:
            await self.room.check(self.db, tenant)
            with self.room.storing(tenant, characters):
                await charge(self.db, tenant, new.public_id, characters, per_minute)
                waited = time.monotonic() - arrived
                created = await submit(self.db, tenant, new, waited, traceparent)
        except Problem:
            # Whoever comes back for an answer adds nothing to what waits, and has paid.
            if not await is_known(self.db, tenant, new.public_id):
                raise
            return False
        if not created:
            # Another call with the same id was stored while this one was being charged.
            await refund(self.db, tenant, characters, per_minute)
        return created

    async def read(self, tenant: str, public_id: str, call: Call | None = None) -> Response:
        """What is there now, or once the call has waited as long as it prefers to.

        A request that is due and still active is closed first: the node that took it has died.
        """
        check_public_id(public_id)
        lines = call.headers.getlist("prefer") if call is not None else []
        seconds = read_prefer(lines).wait_seconds
        request = await read_request(self.db, tenant, public_id)
        is_active = request is not None and request.status == "active"
        if request is not None and is_active and call is not None and seconds:
            await self.wait(call, request, seconds)
        answer = await read_answer(self.db, tenant, public_id)
        if request is not None and answer is not None and answer.status == "running":
            finished = answer.counts.done + answer.counts.failed
            if finished == request.segments or request.ends_at <= time.monotonic():
                await close(self.db, request.id, "completed")
                answer = await read_answer(self.db, tenant, public_id)
        return answered(answer, Preferences(wait_seconds=seconds))

    async def cancel(self, tenant: str, public_id: str) -> Response:
        """Close a running request as cancelled, and answer with what stands."""
        check_public_id(public_id)
        request = await read_request(self.db, tenant, public_id)
        # Only an active one: closing a final one would wait for the settlement that may hold it.
        is_active = request is not None and request.status == "active"
        if request is not None and is_active and await close(self.db, request.id, "cancelled"):
            log.info("request cancelled", extra=named(tenant, public_id, request))
        answer = await read_answer(self.db, tenant, public_id)
        if answer is not None and answer.status == "running":
            # Stored between the two looks; whoever cancels must not be told that it goes on.
            return await self.cancel(tenant, public_id)
        return answered(answer)

    async def table(self, period: Period, by: Literal["day", "request"]) -> Response:
        """What was metered as CSV, sent as it is read: a line for each day, or each request."""
        columns, pages = (
            (DAY_COLUMNS, by_day(self.db, period))
            if by == "day"
            else (REQUEST_COLUMNS, by_request(self.db, period))
        )
        # Before the first byte, since later an error can only break the line off.
        first = await anext(pages, list[Row]())
        return StreamingResponse(
            as_csv(columns, first, pages),
            media_type="text/csv",
            headers={"Content-Disposition": 'attachment; filename="usage.csv"'},
        )

    async def login(self, call: Call) -> Response:
        """Turn a key into a session of a browser, and send it on; Problem 401 for a wrong key."""
        raw = await read_body(call, MAX_FORM_BYTES)
        form = read_login(raw, call.headers.get("content-type"))
        token = await begin_session(self.db, form.key)
        if token is None:
            if "text/html" in call.headers.get("accept", ""):
                return RedirectResponse(f"/login?{urlencode({'wrong': 1, 'next': form.next})}", 303)
            raise unauthorized("This is no key, or it was revoked.")
        response = RedirectResponse(form.next, 303)
        response.set_cookie(
            COOKIE,
            token,
            max_age=SESSION_HOURS * 3600,
            httponly=True,
            samesite="strict",
            # Where a proxy ends TLS, only the browser knows of it.
            secure="https" in (call.scope["scheme"], call.headers.get("origin", "").split(":")[0]),
        )
        return response

    async def logout(self, call: Call) -> Response:
        """End the session of a browser, and send it to the first page."""
        token = call.cookies.get(COOKIE)
        if token is not None:
            await end_session(self.db, token)
        response = RedirectResponse("/", 303)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response


async def read_body(call: Call, limit: int) -> bytes:
    """The body of a call; Problem 413 when it has more bytes than `limit`, however it is sent.

    Problem 415 when it is compressed: small as it comes, it could be any size.
    """
    if call.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem("unsupported-media-type", "Send the body without a Content-Encoding.")
    # The framework's own limit answers in plain text where a call fails before its body is read.
    raw = bytearray()
    announced = int(call.headers.get("content-length", 0))
    if announced <= limit:
        async for part in call.stream():
            raw += part
            if len(raw) > limit:
                break
    if max(announced, len(raw)) > limit:
        raise Problem("body-too-large", f"A body may have {limit} bytes.")
    return bytes(raw)


@contextlib.asynccontextmanager
async def leaving(call: Call) -> AsyncIterator[Callable[[], bool]]:
    """Whether the caller has left, for as long as the block lasts, once its body is read."""
    # There is nothing else to receive by then. Waiting for it costs nothing; asking at each look
    # was a quarter of what a node did for calls that wait.
    last = asyncio.ensure_future(call.receive())
    try:
        yield lambda: last.done() and last.result()["type"] == "http.disconnect"
    finally:
        last.cancel()


def wants_events(call: Call) -> bool:
    """Whether a call would rather be answered with events than with one answer."""
    accept = ",".join(call.headers.getlist("accept"))
    return read_quality(accept, EVENTS) > read_quality(accept, "application/json")


def named(tenant: str, public_id: str, request: Request | None) -> dict[str, Any]:
    """A request as logs name it: by the caller's id, and by the number in the rows."""
    told = {"request_id": public_id, "tenant": tenant}
    if request is None:
        return told
    return told | {"request_no": request.id, "segments": request.segments}


def answered(answer: Answer | None, wanted: Preferences = NO_PREFERENCES) -> Response:
    """The HTTP form of an answer, 202 where it was wanted early; Problem 404 when there is none."""
    if answer is None:
        raise Problem("unknown-request", "There is no request of this id.")
    headers = {"Partway-Outcome": answer.status} | content_location(answer.id)
    is_early = wanted.respond_async and answer.status == "running"
    applied = ["respond-async"] if is_early else []
    if wanted.wait_seconds is not None:
        applied.append(f"wait={wanted.wait_seconds}")
    if applied:
        headers["Preference-Applied"] = ", ".join(applied)
    if is_early:
        headers["Location"] = headers["Content-Location"]
    return Response(
        answer.model_dump_json(),
        status_code=202 if is_early else 200,
        media_type="application/json",
        headers=headers,
    )


def content_location(public_id: str) -> dict[str, str]:
    """The header that says where the answer of a request can be read."""
    return {"Content-Location": f"/v1/requests/{public_id}"}


class Streamed(StreamingResponse):
    """Events piece by piece, of which no more are made once their reader has left."""

    async def stream_response(self, send: Send) -> None:
        """Send the pieces; nothing comes back."""
        async with aclosing(cast(AsyncGenerator[bytes, None], self.body_iterator)):
            await super().stream_response(send)


def refused(problem: Problem) -> Response:
    """The HTTP form of a problem, which is counted."""
    PROBLEMS[problem.kind].inc()
    return JSONResponse(
        problem.document(), problem.status, headers=problem.headers, media_type=PROBLEM_MEDIA_TYPE
    )


def guarded(app: ASGIApp, settings: AppSettings) -> ASGIApp:
    """The application, for calls that no foreign page can have made.

    Where a key is asked for, only what a browser sends by itself can be misused: a cookie, and the
    form that sets it. A program that shows a key may call the node by any name. All calls are
    looked at here, so that a route that is added later is guarded too.
    """
    names = allowed_hosts(settings)

    async def ask(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            call = Call(scope)
            if settings.keyless or COOKIE in call.cookies or scope["path"] in SESSION_PATHS:
                try:
                    check_origin(call.method, scope["scheme"], call.headers, names)
                except Problem as problem:
                    await refused(problem)(scope, receive, send)
                    return
        await app(scope, receive, send)

    return ask


def counted(app: ASGIApp) -> ASGIApp:
    """The application, in which each POST and PUT of a request is counted by how it ended.

    Around all else, so that those that come to no route are counted too.
    """

    async def ask(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (
            (scope["method"] == "POST" and scope["path"] == "/v1/requests")
            or (scope["method"] == "PUT" and scope["path"].startswith("/v1/requests/"))
        ):
            await app(scope, receive, send)
            return
        open_call = OpenCall()
        scope.setdefault("state", {})["open_call"] = open_call

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] >= 400 and open_call.outcome != "client_gone":
                    open_call.outcome = "rejected"
                # A stream has only begun, and ends when it knows how.
                if open_call.outcome is not None:
                    open_call.end(open_call.outcome)
            await send(message)

        try:
            await app(scope, receive, tell)
        except Exception:
            # The server's own handler answers, outside of this.
            open_call.end("rejected")
            raise

    return ask


def build(door: Door) -> FastAPI:
    """The ASGI application of one node."""
    api = FastAPI(
        title="Partway",
        summary="Send a document and a deadline; get back what is done by then.",
        version="1",
        # A call that is sent on to another address is sent twice, or without its body.
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    body = request_body(door.settings) | header_parameter(RESPOND_ASYNC)
    body_faults = ("invalid-json", "body-too-large", "unsupported-media-type", "invalid-request")
    by_name = ("unknown-request", "settled", "invalid-request", "unavailable")
    full = ("unavailable", "overloaded", "too-many-requests")
    known = ("unauthorized", "forbidden")

    Requester = Annotated[Caller, Depends(require_scope(door.db, door.settings, "requests"))]
    AnyCaller = Annotated[Caller, Depends(require_scope(door.db, door.settings, *SCOPES))]

    async def limited(response: Response, tenant: str) -> Response:
        per_minute = door.settings.tenant_characters_per_minute
        response.headers.update(await read_rate_headers(door.db, tenant, per_minute))
        return response

    @api.post(
        "/v1/requests",
        openapi_extra=body,
        responses=begin_responses(*known, *body_faults, *full),
    )
    async def post_request(call: Call, caller: Requester) -> Response:
        """Split, wait, answer; the server names the request."""
        return await limited(await door.answer(call, caller.tenant, None), caller.tenant)

    @api.put(
        "/v1/requests/{public_id}",
        openapi_extra=body,
        responses=begin_responses(*known, *body_faults, "settled", "other-body", *full),
    )
    async def put_request(call: Call, public_id: PublicId, caller: Requester) -> Response:
        """The same under the caller's own id: again, and the call joins or gets the same answer."""
        answer = await door.answer(call, caller.tenant, check_public_id(public_id))
        return await limited(answer, caller.tenant)

    @api.get(
        "/v1/requests/{public_id}",
        openapi_extra=header_parameter(WAIT),
        responses=answer_responses(*known, *by_name, headers=PREFERENCE_APPLIED),
    )
    async def get_request(call: Call, public_id: PublicId, caller: Requester) -> Response:
        """What is there now, or at the end: `Prefer: wait=N` waits for that, N seconds at most."""
        return await door.read(caller.tenant, public_id, call)

    @api.get(
        "/v1/requests/{public_id}/events",
        response_class=Streamed,
        openapi_extra=header_parameter(LAST_EVENT_ID),
        responses=event_responses(*known, *by_name),
    )
    async def get_events(call: Call, public_id: PublicId, caller: Requester) -> Response:
        """The answer as it grows, event by event; Last-Event-ID goes on where a stream broke."""
        return await door.watched(call, caller.tenant, public_id)

    @api.delete("/v1/requests/{public_id}", responses=answer_responses(*known, *by_name))
    async def cancel_request(public_id: PublicId, caller: Requester) -> Response:
        """Cancel: what is done stands and is billed, what runs may still be done."""
        return await door.cancel(caller.tenant, public_id)

    @api.get("/v1/limits", responses=problem_responses(*known, "unavailable"))
    async def get_limits(caller: Requester) -> LimitsAnswer:
        """What the tenant may send, and what is left of it."""
        return await read_limits(door.db, caller.tenant, door.settings)

    @api.get("/v1/usage", responses=usage_responses(*known, "invalid-request", "unavailable"))
    async def get_usage(
        call: Call,
        caller: AnyCaller,
        since: SinceTime = None,
        until: UntilTime = None,
        tenant: TenantName = None,
        written: Annotated[Literal["json", "csv"], Query(alias="format")] = "json",
        by: Annotated[
            Literal["day", "request"], Query(description="What a line of CSV is of.")
        ] = "day",
    ) -> Response:
        """What was metered from `from` to before `to`; this month so far where they are not sent.

        Of the caller's tenant; with the scope `operator` of any tenant, or of `*`, which is all.
        """
        whose = caller.tenant if tenant is None else tenant
        if whose != caller.tenant and "operator" not in caller.scopes:
            raise Problem(
                "forbidden", "Another tenant's usage needs a key with the scope operator."
            )
        period = await read_period(door.db, whose, since, until)
        if written == "csv" or "text/csv" in call.headers.get("accept", ""):
            return await door.table(period, by)
        sums = await sum_usage(door.db, period)
        return Response(sums.model_dump_json(by_alias=True), media_type="application/json")

    # These two are for pages, not for programs: they stand in no contract.
    @api.post("/login", include_in_schema=False)
    async def login(call: Call) -> Response:
        """Turn a key into a session of this browser, and go on."""
        return await door.login(call)

    @api.post("/logout", include_in_schema=False)
    async def logout(call: Call) -> Response:
        """End the session of this browser, and go to the first page."""
        return await door.logout(call)

    api.router.routes.extend(pages(door, read_body).routes)
    api.router.routes.extend(ops_pages(door, read_body).routes)

    @api.get("/livez", responses=problem_responses(), openapi_extra=WITHOUT_A_KEY)
    async def livez() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @api.get("/readyz", responses=problem_responses("unavailable"), openapi_extra=WITHOUT_A_KEY)
    async def readyz() -> dict[str, str]:
        """The node can take requests: it reaches the database and is not about to stop."""
        if door.stops_at != float("inf"):
            raise Problem("unavailable", "This node is stopping.", retry_after_seconds=1)
        await read_request(door.db, "", "")
        return {"status": "ok"}

    @api.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses=problem_responses(),
        openapi_extra=WITHOUT_A_KEY,
    )
    async def metrics() -> Response:
        """What this node counts, as Prometheus reads it; nothing in it is of a tenant."""
        return Response(render_metrics(REGISTRY), media_type=TEXT)

    @api.exception_handler(Problem)
    async def on_problem(_: Call, problem: Problem) -> Response:
        return refused(problem)

    @api.exception_handler(Settled)
    async def on_settled(_: Call, settled: Settled) -> Response:
        metered = settled.metered
        at = metered.settled_at.isoformat(timespec="microseconds") + "Z"
        return refused(
            Problem(
                "settled",
                "The answer is no longer kept; this is what was metered.",
                members={"metered": {**vars(metered), "settled_at": at}},
            )
        )

    @api.exception_handler(Unavailable)
    async def on_unavailable(_: Call, error: Unavailable) -> Response:
        return refused(
            Problem(
                "unavailable",
                f"{error}. Come back with the same id: nothing is computed or billed twice.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        )

    @api.exception_handler(RequestValidationError)
    async def on_wrong_query(_: Call, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return refused(Problem("invalid-request", f"{first['loc'][-1]}: {first['msg']}."))

    @api.exception_handler(HTTPException)
    async def on_http_error(call: Call, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:
            # The framework names the methods of the first route only.
            headers["Allow"] = ", ".join(sorted(methods(api, call)))
        PROBLEMS[NO_TYPE].inc()
        return JSONResponse(
            plain_document(error.status_code),
            error.status_code,
            headers,
            media_type=PROBLEM_MEDIA_TYPE,
        )

    @api.exception_handler(ClientDisconnect)
    async def on_leaving(call: Call, left: ClientDisconnect) -> Response:
        # In the middle of its body: nothing is stored, and nobody reads this.
        if hasattr(call.state, "open_call"):
            call.state.open_call.outcome = "client_gone"
        return refused(Problem("invalid-json", "The body ended early."))

    @api.exception_handler(Exception)
    async def on_failure(_: Call, error: Exception) -> Response:
        # The server logs it; a stack is nothing for a caller.
        return refused(Problem("internal", "The failure is logged. Nothing is billed for it."))

    api.add_middleware(guarded, settings=door.settings)
    api.add_middleware(counted)
    api.openapi_schema = complete_document(api.openapi())
    return api


def methods(api: FastAPI, call: Call) -> set[str]:
    """The methods that there are for the path of a call."""
    return {
        method
        for route in api.routes
        if isinstance(route, Route) and route.matches(call.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
