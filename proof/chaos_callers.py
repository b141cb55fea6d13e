"""Callers that come back until they are answered, and keep every word that they were told."""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

# Faults last a few seconds each: who is not answered by then has met a fault of ours.
GIVE_UP_SECONDS = 60.0

# A node may be frozen for longer than a caller has patience; then another node is asked.
PATIENCE_SECONDS = 5.0

FIGURES = ("segments", "input_characters", "output_characters")

# What the handlers of the test are told, and how often; most segments are plain work.
WORDS = {"say": 360, "retry": 12, "fail": 6, "reject": 6, "swell 400": 8, "kill": 1}

# Code points outside the first plane, one that grows in capitals, one that combines.
LETTERS = "abcdefghij æøå ß é 𠮷 🫠 第一 "


@dataclass
class Book:
    """What was sent under each id, what was answered, and what was wrong at first sight."""

    sources: dict[str, list[str]] = field(default_factory=dict)
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    final_bytes: dict[str, bytes] = field(default_factory=dict)
    metered: dict[str, dict[str, Any]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def note(self, sources: list[str], response: httpx.Response) -> str:
        """Write down a 200; the status of the answer."""
        answer: dict[str, Any] = response.json()
        public_id, said = answer["id"], str(answer["status"])
        self.sources.setdefault(public_id, sources)
        if said == "running":
            return said
        self.answers[public_id].append(
            {"status": said, "usage": answer["usage"], "counts": answer["counts"]}
        )
        self.wrong += [f"{public_id}: {what}" for what in faults_of(answer, sources)]
        for segment in answer["segments"]:
            if segment["status"] == "done":
                self.attempts[public_id, segment["index"]] = segment["attempts"]
        if answer["usage"]["final"]:
            before = self.final_bytes.setdefault(public_id, response.content)
            if before != response.content:
                self.wrong.append(f"{public_id}: the same call got {before!r} and {answer!r}")
        return said


def faults_of(answer: Mapping[str, Any], sources: Sequence[str]) -> list[str]:
    """What an answer says that cannot be true of these sources; [] when all of it can."""
    done = [s for s in answer["segments"] if s["status"] == "done"]
    wrong = [
        f"segment {s['index']} is {s['result']!r}"
        for s in done
        if s["result"] != expected(sources[s["index"]])
    ]
    counted = {
        "segments": len(done),
        "input_characters": sum(len(sources[s["index"]]) for s in done),
        "output_characters": sum(len(s["result"]) for s in done),
    }
    if any(answer["usage"][figure] != counted[figure] for figure in FIGURES):
        wrong.append(f"usage {answer['usage']} where the segments make {counted}")
    if len(answer["segments"]) != len(sources):
        wrong.append(f"{len(answer['segments'])} segments of {len(sources)}")
    return wrong


def expected(source: str) -> str | None:
    """What the handler makes of a source; None when it never makes anything of it."""
    told = source.split(" ", 1)[1]
    match told.split():
        case ["fail" | "reject" | "kill", *_]:
            return None
        case ["swell", times, *_]:
            return told.upper() * int(times)
    return told.upper()


def sources_of(chance: random.Random) -> list[str]:
    """The segments of a short request: seconds, what to do, and some text."""
    return [
        f"{chance.uniform(0.05, 0.5):.2f} {chance.choices(*zip(*WORDS.items(), strict=True))[0]} "
        + "".join(chance.choices(LETTERS, k=chance.randint(5, 60))).strip()
        + f" {index}"
        for index in range(chance.randint(5, 40))
    ]


class Caller:
    """One caller after another, in a fixed order of what they want, until told to stop."""

    def __init__(
        self, name: str, chance: random.Random, nodes: Sequence[str], book: Book, keep: float
    ) -> None:
        self._name = name
        self._chance = chance
        self._nodes = nodes
        self._book = book
        self._keep_seconds = keep
        # One for each call that is cut off in the middle: nobody shares its connection.
        self._http = httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_connections=None))

    async def go_on(self, stop: asyncio.Event) -> None:
        """Call again and again until stop is set, then see the last call through."""
        number = 0
        async with self._http:
            while not stop.is_set():
                number += 1
                public_id = f"{self._name}-{number}"
                sources = sources_of(self._chance)
                body = {
                    "segments": sources,
                    "deadline_ms": self._chance.randint(2000, 8000),
                    "params": {"id": public_id},
                }
                want = self._chance.choices(
                    [self._put, self._post, self._cancel, self._leave], [60, 10, 18, 12]
                )[0]
                self._book.counts["sent"] += 1
                await want(public_id, sources, body)

    async def _put(self, public_id: str, sources: list[str], body: dict[str, Any]) -> None:
        self._book.sources[public_id] = sources
        await self._until_answered("PUT", public_id, sources, body)
        # The answer is kept for a while, and is the same for whoever asks, wherever.
        if self._chance.random() < 0.4:
            await asyncio.sleep(self._chance.uniform(0, 1.5 * self._keep_seconds))
            method = self._chance.choice(["PUT", "GET"])
            await self._until_answered(method, public_id, sources, body)

    async def _post(self, _: str, sources: list[str], body: dict[str, Any]) -> None:
        """Once only: who has no id of its own cannot come back."""
        response = await self._call("POST", "/v1/requests", body)
        if response is not None and response.status_code == 200:
            self._book.note(sources, response)

    async def _cancel(self, public_id: str, sources: list[str], body: dict[str, Any]) -> None:
        self._book.sources[public_id] = sources
        put = asyncio.create_task(self._until_answered("PUT", public_id, sources, body))
        await asyncio.sleep(self._chance.uniform(0.1, 3))
        await self._until_answered("DELETE", public_id, sources, None)
        await put
        # What ran when it was cancelled may still have become done; the last look says so.
        ends_at = time.monotonic() + 2 * self._keep_seconds
        while time.monotonic() < ends_at and public_id not in self._book.final_bytes:
            if await self._until_answered("GET", public_id, sources, None) == "settled":
                break
            await asyncio.sleep(self._chance.uniform(0.05, 0.5))

    async def _leave(self, public_id: str, sources: list[str], body: dict[str, Any]) -> None:
        self._book.sources[public_id] = sources
        body["on_disconnect"] = self._chance.choice(["cancel", "continue"])
        call = asyncio.create_task(self._call("PUT", f"/v1/requests/{public_id}", body))
        await asyncio.wait([call], timeout=self._chance.uniform(0.1, 2))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.sleep(self._chance.uniform(0, 3))
        await self._until_answered("PUT", public_id, sources, body)

    async def _until_answered(
        self, method: str, public_id: str, sources: list[str], body: dict[str, Any] | None
    ) -> str:
        """The status of the answer, "settled" or, after GIVE_UP_SECONDS, "nothing".

        A GET is content with "running", and a DELETE comes back until there is something to cancel.
        """
        ends_at = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < ends_at:
            response = await self._call(method, f"/v1/requests/{public_id}", body)
            if response is not None and response.status_code == 200:
                said = self._book.note(sources, response)
                if said != "running" or method == "GET":
                    return said
                self._book.wrong.append(f"{public_id}: {method} was answered with running")
            if response is not None and response.status_code == 410:
                self._book.counts["told what was metered"] += 1
                self._book.metered[public_id] = response.json()["metered"]
                return "settled"
            await asyncio.sleep(self._chance.uniform(0.05, 0.6))
        self._book.wrong.append(f"{public_id}: {method} without an answer, {GIVE_UP_SECONDS:g} s")
        return "nothing"

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> httpx.Response | None:
        """One call to any node; None when the transport failed, which is no fault of the node."""
        deadline_ms = body["deadline_ms"] if body else 0
        try:
            response = await self._http.request(
                method,
                self._chance.choice(self._nodes) + path,
                json=body,
                timeout=deadline_ms / 1000 + PATIENCE_SECONDS,
            )
        except httpx.TransportError as error:
            self._book.counts[f"transport: {type(error).__name__}"] += 1
            return None
        self._book.counts[f"HTTP {response.status_code}"] += 1
        expectable = {200, 410, 503} | ({404} if method in ("DELETE", "GET") else set())
        if response.status_code not in expectable:
            self._book.wrong.append(f"{method} {path}: {response.status_code} {response.text}")
        if response.status_code == 503 and "Retry-After" not in response.headers:
            self._book.wrong.append(f"{method} {path}: a 503 without Retry-After")
        return response
