"""Callers write programs against the OpenAPI document, so it names all that a call may answer."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from app import problems
from app.answer import Answer, Counts, SegmentAnswer, Usage
from app.body import DEEPEST, PUBLIC_ID, Body
from app.ledger import Metered
from app.problems import KINDS, PROBLEM, URN, Wrong
from app.settings import AppSettings

COMPONENTS = "#/components/schemas/{model}"

BEGAN = datetime(2026, 11, 30, 19, 47, 3, 746925, tzinfo=UTC)


class Problem(BaseModel):
    """What was wrong, and where (RFC 9457)."""

    type: str = Field(
        description="The kind, for programs; about:blank where the status says it all.",
        json_schema_extra={"enum": [*(URN + kind for kind in KINDS), "about:blank"]},
    )
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    errors: list[Wrong] = Field(
        [], description="Each fault of a body with its place, the first twenty of them."
    )


class SettledProblem(Problem):
    """The request was metered and deleted; what was metered is all that is left."""

    metered: Metered


RETRY_AFTER = {
    "Retry-After": {
        "description": "After how many seconds to come back.",
        "schema": {"type": "integer", "minimum": 1},
    }
}

ANSWER_HEADERS = {
    "Partway-Outcome": {
        "description": "The status of the answer, for logs and proxies.",
        "required": True,
        "schema": {"$ref": COMPONENTS.format(model="Outcome")},
    },
    "Content-Location": {
        "description": "Where this answer can be read until it is settled.",
        "required": True,
        "schema": {"type": "string", "format": "uri-reference"},
    },
}

# Named by the operations of the door.
LINKS = {
    "read": {"operationId": "get_request", "parameters": {"public_id": "$response.body#/id"}},
    "cancel": {"operationId": "cancel_request", "parameters": {"public_id": "$response.body#/id"}},
}

EXAMPLE_BODIES: Mapping[str, Any] = {
    "document": {"value": {"document": "It is late. Good night!", "deadline_ms": 20_000}},
    "segments": {
        "value": {"segments": ["It is late.", "Good night!"], "params": {"target": "spa"}}
    },
}

EXAMPLE_ANSWER = Answer(
    id="letter-18",
    status="partial",
    created_at=BEGAN,
    deadline_at=BEGAN + timedelta(seconds=20),
    finished_at=BEGAN + timedelta(seconds=20.003),
    counts=Counts(total=2, done=1, failed=0, timed_out=1, cancelled=0),
    usage=Usage(segments=1, input_characters=11, output_characters=9, billed=True, final=True),
    document=None,
    segments=[
        SegmentAnswer(index=0, status="done", result="Es tarde.", attempts=1),
        SegmentAnswer(index=1, status="timed_out"),
    ],
)

EXAMPLE_METERED = {
    "status": "completed",
    "segments": 1,
    "input_characters": 11,
    "output_characters": 9,
    "billed": True,
    "settled_at": "2026-11-30T19:48:24.102938Z",
}


def takes(settings: AppSettings) -> dict[str, Any]:
    """The body of POST and PUT, with the limits of this node."""
    schema = Body.model_json_schema()
    schema.pop("$defs")
    fields = schema["properties"]
    longest = min(settings.max_body_bytes, settings.max_segments * settings.max_segment_characters)
    fields["document"]["anyOf"][0]["maxLength"] = longest
    fields["segments"]["anyOf"][0]["maxItems"] = settings.max_segments
    fields["segments"]["anyOf"][0]["items"]["maxLength"] = settings.max_segment_characters
    fields["params"]["additionalProperties"] = True
    fields["params"]["description"] += (
        f" At most {settings.max_params_bytes} bytes of JSON, {DEEPEST} levels deep."
    )
    fields["deadline_ms"]["maximum"] = settings.max_deadline_ms
    fields["deadline_ms"]["default"] = min(
        fields["deadline_ms"]["default"], settings.max_deadline_ms
    )
    schema["oneOf"] = [
        {
            "required": [given],
            "properties": {given: {"not": {"type": "null"}}, other: {"type": "null"}},
        }
        for given, other in (("document", "segments"), ("segments", "document"))
    ]
    content = {"application/json": {"schema": schema, "examples": dict(EXAMPLE_BODIES)}}
    return {"requestBody": {"required": True, "content": content}}


def gives(*kinds: str, links: Mapping[str, Any] | None = None) -> dict[int | str, dict[str, Any]]:
    """The responses of a call that answers a request, or with one of these kinds of problem."""
    answer = {
        "model": Answer,
        "description": "What is there of the request.",
        "headers": ANSWER_HEADERS,
        **({"links": links} if links else {}),
    }
    return {200: answer, **refuses(*kinds)}


def refuses(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """The responses with one of these kinds of problem, by their status."""
    by_status: dict[int, list[str]] = defaultdict(list)
    for kind in (*kinds, "internal"):
        by_status[KINDS[kind][0]].append(kind)
    return {status: refusal(status, kinds_of_it) for status, kinds_of_it in by_status.items()}


def refusal(status: int, kinds: list[str]) -> dict[str, Any]:
    """The response of this status, which these kinds of problem share."""
    model = "SettledProblem" if "settled" in kinds else "Problem"
    return {
        "description": "; ".join(KINDS[kind][1] for kind in kinds) + ".",
        "content": {
            PROBLEM: {
                "schema": {"$ref": COMPONENTS.format(model=model)},
                "examples": {kind: {"value": example(kind)} for kind in kinds},
            }
        },
        **({"headers": RETRY_AFTER} if status == 503 else {}),
    }


def example(kind: str) -> dict[str, Any]:
    """A problem of this kind, as it is answered."""
    wrong = [Wrong("/deadline_ms", "must be at most 55000")] if kind == "invalid-request" else None
    members = {"metered": EXAMPLE_METERED} if kind == "settled" else None
    said = f"{KINDS[kind][1]}."
    return problems.Problem(kind, said, wrong=wrong, members=members).document()


# How an id is written, where a path has one.
ID_IN_PATH = {"pattern": f"^{PUBLIC_ID.pattern}$"}


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document of the framework, with the schemas that it cannot know of."""
    schemas = document["components"]["schemas"]
    _, ours = models_json_schema(
        [(Problem, "validation"), (SettledProblem, "validation")], ref_template=COMPONENTS
    )
    schemas |= ours["$defs"]
    # Not with the response: the framework would take every null out of it.
    schemas["Answer"]["examples"] = [EXAMPLE_ANSWER.model_dump(mode="json")]
    schemas["Outcome"] = schemas["Answer"]["properties"]["status"]
    return document
