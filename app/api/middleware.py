"""Every call passes this middleware, so that new routes are counted and guarded too."""

from fastapi import Request as Call
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from partway.app.api.access import COOKIE
from partway.app.api.guard import allowed_hosts, check_origin
from partway.app.api.replies import problem_reply
from partway.app.metrics import OpenCall
from partway.app.problems import Problem
from partway.app.settings import AppSettings

SESSION_PATHS = ("/login", "/logout")


def guarded(app: ASGIApp, settings: AppSettings) -> ASGIApp:
    """The application, without the calls that pages of other sites make.

    If keys are required, such a page can misuse only the cookie, which a browser adds by itself,
    and the form that sets it. A program that sends a key may call the node by any host name.
    """
    names = allowed_hosts(settings)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            call = Call(scope)
            if settings.keyless or COOKIE in call.cookies or scope["path"] in SESSION_PATHS:
                try:
                    check_origin(call.method, scope["scheme"], call.headers, names)
                except Problem as problem:
                    await problem_reply(problem)(scope, receive, send)
                    return
        await app(scope, receive, send)

    return serve


def counted(app: ASGIApp) -> ASGIApp:
    """The application, with each POST and PUT of a request counted by how it ended.

    It is the outermost layer, so that calls that reach no route are counted too.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (
            (scope["method"] == "POST" and scope["path"] == "/v1/requests")
            or (scope["method"] == "PUT" and scope["path"].startswith("/v1/requests/"))
        ):
            await app(scope, receive, send)
            return
        open_call = OpenCall()
        scope.setdefault("state", {})["open_call"] = open_call

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] >= 400 and open_call.outcome != "client_gone":
                    open_call.outcome = "rejected"
                # A stream has only begun here, and sets its outcome at its end.
                if open_call.outcome is not None:
                    open_call.end(open_call.outcome)
            await send(message)

        try:
            await app(scope, receive, send_counted)
        except Exception:
            # The server's own handler answers, outside of this function.
            open_call.end("rejected")
            raise

    return serve
