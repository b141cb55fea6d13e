"""The exceptions of the client, which carry all that the server reported."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

import httpx
from pydantic import TypeAdapter, ValidationError

MEDIA_TYPE = "application/problem+json"


class PartwayError(Exception):
    """The base of all exceptions of the client."""


class ServerUnavailable(PartwayError):
    """The server did not answer until the end of the retries. It may have stored the request."""


class NotPartway(PartwayError):
    """The answer is not from Partway. The URL may belong to another server."""


@dataclass(frozen=True)
class FieldError:
    """One error in a request: a JSON pointer ("" is the whole body) and what is wrong there."""

    pointer: str
    detail: str


@dataclass(frozen=True)
class Metered:
    """The record of a request that is settled."""

    status: str
    segments: int
    input_characters: int
    output_characters: int
    billed: bool
    settled_at: datetime


@dataclass(frozen=True)
class ProblemDocument:
    """A problem document (RFC 9457). Every member is optional."""

    type: str = "about:blank"
    title: str = ""
    detail: str = ""
    errors: tuple[FieldError, ...] = ()
    metered: Metered | None = None


PROBLEM_DOCUMENT = TypeAdapter(ProblemDocument)


class Problem(PartwayError):
    """The server, or a proxy in front of it, refused the call."""

    def __init__(
        self, status: int, document: ProblemDocument, retry_after_seconds: int | None
    ) -> None:
        self.status = status
        self.type = document.type
        self.title = document.title
        self.detail = document.detail
        self.errors = document.errors
        self.metered = document.metered
        self.retry_after_seconds = retry_after_seconds
        super().__init__(self._message())

    def _message(self) -> str:
        if self.errors:
            return "; ".join(
                f"{error.pointer or 'the body'} {error.detail}" for error in self.errors
            )
        return self.detail or self.title


def read_problem(reply: httpx.Response) -> Problem:
    """The problem in a reply with status 400 or more, from Partway or from a proxy."""
    document = ProblemDocument(title=phrase(reply.status_code))
    if reply.headers.get("content-type", "").startswith(MEDIA_TYPE):
        # When the document is invalid, the status is enough.
        with suppress(ValidationError):
            document = PROBLEM_DOCUMENT.validate_json(reply.content)
    # Only seconds are read. The other form, a date, depends on a clock that is not the server's.
    seconds = reply.headers.get("retry-after", "")
    return Problem(reply.status_code, document, int(seconds) if seconds.isdecimal() else None)


def phrase(status: int) -> str:
    """The name of an HTTP status; "HTTP status 599" for a status without a name."""
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else f"HTTP status {status}"
