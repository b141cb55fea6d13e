"""Callers write programs against the OpenAPI document, so it describes every possible response."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from partway.app.api.body import MAX_DEPTH, Body
from partway.app.api.usage import EVERYBODY, UsageAnswer
from partway.app.problems import KINDS, NO_TYPE, PROBLEM_MEDIA_TYPE, URN, FieldError, Problem
from partway.app.requests.answer import Answer, Counts, SegmentAnswer, Usage
from partway.app.requests.events import EVENT_ID, EVENTS, Accepted, Working
from partway.app.requests.ledger import Metered
from partway.app.requests.submission import PUBLIC_ID
from partway.app.settings import AppSettings

COMPONENTS = "#/components/schemas/{model}"

EXAMPLE_TIME = datetime(2026, 11, 30, 19, 47, 3, 746925, tzinfo=UTC)


class ProblemDocument(BaseModel):
    """What was wrong, and where (RFC 9457)."""

    model_config = ConfigDict(title="Problem")

    type: str = Field(
        description="The kind, for programs; about:blank when the status says everything.",
        json_schema_extra={"enum": [*(URN + kind for kind in KINDS), NO_TYPE]},
    )
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    errors: list[FieldError] = Field(
        [], description="The faults of a body with their places, at most twenty of them."
    )


class SettledProblemDocument(ProblemDocument):
    """The request was metered and deleted. Only what was metered is left."""

    model_config = ConfigDict(title="SettledProblem")

    metered: Metered


# The models by their names in the OpenAPI document.
PROBLEM_MODELS: Mapping[str, type[BaseModel]] = {
    "Problem": ProblemDocument,
    "SettledProblem": SettledProblemDocument,
}

RETRY_AFTER = {
    "Retry-After": {
        "description": "After how many seconds to retry.",
        "schema": {"type": "integer", "minimum": 1},
    }
}

WWW_AUTHENTICATE = {
    "WWW-Authenticate": {
        "description": "How to authenticate.",
        "required": True,
        "schema": {"const": "Bearer", "type": "string"},
    }
}

# Not required, since they are not sent when the tenant has no limit.
RATE_HEADERS = {
    "RateLimit": {
        "description": "How many characters may still be sent, and in how many seconds the "
        "allowance is full again (draft-ietf-httpapi-ratelimit-headers).",
        "schema": {"type": "string"},
        "example": '"characters";r=99997000;t=1',
    },
    "RateLimit-Policy": {
        "description": "How many characters may be sent in a minute.",
        "schema": {"type": "string"},
        "example": '"characters";q=100000000;qu="characters";w=60',
    },
}

# The headers of a problem, by its status.
PROBLEM_HEADERS: Mapping[int, Mapping[str, Any]] = {
    401: WWW_AUTHENTICATE,
    429: RETRY_AFTER | RATE_HEADERS,
    503: RETRY_AFTER,
}

ANSWER_HEADERS = {
    "Partway-Outcome": {
        "description": "The status of the answer, for logs and proxies.",
        "required": True,
        "schema": {"$ref": COMPONENTS.format(model="Outcome")},
    },
    "Content-Location": {
        "description": "Where this answer can be read until the request is settled.",
        "required": True,
        "schema": {"type": "string", "format": "uri-reference"},
    },
}

# The operation ids are the names of the functions in routes.py.
LINKS = {
    "read": {"operationId": "get_request", "parameters": {"public_id": "$response.body#/id"}},
    "cancel": {"operationId": "cancel_request", "parameters": {"public_id": "$response.body#/id"}},
    "watch": {"operationId": "get_events", "parameters": {"public_id": "$response.body#/id"}},
}

PREFERENCE_APPLIED = {
    "Preference-Applied": {
        "description": "The preferences of the header Prefer that were applied (RFC 7240).",
        "schema": {"type": "string"},
        "example": "wait=20",
    }
}

LOCATION = {
    "Location": {
        "description": "Where the answer can be read, and waited for.",
        "required": True,
        "schema": {"type": "string", "format": "uri-reference"},
    }
}

# Headers that a call may send. Unknown preferences are ignored.
RESPOND_ASYNC = {
    "name": "Prefer",
    "in": "header",
    "description": "respond-async: answer with 202 while the request still runs; with wait=N, "
    "after N seconds. The request continues when its caller disconnects (RFC 7240).",
    "schema": {"type": "string"},
    "example": "respond-async, wait=5",
}
WAIT = {
    "name": "Prefer",
    "in": "header",
    "description": "wait=N: answer when the request ends, or after N seconds (RFC 7240).",
    "schema": {"type": "string"},
    "example": "wait=20",
}
LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The id of the last event that was read. It says how many segments the reader "
    "has, and which. The stream continues with the others.",
    "schema": {"type": "string", "pattern": f"^({EVENT_ID.pattern})?$"},
    "example": "3:0-1,5",
}

# The data of the four events, by their names.
EVENT_MODELS: Mapping[str, type[BaseModel]] = {
    "accepted": Accepted,
    "segment": SegmentAnswer,
    "working": Working,
    "end": Answer,
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
    created_at=EXAMPLE_TIME,
    deadline_at=EXAMPLE_TIME + timedelta(seconds=20),
    finished_at=EXAMPLE_TIME + timedelta(seconds=20.003),
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


EXAMPLE_CSV = """\
day,tenant,status,billed,requests,segments,input_characters,output_characters
2026-11-30,acme,completed,true,1,1,11,9
"""


def api_router() -> APIRouter:
    """A router whose functions give their names to the operations in the OpenAPI document."""
    return APIRouter(generate_unique_id_function=lambda route: route.name)


def event_schema(name: str, model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a parsed event: its name, its JSON, and its id unless it has none."""
    content = {"$ref": COMPONENTS.format(model=model.__name__)}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": content}
    fields: dict[str, Any] = {"event": {"const": name}, "data": data}
    if name != "working":
        fields["id"] = {"type": "string", "pattern": f"^{EVENT_ID.pattern}$"}
    return {"type": "object", "required": list(fields), "properties": fields}


