"""A node serves one ASGI application, built here from the API, the pages and the middleware."""

from fastapi import FastAPI

from partway.app.api.account import account_routes
from partway.app.api.contract import complete_document
from partway.app.api.errors import add_error_handlers
from partway.app.api.health import health_routes
from partway.app.api.middleware import counted, guarded
from partway.app.api.routes import request_routes
from partway.app.api.sessions import session_routes
from partway.app.pages.ops import ops_pages
from partway.app.pages.request_pages import request_pages
from partway.app.requests.service import RequestService


def build(service: RequestService) -> FastAPI:
    """The ASGI application of one node."""
    api = FastAPI(
        title="Partway",
        summary="Send a document and a deadline; get back what is done by then.",
        version="1",
        # A client that follows a redirect sends the body twice, or not at all.
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    for router in (
        request_routes(service),
        account_routes(service),
        session_routes(service),
        request_pages(service),
        ops_pages(service),
        health_routes(service),
    ):
        # FastAPI matches an included router in two steps at each call; a flat list takes one.
        api.router.routes.extend(router.routes)
    add_error_handlers(api)
    api.add_middleware(guarded, settings=service.settings)
    api.add_middleware(counted)
    api.openapi_schema = complete_document(api.openapi())
    return api
