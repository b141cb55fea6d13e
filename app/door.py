"""Callers need one synchronous door: these are its routes; they decide nothing that rows decide."""

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import FastAPI, Path, Response
from fastapi import Request as Call
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

from app.answer import Answer, Request, find, is_known, read_answer
from app.body import Submission, check_public_id, read_submission
from app.contract import ID_IN_PATH, LINKS, completed, gives, refuses, takes
from app.fanin import gather
from app.fanout import submit
from app.ledger import Settled
from app.problems import PROBLEM, Problem, plain
from app.room import Room
from app.settings import AppSettings
from app.watch import Watch
from store.close import close
from store.database import Database, Unavailable

# Until there are keys, everybody is one tenant; the rows carry it from the start.
DEFAULT_TENANT = "default"

# A restarted database is back by then, and the caller's request still runs.
RETRY_AFTER_SECONDS = 2

# The least and the most: the first of what waits has ended by then.
RETRY_WHEN_FULL_SECONDS = (2, 10)

# Checked by us: the framework would refuse it in another form.
PublicId = Annotated[str, Path(description="The caller's own id.", json_schema_extra=ID_IN_PATH)]


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
        self.room = Room(settings)
        self.watch = Watch(db, settings.poll_seconds)
        self.stops_at = float("inf")

    def drain(self) -> None:
        """Let open calls go on for drain_seconds, then answer each with what is there."""
        self.stops_at = min(self.stops_at, time.monotonic() + self.settings.drain_seconds)

    async def answer(self, call: Call, public_id: str | None) -> Response:
        """Split, store or join, wait, and answer: the whole of POST and PUT."""
        begun = await self.begin(call, public_id)
        request = begun.request
        if request is not None and request.status == "active":
            await gather(
                self.db,
                self.watch,
                request,
                lambda: min(request.ends_at, self.stops_at),
                left_for_good(call, begun),
            )
        return answered(await read_answer(self.db, DEFAULT_TENANT, begun.public_id))

    async def begin(self, call: Call, public_id: str | None) -> Begun:
        """Store or join the request of this call; its text is not kept here any longer."""
        arrived = time.monotonic()
        raw = await read_body(call, self.settings.max_body_bytes)
        media_type = call.headers.get("content-type")
        # In a thread: splitting a document of two megabytes would make every other call wait.
        new = await asyncio.to_thread(
            read_submission, raw, media_type, public_id, str(uuid.uuid4()), self.settings
        )
        created = await self.store(new, arrived)
        if public_id is None:
            # An id that we made and that is there already is ours: the commit's reply was lost.
            created = True
        request = await find(self.db, DEFAULT_TENANT, new.public_id)
        if request is not None and request.body_hash != new.body_hash:
            raise Problem("other-body", f"The id {new.public_id} was sent with another body.")
        return Begun(new.public_id, request, created and new.on_disconnect == "cancel")

    async def store(self, new: Submission, arrived: float) -> bool:
        """True when this call began the request; False when it joins. Problem 503 when full."""
        if await self.room.is_full(self.db):
            # Whoever comes back for an answer adds nothing to what waits.
            if not await is_known(self.db, DEFAULT_TENANT, new.public_id):
                raise Problem(
                    "overloaded",
                    "As much waits as this service takes; nothing was stored.",
                    # Uneven, so that those who were refused together do not come back together.
                    retry_after_seconds=random.randint(*RETRY_WHEN_FULL_SECONDS),
                )
            return False
        with self.room.storing(new.pieces.characters):
            return await submit(self.db, DEFAULT_TENANT, new, time.monotonic() - arrived)

    async def read(self, public_id: str) -> Response:
        """What is there now."""
        check_public_id(public_id)
        return answered(await read_answer(self.db, DEFAULT_TENANT, public_id))

    async def cancel(self, public_id: str) -> Response:
        """Close a running request as cancelled, and answer with what stands."""
        check_public_id(public_id)
        request = await find(self.db, DEFAULT_TENANT, public_id)
        # Only an active one: closing a final one would wait for the settlement that may hold it.
        if request is not None and request.status == "active":
            await close(self.db, request.id, "cancelled")
        answer = await read_answer(self.db, DEFAULT_TENANT, public_id)
        if answer is not None and answer.status == "running":
            # Stored between the two looks; whoever cancels must not be told that it goes on.
            return await self.cancel(public_id)
        return answered(answer)


