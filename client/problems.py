"""What can go wrong with a call is an exception, and says as much as the server did."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

import httpx
from pydantic import TypeAdapter, ValidationError

MEDIA_TYPE = "application/problem+json"


class PartwayError(Exception):
    """Whatever keeps a call from being answered."""


class ServerUnavailable(PartwayError):
    """No answer, for as long as the call was tried; the server may have taken the request."""


class NotPartway(PartwayError):
    """Something answered, and not in the way of Partway: perhaps it is another server."""


@dataclass(frozen=True)
class FieldError:
    """One fault of a request: a JSON pointer ("" is the whole body) and what is wrong there."""

    pointer: str
    detail: str


@dataclass(frozen=True)
class Metered:
    """What is left of a request that is settled."""

    status: str
    segments: int
    input_characters: int
    output_characters: int
    billed: bool
    settled_at: datetime


@dataclass(frozen=True)
class Document:
    """A problem document (RFC 9457), of which every member may be left out."""

    type: str = "about:blank"
    title: str = ""
    detail: str = ""
    errors: tuple[FieldError, ...] = ()
    metered: Metered | None = None


DOCUMENT = TypeAdapter(Document)


class Problem(PartwayError):
    """The server, or a proxy before it, refused the call and said why."""

    def __init__(self, status: int, document: Document, retry_after_seconds: int | None) -> None:
        self.status = status
        self.type = document.type
        self.title = document.title
        self.detail = document.detail
        self.errors = document.errors
        self.metered = document.metered
        self.retry_after_seconds = retry_after_seconds
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        if self.errors:
            return "; ".join(f"{w.pointer or 'the body'} {w.detail}" for w in self.errors)
        return self.detail or self.title


def read_problem(reply: httpx.Response) -> Problem:
    """The problem that a reply of status 400 or more stands for, whoever sent it."""
    document = Document(title=phrase(reply.status_code))
    if reply.headers.get("content-type", "").startswith(MEDIA_TYPE):
        # The status says what is to be done, also where the rest is garbled.
        with suppress(ValidationError):
            document = DOCUMENT.validate_json(reply.content)
    # Only as seconds: a date, the other form, would be read by a clock that is not the server's.
    seconds = reply.headers.get("retry-after", "")
    return Problem(reply.status_code, document, int(seconds) if seconds.isdecimal() else None)


def phrase(status: int) -> str:
    """The name of an HTTP status; "HTTP status 599" for one that has none."""
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else f"HTTP status {status}"