# OpenAPI 3.2 describes a stream in this form, and so does FastAPI.
EVENT_STREAM: dict[str, Any] = {
    EVENTS: {"itemSchema": {"oneOf": [event_schema(*named) for named in EVENT_MODELS.items()]}}
}


def request_body(settings: AppSettings) -> dict[str, Any]:
    """The OpenAPI description of the body of POST and PUT, with the limits of this node."""
    schema = Body.model_json_schema()
    schema.pop("$defs")
    fields = schema["properties"]
    longest = min(settings.max_body_bytes, settings.max_segments * settings.max_segment_characters)
    fields["document"]["anyOf"][0]["maxLength"] = longest
    fields["segments"]["anyOf"][0]["maxItems"] = settings.max_segments
    fields["segments"]["anyOf"][0]["items"]["maxLength"] = settings.max_segment_characters
    fields["params"]["additionalProperties"] = True
    fields["params"]["description"] += (
        f" At most {settings.max_params_bytes} bytes of JSON, {MAX_DEPTH} levels deep."
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


def header_parameter(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """The OpenAPI description of a header that FastAPI does not know of."""
    return {"parameters": [dict(parameter)]}


def answer_responses(
    *kinds: str, headers: dict[str, Any] | None = None
) -> dict[int | str, dict[str, Any]]:
    """The responses of a call that returns an answer, or one of these kinds of problem."""
    answer = {
        "model": Answer,
        "description": "The state of the request, with its results.",
        "headers": ANSWER_HEADERS | (headers or {}),
    }
    return {200: answer, **problem_responses(*kinds)}


def begin_responses(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """The responses of a call that sends a request, with one of these kinds of problem."""
    responses = answer_responses(*kinds, headers=RATE_HEADERS | PREFERENCE_APPLIED)
    early = {
        "description": "The request runs. The caller preferred not to wait for its end.",
        "headers": responses[200]["headers"] | LOCATION,
    }
    responses[200] |= {"links": LINKS, "content": EVENT_STREAM}
    responses[200]["description"] = (
        "The state of the request, with its results; as events with Accept: text/event-stream."
    )
    return {**responses, 202: {"model": Answer, "links": LINKS, **early}}


def event_responses(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """The responses of a call that streams events, or returns one of these kinds of problem."""
    location = {"Content-Location": ANSWER_HEADERS["Content-Location"]}
    events = {"description": "The events until `end`.", "headers": location}
    return {
        200: events | {"content": EVENT_STREAM},
        204: {"description": "The reader has the event `end` already."},
        **problem_responses(*kinds),
    }


def usage_responses(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """The responses of a call that returns what was metered, or one of these kinds of problem."""
    table = {"text/csv": {"schema": {"type": "string"}, "example": EXAMPLE_CSV}}
    usage = {"model": UsageAnswer, "description": "What was metered.", "content": table}
    return {200: usage, **problem_responses(*kinds)}


def problem_responses(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """The responses with these kinds of problem, by status."""
    by_status: dict[int, list[str]] = defaultdict(list)
    for kind in (*kinds, "internal"):
        by_status[KINDS[kind][0]].append(kind)
    return {status: problem_response(status, same) for status, same in by_status.items()}


def problem_response(status: int, kinds: list[str]) -> dict[str, Any]:
    """The response with this status, which these kinds of problem share."""
    model = "SettledProblem" if "settled" in kinds else "Problem"
    return {
        "description": "; ".join(KINDS[kind][1] for kind in kinds) + ".",
        "content": {
            PROBLEM_MEDIA_TYPE: {
                "schema": {"$ref": COMPONENTS.format(model=model)},
                "examples": {kind: {"value": example_problem(kind)} for kind in kinds},
            }
        },
        **({"headers": PROBLEM_HEADERS[status]} if status in PROBLEM_HEADERS else {}),
    }


def example_problem(kind: str) -> dict[str, Any]:
    """A problem document of this kind."""
    wrong = (
        [FieldError("/deadline_ms", "must be at most 55000")] if kind == "invalid-request" else None
    )
    members = {"metered": EXAMPLE_METERED} if kind == "settled" else None
    detail = f"{KINDS[kind][1]}."
    return Problem(kind, detail, wrong=wrong, members=members).document()


# The form of an id in a path.
ID_IN_PATH = {"pattern": f"^{PUBLIC_ID.pattern}$"}

# The forms of a time in a query. Without a time zone it is UTC.
TIME_IN_QUERY = {
    "anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]
}

TENANT_IN_QUERY = {
    "anyOf": [
        {"type": "string", "pattern": f"^{PUBLIC_ID.pattern}$"},
        {"type": "string", "const": EVERYBODY},
    ],
    "description": f"The tenant, for operators; {EVERYBODY} for all.",
}

# All operations need a key, except those that tell nothing about any tenant.
KEY_SCHEME = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "A key of the tenant. `partway keys create` prints it once.",
    }
}
WITHOUT_A_KEY: dict[str, Any] = {"security": []}


def complete_document(document: dict[str, Any]) -> dict[str, Any]:
    """FastAPI's OpenAPI document, with the schemas that FastAPI does not know of."""
    schemas = document["components"]["schemas"]
    _, more = models_json_schema(
        [
            *((model, "validation") for model in PROBLEM_MODELS.values()),
            *((Accepted, "serialization"), (Working, "serialization")),
        ],
        ref_template=COMPONENTS,
    )
    schemas |= more["$defs"]
    for name, model in PROBLEM_MODELS.items():
        schemas[name] = schemas.pop(model.__name__)
    # FastAPI would remove every null from an example of a response, so it stands in the schema.
    schemas["Answer"]["examples"] = [EXAMPLE_ANSWER.model_dump(mode="json")]
    schemas["Outcome"] = schemas["Answer"]["properties"]["status"]
    document["components"]["securitySchemes"] = KEY_SCHEME
    document["security"] = [{name: []} for name in KEY_SCHEME]
    return document
