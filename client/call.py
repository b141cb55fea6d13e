"""What both clients share: the HTTP calls, the meaning of a reply, and when to retry."""

import os
import random
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from httpx_sse import ServerSentEvent
from pydantic import ValidationError

from partway.client.answer import ANSWER, Answer, Event, Options, read_event
from partway.client.problems import NotPartway, Problem, ServerUnavailable, phrase, read_problem

URL_SETTING = "PARTWAY_URL"
KEY_SETTING = "PARTWAY_KEY"

# The default address of a node.
DEFAULT_URL = "http://127.0.0.1:8000"

# Usually long enough for a node or a database that is restarted.
RETRY_SECONDS = 30.0

# Problems that may soon be over: too many requests, or a node or its database is unavailable.
RETRYABLE_STATUSES = {429, 502, 503, 504}

FIRST_WAIT_SECONDS = 0.2
MAX_WAIT_SECONDS = 5.0

CONNECT_SECONDS = 5.0

# The deadline of a request without one is this or less.
DEFAULT_DEADLINE_MS = 30_000

# How long after the deadline an answer may arrive from a node that is slow, or waits for its
# database. Longer than the 15 s between the pings of an idle stream.
LATE_SECONDS = 30.0

EVENTS = "text/event-stream"

# An id is part of the path, and must not lead to another path.
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,63}")


@dataclass(frozen=True)
class Call:
    """One HTTP call, as arguments of httpx."""

    method: str
    url: str
    json: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    timeout: httpx.Timeout = field(default_factory=lambda: time_limits(LATE_SECONDS))


def time_limits(seconds: float) -> httpx.Timeout:
    """The time limits of a call whose server may be silent for `seconds` after the connect."""
    return httpx.Timeout(seconds, connect=CONNECT_SECONDS)


def http_options(url: str | None, key: str | None) -> dict[str, Any]:
    """The options of an httpx client; ValueError when the URL or the key is invalid."""
    url = url or os.environ.get(URL_SETTING) or DEFAULT_URL
    key = (key or os.environ.get(KEY_SETTING) or "").strip()
    try:
        base_url = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from None
    if base_url.scheme not in ("http", "https") or not base_url.host:
        raise ValueError(f"{url!r} is not a URL such as {DEFAULT_URL}")
    if base_url.userinfo:
        # httpx would send it in place of the key, and messages that name the URL would show it.
        raise ValueError("the URL must not hold a name or a password")
    if not (key.isascii() and key.isprintable()):
        # The message does not show the key, since output often ends in logs.
        raise ValueError("the key has characters that are not allowed in a key")
    return {"base_url": base_url, "headers": {"Authorization": f"Bearer {key}"} if key else {}}


def check_id(id: str) -> str:
    """Return the id unchanged; ValueError when it is not a valid id."""
    if ID.fullmatch(id) is None:
        raise ValueError(
            f"{id!r} is not an id: a letter or digit, then at most 63 letters, digits or . _ ~ -"
        )
    return id


def request_path(id: str) -> str:
    """The path of the request with this id."""
    return f"/v1/requests/{check_id(id)}"


def put(document: str | Sequence[str], options: Options) -> Call:
    """The call that sends a document, or a list of segments, under the caller's id.

    Without an id, the client makes one, so that a retry attaches to the same request: nothing is
    computed or billed twice.
    """
    body: dict[str, Any] = {**options}
    id = body.pop("id", None) or str(uuid.uuid4())
    if isinstance(document, str):
        body["document"] = document
    else:
        body["segments"] = list(document)
    deadline_seconds = options.get("deadline_ms", DEFAULT_DEADLINE_MS) / 1000
    return Call("PUT", request_path(id), body, timeout=time_limits(deadline_seconds + LATE_SECONDS))


def get(id: str) -> Call:
    """The call that reads a request."""
    return Call("GET", request_path(id))


def delete(id: str) -> Call:
    """The call that cancels a request."""
    return Call("DELETE", request_path(id))


def read_reply(reply: httpx.Response) -> Answer:
    """The answer in a reply; raises Problem for an error status, or NotPartway."""
    if reply.status_code >= 400:
        raise read_problem(reply)
    if reply.status_code != 200:
        raise NotPartway(f"{reply.url} answered {phrase(reply.status_code)}")
    try:
        return ANSWER.validate_json(reply.content)
    except ValidationError:
        raise NotPartway(f"{reply.url} did not answer as Partway does") from None


class RetryPolicy:
    """How long a call that fails is retried, and how long to wait before each retry.

    The time begins at the first failure, and again at the first failure after `renew`.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Start again, because the server has answered since the last failure."""
        self._ends_at: float | None = None
        self._failures = 0

    def wait_seconds(self, error: httpx.TransportError | Problem) -> float:
        """How long to wait before the next retry; raises the error when there is no retry."""
        now = time.monotonic()
        if self._ends_at is None:
            self._ends_at = now + self._seconds
        # Random, so that clients that failed at the same time do not retry at the same time.
        wait = min(FIRST_WAIT_SECONDS * 2.0**self._failures, MAX_WAIT_SECONDS)
        wait *= random.uniform(0.5, 1)
        self._failures += 1
        if isinstance(error, Problem):
            wait = max(wait, error.retry_after_seconds or 0)
        is_over = now + wait > self._ends_at
        if isinstance(error, Problem):
            if is_over or error.status not in RETRYABLE_STATUSES:
                raise error
        elif is_over:
            raise ServerUnavailable(str(error) or type(error).__name__) from error
        return wait


class Stream:
    """The position in one stream of events, so that it can be resumed after a broken connection."""

    def __init__(self, call: Call, retry_policy: RetryPolicy) -> None:
        self.retry_policy = retry_policy
        self._last_id = ""
        # The next call to send. Before the first event, that is the whole request.
        self.call = replace(call, headers={"Accept": EVENTS})

    def is_event_stream(self, reply: httpx.Response) -> bool:
        """Whether a reply is a stream of events, and not a whole answer or a problem."""
        return reply.status_code == 200 and reply.headers.get("content-type", "").startswith(EVENTS)

    def read(self, message: ServerSentEvent) -> Event | None:
        """The event in a message; None when this version does not know it."""
        try:
            event = read_event(message.event, message.data)
        except ValidationError:
            raise NotPartway(f"the event {message.event} cannot be read") from None
        # A repeated id is not progress, so the retry time does not start again.
        if message.id != self._last_id:
            self._last_id = message.id
            self.retry_policy.renew()
            self.call = Call(
                "GET",
                self.call.url.removesuffix("/events") + "/events",
                headers={"Accept": EVENTS, "Last-Event-ID": message.id},
            )
        return event
