"""Callers read what they may send and what was metered for them, by these routes."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi import Request as Call
from fastapi.responses import StreamingResponse

from partway.app.api.access import SCOPES, Caller, require_scope
from partway.app.api.contract import (
    TENANT_IN_QUERY,
    TIME_IN_QUERY,
    api_router,
    problem_responses,
    usage_responses,
)
from partway.app.api.limits import LimitsAnswer, read_limits
from partway.app.api.routes import KEY_PROBLEMS
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
from partway.app.problems import Problem
from partway.app.requests.service import RequestService
from partway.store.database import Database, Row

SinceTime = Annotated[str | None, Query(alias="from", json_schema_extra=TIME_IN_QUERY)]
UntilTime = Annotated[str | None, Query(alias="to", json_schema_extra=TIME_IN_QUERY)]
TenantName = Annotated[str | None, Query(json_schema_extra=TENANT_IN_QUERY)]


async def csv_reply(db: Database, period: Period, by: Literal["day", "request"]) -> Response:
    """What was metered as CSV, with a line for each day or each request, sent while it is read."""
    columns, pages = (
        (DAY_COLUMNS, by_day(db, period))
        if by == "day"
        else (REQUEST_COLUMNS, by_request(db, period))
    )
    # Read before the first byte is sent, since a later error can only break the reply off.
    first = await anext(pages, list[Row]())
    return StreamingResponse(
        as_csv(columns, first, pages),
        media_type="text/csv",
        headers={"Content-Disposition": 'attachment; filename="usage.csv"'},
    )


def account_routes(service: RequestService) -> APIRouter:
    """The routes of /v1/limits and /v1/usage."""
    router = api_router()
    db, settings = service.db, service.settings
    Requester = Annotated[Caller, Depends(require_scope(db, settings, "requests"))]
    AnyCaller = Annotated[Caller, Depends(require_scope(db, settings, *SCOPES))]

    @router.get("/v1/limits", responses=problem_responses(*KEY_PROBLEMS, "unavailable"))
    async def get_limits(caller: Requester) -> LimitsAnswer:
        """What the tenant may send, and what is left of it."""
        return await read_limits(db, caller.tenant, settings)

    @router.get(
        "/v1/usage", responses=usage_responses(*KEY_PROBLEMS, "invalid-request", "unavailable")
    )
    async def get_usage(
        call: Call,
        caller: AnyCaller,
        since: SinceTime = None,
        until: UntilTime = None,
        tenant: TenantName = None,
        format_: Annotated[Literal["json", "csv"], Query(alias="format")] = "json",
        by: Annotated[
            Literal["day", "request"], Query(description="What each line of CSV stands for.")
        ] = "day",
    ) -> Response:
        """What was metered from `from` until before `to`; without them, in this month so far.

        It is for the caller's tenant. With the scope `operator`, it can be for any tenant, or for
        `*`, which is all of them.
        """
        whose = caller.tenant if tenant is None else tenant
        if whose != caller.tenant and "operator" not in caller.scopes:
            raise Problem(
                "forbidden", "Another tenant's usage needs a key with the scope operator."
            )
        period = await read_period(db, whose, since, until)
        if format_ == "csv" or "text/csv" in call.headers.get("accept", ""):
            return await csv_reply(db, period, by)
        sums = await sum_usage(db, period)
        return Response(sums.model_dump_json(by_alias=True), media_type="application/json")

    return router
