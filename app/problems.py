"""Every error is sent as one problem document (RFC 9457) that says what was wrong and where."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

PROBLEM_MEDIA_TYPE = "application/problem+json"

# The `type` of a problem is this prefix and its kind.
URN = "urn:partway:problem:"

# The `type` of a problem whose status says everything, such as 405.
NO_TYPE = "about:blank"

# Each kind of problem, with its HTTP status and its title.
KINDS: Mapping[str, tuple[int, str]] = {
    "invalid-json": (400, "The body is not JSON"),
    "unauthorized": (401, "The caller is not known"),
    "forbidden": (403, "The key does not allow this"),
    "foreign-origin": (403, "The call comes from another site"),
    "unknown-request": (404, "There is no such request"),
    "settled": (410, "The request is settled"),
    "body-too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "The media type of the body is not supported"),
    "misdirected": (421, "The host name is not one of this service"),
    "invalid-request": (422, "The request is not valid"),
    "id-reused": (422, "The id was used with another body"),
    "too-many-requests": (429, "The tenant has reached a limit"),
    "overloaded": (503, "The service is full"),
    "internal": (500, "Partway has failed"),
    "unavailable": (503, "The database is unavailable"),
}


@dataclass(frozen=True)
class FieldError:
    """One fault of a body: its place as a JSON pointer (RFC 6901, "" is the whole body)."""

    pointer: str
    detail: str


class Problem(Exception):
    """An error that is answered as application/problem+json."""

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        wrong: list[FieldError] | None = None,
        members: Mapping[str, Any] | None = None,
        retry_after_seconds: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.title = KINDS[kind]
        self.kind = kind
        self.detail = detail
        self.wrong = wrong or []
        self.members = members or {}
        self.retry_after_seconds = retry_after_seconds
        self.headers = dict(headers or {})
        if retry_after_seconds is not None:
            self.headers["Retry-After"] = str(retry_after_seconds)

    def document(self) -> dict[str, Any]:
        """The problem document as a JSON object."""
        return {
            "type": URN + self.kind,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            **({"errors": [vars(w) for w in self.wrong]} if self.wrong else {}),
            **self.members,
        }


def plain_document(status: int) -> dict[str, Any]:
    """The problem document of a status that has no kind of its own, such as 405."""
    phrase = HTTPStatus(status).phrase
    return {"type": NO_TYPE, "title": phrase, "status": status, "detail": f"{phrase}."}