async def read_body(call: Call, limit: int) -> bytes:
    """The body of a call; Problem 413 when it has more bytes than `limit`, however it is sent."""
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


def left_for_good(call: Call, begun: Begun) -> Callable[[], Awaitable[bool]]:
    """Whether the caller has gone and its request is to end with that.

    Never true for one who only joined: the call that began the request may still be waiting.
    """

    async def gone() -> bool:
        return begun.ends_with_its_caller and await call.is_disconnected()

    return gone


def answered(answer: Answer | None) -> Response:
    """The HTTP form of an answer; Problem 404 when there is none."""
    if answer is None:
        raise Problem("unknown-request", "There is no request of this id.")
    return Response(
        answer.model_dump_json(),
        media_type="application/json",
        headers={"Partway-Outcome": answer.status, "Content-Location": f"/v1/requests/{answer.id}"},
    )


def refused(problem: Problem) -> Response:
    """The HTTP form of a problem."""
    headers = {}
    if problem.retry_after_seconds is not None:
        headers["Retry-After"] = str(problem.retry_after_seconds)
    return JSONResponse(
        problem.document(), status_code=problem.status, media_type=PROBLEM, headers=headers
    )


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
    body = takes(door.settings)
    body_faults = ("invalid-json", "body-too-large", "unsupported-media-type", "invalid-request")
    by_name = ("unknown-request", "settled", "invalid-request", "unavailable")

    @api.post(
        "/v1/requests",
        openapi_extra=body,
        responses=gives(*body_faults, "unavailable", "overloaded", links=LINKS),
    )
    async def post_request(call: Call) -> Response:
        """Split, wait, answer; the server names the request."""
        return await door.answer(call, None)

    @api.put(
        "/v1/requests/{public_id}",
        openapi_extra=body,
        responses=gives(
            *(*body_faults, "settled", "other-body", "unavailable", "overloaded"), links=LINKS
        ),
    )
    async def put_request(call: Call, public_id: PublicId) -> Response:
        """The same under the caller's own id: again, and the call joins or gets the same answer."""
        return await door.answer(call, check_public_id(public_id))

    @api.get("/v1/requests/{public_id}", responses=gives(*by_name))
    async def get_request(public_id: PublicId) -> Response:
        """What is there now."""
        return await door.read(public_id)

    @api.delete("/v1/requests/{public_id}", responses=gives(*by_name))
    async def cancel_request(public_id: PublicId) -> Response:
        """Cancel: what is done stands and is billed, what runs may still be done."""
        return await door.cancel(public_id)

    @api.get("/livez", responses=refuses())
    async def livez() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @api.get("/readyz", responses=refuses("unavailable"))
    async def readyz() -> dict[str, str]:
        """The node can take requests: it reaches the database and is not about to stop."""
        if door.stops_at != float("inf"):
            raise Problem("unavailable", "This node is stopping.", retry_after_seconds=1)
        await find(door.db, DEFAULT_TENANT, "")
        return {"status": "ok"}

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

    @api.exception_handler(HTTPException)
    async def on_http_error(call: Call, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:
            # The framework names the methods of the first route only.
            headers["Allow"] = ", ".join(sorted(methods(api, call)))
        return JSONResponse(
            plain(error.status_code), error.status_code, headers, media_type=PROBLEM
        )

    @api.exception_handler(ClientDisconnect)
    async def on_leaving(_: Call, left: ClientDisconnect) -> Response:
        # In the middle of its body: nothing is stored, and nobody reads this.
        return refused(Problem("invalid-json", "The body ended early."))

    @api.exception_handler(Exception)
    async def on_failure(_: Call, error: Exception) -> Response:
        # The server logs it; a stack is nothing for a caller.
        return refused(Problem("internal", "The failure is logged. Nothing is billed for it."))

    api.openapi_schema = completed(api.openapi())
    return api


def methods(api: FastAPI, call: Call) -> set[str]:
    """The methods that there are for the path of a call."""
    return {
        method
        for route in api.routes
        if isinstance(route, Route) and route.matches(call.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
