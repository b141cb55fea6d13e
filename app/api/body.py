"""A request body is checked in one place, and each fault in it is named with its place."""

import hashlib
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal, NoReturn

from fastapi import Request as Call
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator

from partway.app.problems import FieldError, Problem
from partway.app.requests.split import Pieces, split
from partway.app.requests.submission import PUBLIC_ID, Submission
from partway.app.settings import AppSettings

# A body of two megabytes can have a million faults. A person reads this many.
MAX_ERRORS_NAMED = 20

# Far below the depth at which the JSON parsers of this program and of handlers fail.
MAX_DEPTH = 100

# The name of an unknown field may be as long as the body, so it is not repeated whole.
MAX_NAME_CHARACTERS = 64


class Body(BaseModel):
    """The body of POST and PUT /v1/requests."""

    model_config = ConfigDict(extra="forbid", strict=True)

    document: str | None = Field(
        None, description="The text to be split. Send either this or `segments`.", min_length=1
    )
    # fail_fast: to name a million wrong items would take seconds, in which every other call waits.
    segments: list[str] | None = Field(
        None,
        description="The segments, if the caller splits its text itself.",
        min_length=1,
        fail_fast=True,
    )
    language: str = Field(
        "en",
        description="The language of the text (BCP 47), which decides where it is split.",
        pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$",
        max_length=35,
    )
    params: dict[str, JsonValue] = Field(
        default_factory=dict, description="Given to the handler unchanged."
    )
    deadline_ms: int = Field(
        30_000, ge=1, description="How long the caller waits for the answer, in milliseconds."
    )
    on_missing: Literal["null", "source", "omit"] | None = Field(
        "null",
        description="What `document` has in place of a segment that is not done: with `source` its "
        "source, with `omit` nothing. With `null` there is no document then.",
    )
    on_disconnect: Literal["continue", "cancel"] | None = Field(
        None,
        description="What happens to the request when its caller disconnects. By default it "
        "continues after PUT, which can be retried with the same id, and is closed after POST.",
    )

    @field_validator("deadline_ms", mode="before")
    @classmethod
    def _to_integer(cls, value: object) -> object:
        # In JSON Schema 5.0 is an integer, and some languages write every number in this form.
        return int(value) if isinstance(value, float) and value.is_integer() else value


def invalid_request(wrong: list[FieldError]) -> Problem:
    """The problem that names these faults."""
    return Problem("invalid-request", "The request has faults.", wrong=wrong)


async def read_body(call: Call, limit: int) -> bytes:
    """The body of a call; Problem 413 when it has more bytes than `limit`.

    Raises Problem 415 when it is compressed, since a small body could expand to any size.
    """
    if call.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem("unsupported-media-type", "Send the body without a Content-Encoding.")
    # FastAPI's own limit sends plain text when a call fails before its body is read.
    raw = bytearray()
    announced = int(call.headers.get("content-length", 0))
    if announced <= limit:
        async for part in call.stream():
            raw += part
            if len(raw) > limit:
                break
    if max(announced, len(raw)) > limit:
        raise Problem("body-too-large", f"A body may have at most {limit} bytes.")
    return bytes(raw)


