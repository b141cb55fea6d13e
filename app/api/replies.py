"""Each answer and each problem has one HTTP form, the same for every route."""

from fastapi import Response
from fastapi.responses import JSONResponse

from partway.app.api.prefer import NO_PREFERENCES, Preferences
from partway.app.metrics import PROBLEMS
from partway.app.problems import PROBLEM_MEDIA_TYPE, Problem
from partway.app.requests.answer import Answer


def answer_reply(answer: Answer | None, applied: Preferences = NO_PREFERENCES) -> Response:
    """The HTTP form of an answer, 202 for an early one; Problem 404 when there is none."""
    if answer is None:
        raise Problem("unknown-request", "There is no request with this id.")
    headers = {"Partway-Outcome": answer.status} | content_location(answer.id)
    is_early = applied.respond_async and answer.status == "running"
    preferences = ["respond-async"] if is_early else []
    if applied.wait_seconds is not None:
        preferences.append(f"wait={applied.wait_seconds}")
    if preferences:
        headers["Preference-Applied"] = ", ".join(preferences)
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


def problem_reply(problem: Problem) -> Response:
    """The HTTP form of a problem, which is counted."""
    PROBLEMS[problem.kind].inc()
    return JSONResponse(
        problem.document(), problem.status, headers=problem.headers, media_type=PROBLEM_MEDIA_TYPE
    )
