"""What somebody types into the first page becomes the body that a program would send."""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partway.app.problems import Problem
from partway.app.requests.submission import PUBLIC_ID

# A browser writes the name of a field so, and every other one of the name's characters in it.
FIELD_NAME = re.compile(rb'[;\s]name="([^"]*)"')

BOUNDARY = re.compile(r'multipart/form-data\s*;.*?boundary="?([^";]+)"?', re.IGNORECASE)


@dataclass(frozen=True)
class Form:
    """What somebody wrote into the form of the first page."""

    id: str
    text: str
    file: str
    language: str
    seconds: str
    params: Mapping[str, str]


def read_fields(raw: bytes, content_type: str) -> dict[str, str]:
    """The fields and files of a form as a browser sends it, by name.

    Problem 415 when it is no such form, 422 when a text in it is not UTF-8.
    """
    boundary = BOUNDARY.match(content_type)
    if boundary is None:
        raise Problem("unsupported-media-type", "Send the form of this page.")
    fields = {}
    for part in (b"\r\n" + raw).split(b"\r\n--" + boundary[1].encode())[1:]:
        head, _, value = part.partition(b"\r\n\r\n")
        name = FIELD_NAME.search(head)
        try:
            if name is not None:
                # An editor may have marked a file as UTF-8 at its beginning; nobody reads the mark.
                fields[name[1].decode()] = value.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Problem("invalid-request", "The text is not UTF-8.") from None
    return fields


def read_form(fields: Mapping[str, str], offered: Mapping[str, Any], seconds: int) -> Form:
    """The form in these fields, with our defaults for what is not there."""
    return Form(
        id=fields.get("id", ""),
        # A browser sends each line end of a textarea as two characters.
        text=fields.get("text", "").replace("\r\n", "\n"),
        file=fields.get("file", ""),
        language=fields.get("language", "en"),
        seconds=fields.get("seconds", str(seconds)),
        params={name: fields[f"param.{name}"] for name in offered if f"param.{name}" in fields},
    )


def form_id(form: Form) -> str:
    """The id that a form was given, or a new one where it has none."""
    return form.id if PUBLIC_ID.fullmatch(form.id) else str(uuid.uuid4())


def to_body(form: Form) -> dict[str, Any]:
    """The body that a program would send for this form; Problem 422 where there can be none."""
    if not (form.text + form.file).strip():
        raise Problem("invalid-request", "There is no text.")
    if form.text.strip() and form.file:
        raise Problem("invalid-request", "There is a text and a file. Send one of them.")
    try:
        deadline_ms = round(float(form.seconds) * 1000)
    except (ValueError, OverflowError):
        raise Problem("invalid-request", "The seconds to wait are not a number.") from None
    return {
        "document": form.file or form.text,
        "language": form.language,
        "deadline_ms": deadline_ms,
        "params": form.params,
        "on_missing": "source",
    }
