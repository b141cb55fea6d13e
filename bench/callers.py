"""A caller sends a document and waits; its own work must be small beside what it measures."""

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CONNECT_SECONDS = 120.0

SEGMENTS = 100
SOURCE = "A sentence of about a line, as a document has many of them. " * 9
SOURCE_CHARACTERS = 500


def body(
    segments: int = SEGMENTS, deadline_ms: int = 30_000, seconds: float | None = None
) -> bytes:
    """A request of so many segments; `seconds` is what the sleep handler takes for each."""
    return json.dumps(
        {
            "segments": [SOURCE[:SOURCE_CHARACTERS]] * segments,
            "params": {} if seconds is None else {"seconds": seconds},
            "deadline_ms": deadline_ms,
        }
    ).encode()


class Caller:
    """One connection that is kept open, as a program that sends many documents keeps it."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CONNECT_SECONDS)

    def send(self, content: bytes) -> tuple[str, bytes]:
        """The outcome and the body of the answer; RuntimeError when it was refused."""
        headers = {"Content-Type": "application/json"}
        self.connection.request("POST", "/v1/requests", content, headers)
        response = self.connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"a call was answered with {response.status}: {answer[:500]!r}")
        return response.headers["Partway-Outcome"], answer

    def send_whole(self, content: bytes) -> None:
        """Nothing when everything is done; RuntimeError when it is not."""
        outcome, answer = self.send(content)
        if outcome != "completed":
            raise RuntimeError(f"a request ended as {outcome}: {answer[:500]!r}")

    def close(self) -> None:
        """Leave; nothing comes back."""
        self.connection.close()


def answer_seconds(port: int, content: bytes, times: int) -> list[float]:
    """How long each of these calls waited for its whole answer, one after the other."""
    caller = Caller(port)
    waited = []
    for _ in range(times):
        began = time.monotonic()
        caller.send_whole(content)
        waited.append(time.monotonic() - began)
    caller.close()
    return waited


def segments_a_second(port: int, at_once: int, seconds: float) -> float:
    """The segments answered a second to so many callers, each of whom calls again at once."""
    content = body()
    began = time.monotonic()

    def call_on(_: int) -> int:
        caller, answered = Caller(port), 0
        while time.monotonic() < began + seconds:
            caller.send_whole(content)
            answered += SEGMENTS
        caller.close()
        return answered

    with ThreadPoolExecutor(at_once) as callers:
        answered = sum(callers.map(call_on, range(at_once)))
    return answered / (time.monotonic() - began)


def figures_of(answer: bytes) -> dict[str, Any]:
    """The counts of an answer."""
    counts: dict[str, Any] = json.loads(answer)["counts"]
    return counts
