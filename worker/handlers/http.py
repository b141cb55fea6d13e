"""Calls translation and model servers without any code: a template and a JSON pointer are enough.

LibreTranslate:  PARTWAY_HTTP_URL=http://host:5000/translate
                 PARTWAY_HTTP_BODY='{"q": "{{text}}", "source": "en", "target": "{{params.to}}"}'
                 PARTWAY_HTTP_RESULT=/translatedText
"""

import json
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Literal

import httpx
from pydantic import Field, HttpUrl, Json, StringConstraints
from pydantic_settings import BaseSettings, SettingsConfigDict

from partway.worker.handler import Context, Reject, Retry
from partway.worker.handlers import read_settings

# What h11 accepts. It is checked here, since the error of h11 would show the value, perhaps a key.
HeaderName = Annotated[str, StringConstraints(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
HeaderValue = Annotated[str, StringConstraints(pattern=r"^[!-~]([ -~]*[!-~])?$")]


class HttpSettings(BaseSettings):
    """The request to send, with {{text}} and {{params.NAME}} filled in, and where its result is."""

    model_config = SettingsConfigDict(env_prefix="PARTWAY_HTTP_", hide_input_in_errors=True)

    url: HttpUrl = Field(description="Where each segment is sent.")
    method: Literal["GET", "POST", "PUT", "PATCH"] = Field(
        "POST", description="The HTTP method of the request."
    )
    headers: Json[dict[HeaderName, HeaderValue]] = Field(
        default="{}",
        validate_default=True,
        repr=False,
        description="Headers of the request, a JSON object; its values are never shown.",
    )
    query: Json[dict[str, Any]] = Field(
        default="{}",
        validate_default=True,
        description="Query parameters added to the URL, a JSON object of templates.",
    )
    body: Json[Any] = Field(
        "null",
        validate_default=True,
        description="The JSON body of the request, any JSON with templates; none without it.",
    )
    result: str = Field(
        "",
        pattern=r"^(/.*)?$",
        description="A JSON pointer to the result; without it the whole answer is a JSON string.",
    )


class Http:
    """Sends each segment to one URL and returns the text that its answer holds."""

    def setup(self) -> None:
        """Read the settings and make an HTTP client; ValueError names a wrong setting."""
        self.settings = read_settings(HttpSettings)
        self.url = httpx.URL(str(self.settings.url))
        self.client = httpx.AsyncClient(
            headers=self.settings.headers,
            # The number of seats is the limit.
            limits=httpx.Limits(max_connections=None),
        )

    async def __call__(self, text: str, ctx: Context) -> str:
        """The text at the pointer. The status of any other answer decides about another attempt."""
        settings = self.settings
        response = await self.client.request(
            settings.method,
            self.url.copy_merge_params(
                {key: as_text(fill(value, text, ctx)) for key, value in settings.query.items()}
            ),
            json=fill(settings.body, text, ctx),
            timeout=ctx.remaining(),
        )
        if response.status_code in (429, 503):
            after = retry_after(response.headers.get("Retry-After"), datetime.now(UTC))
            raise Retry(after, f"the server answered {response.status_code}")
        if response.status_code >= 500:
            raise UnusableAnswer(self.describe(response))
        if not response.is_success:
            raise Reject(f"http_{response.status_code}", self.describe(response))
        try:
            answer = response.json()
        except ValueError as error:
            raise UnusableAnswer(f"the answer is not JSON: {self.describe(response)}") from error
        result = at_pointer(answer, settings.result)
        if not isinstance(result, str):
            raise UnusableAnswer(f"the answer has no text at {settings.result!r}")
        return result

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    def describe(self, response: httpx.Response) -> str:
        """The status and a short body, without the header values, which a server may repeat."""
        body = response.text
        for value in self.settings.headers.values():
            # A server may repeat a key without the scheme in front of it.
            for secret in (value, *value.split()):
                if len(secret) >= SHORTEST_SECRET_CHARACTERS:
                    body = body.replace(secret, "…")
        return f"the server answered {response.status_code}: {body[:200]}"


SHORTEST_SECRET_CHARACTERS = 6


class UnusableAnswer(Exception):
    """The server answered without a result. Another attempt may succeed."""


PLACEHOLDER = re.compile(r"\{\{(text|params\.([^{}]+))\}\}")


def fill(template: Any, text: str, ctx: Context) -> Any:
    """Fill in the placeholders of a template; Reject when the request lacks a parameter.

    A value that is filled in is not read as a template again. A string that is exactly one
    placeholder becomes the parameter itself, so that a number stays a number.
    """

    def value_of(match: re.Match[str]) -> Any:
        name = match[2]
        if name is None:
            return text
        if name not in ctx.params:
            raise Reject("missing_param", f"the handler needs params.{name}")
        return ctx.params[name]

    if isinstance(template, dict):
        return {key: fill(value, text, ctx) for key, value in template.items()}
    if isinstance(template, list):
        return [fill(value, text, ctx) for value in template]
    if not isinstance(template, str):
        return template
    if match := PLACEHOLDER.fullmatch(template):
        return value_of(match)
    return PLACEHOLDER.sub(lambda match: as_text(value_of(match)), template)


def as_text(value: Any) -> str:
    """A string unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def at_pointer(answer: Any, pointer: str) -> Any:
    """The value at a JSON pointer (RFC 6901); None when there is none."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(answer, list) and name.isdecimal() and int(name) < len(answer):
            answer = answer[int(name)]
        elif isinstance(answer, dict):
            answer = answer.get(name)
        else:
            return None
    return answer


DEFAULT_RETRY_SECONDS = 1.0
# No request is active so long, and a larger number could not be stored as a time.
LONGEST_RETRY_SECONDS = 86_400.0


def retry_after(header: str | None, now: datetime) -> float:
    """The seconds that a Retry-After header asks for; 1.0 when it is absent or cannot be read."""
    if header is None:
        return DEFAULT_RETRY_SECONDS
    if header.isdecimal():
        seconds = float(header)
    else:
        try:
            date = parsedate_to_datetime(header)
        except ValueError:
            return DEFAULT_RETRY_SECONDS
        # All dates in HTTP are UTC, also one without a zone.
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        seconds = (date - now).total_seconds()
    return min(max(0.0, seconds), LONGEST_RETRY_SECONDS)
