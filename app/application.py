"""One node is one ASGI application: the API, the pages and what every call passes through."""

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
        # A redirected call is sent twice, or without its body.
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
        # One flat list: an included router is matched in two steps, for each call.
        api.router.routes.extend(router.routes)
    add_error_handlers(api)
    api.add_middleware(guarded, settings=service.settings)
    api.add_middleware(counted)
    api.openapi_schema = complete_document(api.openapi())
    return api
