"""Each kind of exception in a call is answered with one problem document (RFC 9457)."""

from fastapi import FastAPI, Response
from fastapi import Request as Call
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

from partway.app.api.replies import problem_reply
from partway.app.metrics import PROBLEMS
from partway.app.problems import NO_TYPE, PROBLEM_MEDIA_TYPE, Problem, plain_document
from partway.app.requests.ledger import Settled
from partway.store.database import Unavailable

# A database that restarts is usually available again, and the caller's request still runs.
RETRY_AFTER_SECONDS = 2


def add_error_handlers(api: FastAPI) -> None:
    """Register the handler of each kind of exception."""

    @api.exception_handler(Problem)
    async def on_problem(_: Call, problem: Problem) -> Response:
        return problem_reply(problem)

    @api.exception_handler(Settled)
    async def on_settled(_: Call, settled: Settled) -> Response:
        metered = settled.metered
        at = metered.settled_at.isoformat(timespec="microseconds") + "Z"
        return problem_reply(
            Problem(
                "settled",
                "The answer is no longer stored. `metered` says what was metered.",
                members={"metered": {**vars(metered), "settled_at": at}},
            )
        )

    @api.exception_handler(Unavailable)
    async def on_unavailable(_: Call, error: Unavailable) -> Response:
        return problem_reply(
            Problem(
                "unavailable",
                f"{error}. Retry with the same id: nothing is computed or billed twice.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        )

    @api.exception_handler(RequestValidationError)
    async def on_wrong_query(_: Call, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return problem_reply(Problem("invalid-request", f"{first['loc'][-1]}: {first['msg']}."))

    @api.exception_handler(HTTPException)
    async def on_http_error(call: Call, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:
            # FastAPI names only the methods of the first route that has this path.
            headers["Allow"] = ", ".join(sorted(allowed_methods(api, call)))
        PROBLEMS[NO_TYPE].inc()
        return JSONResponse(
            plain_document(error.status_code),
            error.status_code,
            headers,
            media_type=PROBLEM_MEDIA_TYPE,
        )

    @api.exception_handler(ClientDisconnect)
    async def on_disconnect(call: Call, error: ClientDisconnect) -> Response:
        # The caller left while it sent its body. Nothing is stored, and no one reads this answer.
        if hasattr(call.state, "open_call"):
            call.state.open_call.outcome = "client_gone"
        return problem_reply(Problem("invalid-json", "The body ended early."))

    @api.exception_handler(Exception)
    async def on_failure(_: Call, error: Exception) -> Response:
        # The server logs the stack; a caller cannot use it.
        return problem_reply(
            Problem("internal", "The error is logged. Nothing is billed for this call.")
        )


def allowed_methods(api: FastAPI, call: Call) -> set[str]:
    """The methods that the routes of this path accept."""
    return {
        method
        for route in api.routes
        if isinstance(route, Route) and route.matches(call.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
