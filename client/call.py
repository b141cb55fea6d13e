"""What is sent, what a reply means, when to try again: the same for who waits in either way."""

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

# Where a node listens that was not told otherwise.
DEFAULT_URL = "http://127.0.0.1:8000"

# A restarted node or database is back by then.
RETRY_SECONDS = 30.0

# What may be over in a moment: too many requests, and a node or its database that is away.
RETRYABLE_STATUSES = {429, 502, 503, 504}

FIRST_WAIT_SECONDS = 0.2
MAX_WAIT_SECONDS = 5.0

CONNECT_SECONDS = 5.0

# The deadline of a request that names none is this or less.
DEFAULT_DEADLINE_MS = 30_000

# How long after a deadline an answer may come from a node that is slow, or waits for its database.
# Longer than the 15 s between the pings of an idle stream.
LATE_SECONDS = 30.0

EVENTS = "text/event-stream"

# An id is a part of the path, and must not lead anywhere else.
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,63}")


@dataclass(frozen=True)
class Call:
    """One HTTP call, in httpx's words."""

    method: str
    url: str
    json: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    timeout: httpx.Timeout = field(default_factory=lambda: within(LATE_SECONDS))


def within(seconds: float) -> httpx.Timeout:
    """The time limits of a call that may be silent for so long once it is connected."""
    return httpx.Timeout(seconds, connect=CONNECT_SECONDS)


def connection(url: str | None, key: str | None) -> dict[str, Any]:
    """What an httpx client is made with; ValueError when there is no such URL or key."""
    url = url or os.environ.get(URL_SETTING) or DEFAULT_URL
    key = (key or os.environ.get(KEY_SETTING) or "").strip()
    try:
        place = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is no URL: {error}") from None
    if place.scheme not in ("http", "https") or not place.host:
        raise ValueError(f"{url!r} is no URL such as {DEFAULT_URL}")
    if place.userinfo:
        # It would go in place of the key, and it would be in every message that names the URL.
        raise ValueError("the URL must not hold a name or a password")
    if not (key.isascii() and key.isprintable()):
        # Never the key itself: what is printed ends in logs.
        raise ValueError("the key has characters that no key has")
    return {"base_url": place, "headers": {"Authorization": f"Bearer {key}"} if key else {}}


def check_id(id: str) -> str:
    """The id as it came; ValueError when no request can be called so."""
    if ID.fullmatch(id) is None:
        raise ValueError(
            f"{id!r} is no id: a letter or digit, then at most 63 of these and the marks . _ ~ -"
        )
    return id


def request_path(id: str) -> str:
    """The path of the request of this id."""
    return f"/v1/requests/{check_id(id)}"


def put(document: str | Sequence[str], options: Options) -> Call:
    """Send a text to be split, or segments to be kept as they are, under an id of the caller's.

    Where there is none it is made here and not by the server, so that the same call made again
    joins what the first one began: nothing is computed or billed twice.
    """
    body: dict[str, Any] = {**options}
    id = body.pop("id", None) or str(uuid.uuid4())
    if isinstance(document, str):
        body["document"] = document
    else:
        body["segments"] = list(document)
    deadline_seconds = options.get("deadline_ms", DEFAULT_DEADLINE_MS) / 1000
    return Call("PUT", request_path(id), body, timeout=within(deadline_seconds + LATE_SECONDS))


def get(id: str) -> Call:
    """Ask what is there of a request."""
    return Call("GET", request_path(id))


def delete(id: str) -> Call:
    """Cancel a request."""
    return Call("DELETE", request_path(id))


def read_reply(reply: httpx.Response) -> Answer:
    """The answer in a reply; raises the Problem that is there instead, or NotPartway."""
    if reply.status_code >= 400:
        raise read_problem(reply)
    if reply.status_code != 200:
        raise NotPartway(f"{reply.url} answered {phrase(reply.status_code)}")
    try:
        return ANSWER.validate_json(reply.content)
    except ValidationError:
        raise NotPartway(f"{reply.url} answered something else than Partway does") from None


class RetryPolicy:
    """How long one call that fails is made again, and after which rests.

    The time runs from its first failure, and anew from the next one after `renew`.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Forget the failures: the server has said something since."""
        self._ends_at: float | None = None
        self._tries = 0

    def wait_seconds(self, error: httpx.TransportError | Problem) -> float:
        """How long to rest before the call is made again; raises the error when it is not."""
        now = time.monotonic()
        if self._ends_at is None:
            self._ends_at = now + self._seconds
        # Uneven, so that those who failed together do not come back together.
        rest = min(FIRST_WAIT_SECONDS * 2.0**self._tries, MAX_WAIT_SECONDS)
        rest *= random.uniform(0.5, 1)
        self._tries += 1
        if isinstance(error, Problem):
            rest = max(rest, error.retry_after_seconds or 0)
        is_over = now + rest > self._ends_at
        if isinstance(error, Problem):
            if is_over or error.status not in RETRYABLE_STATUSES:
                raise error
        elif is_over:
            raise ServerUnavailable(str(error) or type(error).__name__) from error
        return rest


class Stream:
    """How far one stream of events has come, so that after a break it goes on from there."""

    def __init__(self, call: Call, retry_policy: RetryPolicy) -> None:
        self.retry_policy = retry_policy
        self._last_id = ""
        # What to send next: until the request is known to be stored, all of it again.
        self.call = replace(call, headers={"Accept": EVENTS})

    def is_in(self, reply: httpx.Response) -> bool:
        """Whether a reply brings events, and not the whole answer or a problem."""
        return reply.status_code == 200 and reply.headers.get("content-type", "").startswith(EVENTS)

    def read(self, message: ServerSentEvent) -> Event | None:
        """The event in a message; None when it holds none that this version knows."""
        try:
            event = read_event(message.event, message.data)
        except ValidationError:
            raise NotPartway(f"the event {message.event} cannot be read") from None
        # Not at any message: a server that says the same again and again has nothing new.
        if message.id != self._last_id:
            self._last_id = message.id
            self.retry_policy.renew()
            self.call = Call(
                "GET",
                self.call.url.removesuffix("/events") + "/events",
                headers={"Accept": EVENTS, "Last-Event-ID": message.id},
            )
        return event