def read_submission(
    raw: bytes, content_type: str | None, public_id: str | None, own_id: str, settings: AppSettings
) -> Submission:
    """The request in a body. Raises Problem 400, 415 or 422 that names each fault and its place.

    `public_id` is the id that the caller chose. If it is None, the request gets `own_id`.
    """
    media_type = (content_type or "").split(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem("unsupported-media-type", "Send the request as application/json.")
    value = read_json(raw)
    raise_if_any(find_unknown_fields(value))
    try:
        body = Body.model_validate(value)
    except ValidationError as error:
        raise invalid_request(to_field_errors(error)) from None
    raise_if_any(find_over_limits(body, settings))
    if body.document is not None:
        pieces = split(
            body.document,
            body.language,
            min(settings.target_segments, settings.max_segments),
            settings.max_segment_characters,
        )
    else:
        pieces = Pieces([], body.segments or [])
    raise_if_any(find_too_many(pieces.sources, "/document", settings))
    canonical = json.dumps(body.model_dump(), sort_keys=True).encode()
    return Submission(
        public_id=public_id or own_id,
        body_hash=hashlib.sha256(canonical).digest(),
        pieces=pieces,
        is_document=body.document is not None,
        params=json.dumps(body.params, ensure_ascii=False),
        on_missing=body.on_missing or "null",
        on_disconnect=body.on_disconnect or ("continue" if public_id else "cancel"),
        deadline_ms=min(body.deadline_ms, settings.max_deadline_ms),
    )


def raise_if_any(wrong: Iterator[FieldError]) -> None:
    """Raise Problem 422 with the first of these faults, when there is any."""
    first = list(islice(wrong, MAX_ERRORS_NAMED))
    if first:
        raise invalid_request(first)


def check_public_id(public_id: str) -> str:
    """The id unchanged; Problem 422 when it is not valid."""
    if PUBLIC_ID.fullmatch(public_id) is None:
        raise Problem(
            "invalid-request",
            "An id begins with a letter or digit. Up to 63 letters, digits and . _ ~ - can follow.",
        )
    return public_id


def read_json(raw: bytes) -> Any:
    """The value in a JSON text. Raises Problem 400 when it is not valid, 422 when not storable."""

    def not_a_number(literal: str) -> NoReturn:
        raise Problem("invalid-json", f"The body is not JSON: {literal} is not a number.")

    def finite(digits: str) -> float:
        number = float(digits)
        if number in (float("inf"), float("-inf")):
            not_a_number(digits[:40])
        return number

    try:
        value = json.loads(raw.decode(), parse_constant=not_a_number, parse_float=finite)
    except UnicodeDecodeError as error:
        raise Problem(
            "invalid-json", f"The body is not UTF-8: byte {error.start} cannot be decoded."
        ) from None
    except json.JSONDecodeError as error:
        raise Problem(
            "invalid-json",
            f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
        ) from None
    except RecursionError:
        raise Problem("invalid-json", "The body is nested too deeply.") from None
    except ValueError:  # an integer with more digits than Python reads
        raise Problem("invalid-json", "The body has a number with too many digits.") from None
    raise_if_any(find_unstorable(value, "", 0))
    return value


def find_unstorable(value: Any, pointer: str, depth: int) -> Iterator[FieldError]:
    """The places at and below `pointer` that are too deep, or cannot be encoded as UTF-8."""
    if depth > MAX_DEPTH:
        yield FieldError(pointer, f"is more than {MAX_DEPTH} levels deep")
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            yield FieldError(pointer, f"character {error.start} is half of a surrogate pair")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from find_unstorable(item, f"{pointer}/{i}", depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from find_unstorable(key, pointer, depth)
            yield from find_unstorable(item, f"{pointer}/{escape_pointer(key)}", depth + 1)


def find_unknown_fields(value: Any) -> Iterator[FieldError]:
    """The fields of a body that a request does not have, or one fault when it is no object."""
    if not isinstance(value, dict):
        yield FieldError("", "must be a JSON object")
        return
    for key in value:
        if key not in Body.model_fields:
            yield FieldError(f"/{escape_pointer(key)}", "is not a field of a request")


def escape_pointer(key: str) -> str:
    """The name of a field as a part of a JSON pointer (RFC 6901), cut when it is too long."""
    name = key[:MAX_NAME_CHARACTERS].encode("utf-8", "replace").decode()
    return name.replace("~", "~0").replace("/", "~1")


def to_field_errors(error: ValidationError) -> list[FieldError]:
    """The faults that pydantic found, each with its JSON pointer. The text is never repeated."""
    return [
        FieldError(
            "".join(f"/{escape_pointer(str(part))}" for part in fault["loc"]),
            # The message continues a sentence that begins with the place.
            fault["msg"][0].lower() + fault["msg"][1:],
        )
        for fault in error.errors(include_url=False, include_input=False, include_context=False)
    ]


def find_over_limits(body: Body, settings: AppSettings) -> Iterator[FieldError]:
    """The places where a body exceeds the limits of this node."""
    if (body.document is None) == (body.segments is None):
        yield FieldError("", "must have either document or segments")
    # A default that is too long for this node is shortened, so it is no fault.
    if "deadline_ms" in body.model_fields_set and body.deadline_ms > settings.max_deadline_ms:
        yield FieldError("/deadline_ms", f"must be at most {settings.max_deadline_ms}")
    if len(json.dumps(body.params, ensure_ascii=False).encode()) > settings.max_params_bytes:
        yield FieldError("/params", f"must be at most {settings.max_params_bytes} bytes")
    yield from find_too_many(body.segments or [], "/segments", settings)
    for index, source in enumerate(body.segments or []):
        if len(source) > settings.max_segment_characters:
            limit = settings.max_segment_characters
            yield FieldError(f"/segments/{index}", f"must be at most {limit} characters")


def find_too_many(sources: list[str], pointer: str, settings: AppSettings) -> Iterator[FieldError]:
    """A fault when there are more segments than this node allows."""
    if len(sources) > settings.max_segments:
        yield FieldError(
            pointer, f"gives {len(sources)} segments; {settings.max_segments} are allowed"
        )
