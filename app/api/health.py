"""Load balancers and operators ask whether a node runs, whether it is ready, and what it counts."""

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from partway.app.api.contract import WITHOUT_A_KEY, api_router, problem_responses
from partway.app.metrics import REGISTRY
from partway.app.problems import Problem
from partway.app.requests.answer import read_request
from partway.app.requests.service import RequestService
from partway.store.metrics import TEXT, render_metrics


def health_routes(service: RequestService) -> APIRouter:
    """The routes that need no key."""
    router = api_router()

    @router.get("/livez", responses=problem_responses(), openapi_extra=WITHOUT_A_KEY)
    async def livez() -> dict[str, str]:
        """The process runs."""
        return {"status": "ok"}

    @router.get("/readyz", responses=problem_responses("unavailable"), openapi_extra=WITHOUT_A_KEY)
    async def readyz() -> dict[str, str]:
        """The node accepts requests: it reaches the database, and it is not stopping."""
        if service.is_stopping:
            raise Problem("unavailable", "This node is stopping.", retry_after_seconds=1)
        await read_request(service.db, "", "")
        return {"status": "ok"}

    @router.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses=problem_responses(),
        openapi_extra=WITHOUT_A_KEY,
    )
    async def metrics() -> Response:
        """The metrics of this node, for Prometheus. They name no tenant."""
        return Response(render_metrics(REGISTRY), media_type=TEXT)

    return router
