"""A page shows a request with its texts, as the rows say it at this moment."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partway.app.problems import Problem
from partway.app.requests.answer import Answer, Request, join_document, read_answer, read_request
from partway.app.requests.fanin import is_due
from partway.app.requests.submission import PUBLIC_ID
from partway.store.close import close
from partway.store.database import Database


def other_counts(answer: Answer) -> str:
    """How many segments of a closed request ended otherwise than done, as the end of a line."""
    if answer.finished_at is None:
        return ""
    counts = answer.counts
    ends = {
        "failed": counts.failed,
        "timed out": counts.timed_out,
        "cancelled": counts.cancelled,
    }
    return "".join(f", {count:,} {word}" for word, count in ends.items() if count)


def outcome_sentence(answer: Answer) -> str:
    """How a closed request ended, in one sentence; none for a request that runs."""
    if answer.finished_at is None:
        return ""
    allowed = answer.deadline_at - answer.created_at
    took = min((answer.finished_at - answer.created_at) / allowed, 1) * allowed.total_seconds()
    after = f"after {took:.1f} of {allowed.total_seconds():g} s"
    if answer.status == "completed":
        return f"The text is complete {after}."
    if answer.status == "cancelled":
        return f"It was cancelled {after}; what is done stays and is billed."
    if answer.status == "abandoned":
        return f"Nobody waited for it any more {after}, so nothing is billed."
    if answer.counts.timed_out:
        return f"The time was up after {allowed.total_seconds():g} s."
    return f"Not all of it could be done; the answer came {after}."


SOURCES = """
SELECT index_no, source
FROM   segments
WHERE  request_id = %s
ORDER  BY index_no
"""

PARAMS = "SELECT params FROM requests WHERE id = %s"


@dataclass(frozen=True)
class RequestView:
    """All that a page shows of a request: its answer, and what was sent."""

    request: Request
    answer: Answer
    sources: list[str]
    params: dict[str, Any]

    @property
    def missing(self) -> list[int]:
        """The indexes of what is not done, once it is closed."""
        if self.answer.status == "running":
            return []
        return [segment.index for segment in self.answer.segments if segment.status != "done"]

    @property
    def grows(self) -> bool:
        """Whether anything of it may still change."""
        return not self.answer.usage.final

    @property
    def text(self) -> str:
        """The whole text, with the source of what is not done."""
        parts: list[str | None] = [
            source if segment.result is None else segment.result
            for source, segment in zip(self.sources, self.answer.segments, strict=True)
        ]
        whole = join_document(self.request.separators, parts)
        return whole if whole is not None else "\n".join(filter(None, parts))

    @property
    def counts(self) -> dict[str, int]:
        """How many segments are in each state: those it can be in by now."""
        states: list[str] = [segment.status for segment in self.answer.segments]
        possible = (
            ("pending", "processing", "done", "failed")
            if self.answer.status == "running"
            else ("done", "failed", "timed_out", "cancelled")
        )
        found = {state: states.count(state) for state in possible}
        if self.answer.status == "running":
            return found
        return {state: count for state, count in found.items() if count or state == "done"}

    @property
    def bill(self) -> str:
        """What becomes of the characters."""
        if not self.answer.usage.billed:
            return "nothing"
        return "provisional" if self.grows else "final"

    def named_params(self, offered: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        """What was chosen for the handler, in the words of the form where it is of the form."""
        return {
            name.capitalize() if name in offered else name: offered.get(name, {}).get(value, value)
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False)
            for name, value in self.params.items()
        }


async def load_request_view(db: Database, tenant: str, public_id: str) -> RequestView:
    """The tenant's request of this id; Problem 404 when there is none. Raises Settled."""
    if PUBLIC_ID.fullmatch(public_id) is not None:
        request = await read_request(db, tenant, public_id)
        number = request.id if request is not None else 0
        is_active = request is not None and request.status == "active"
        if request is not None and is_active and is_due(request):
            # The node that took the request has died, so this read closes it.
            await close(db, number, "completed")
        # Before the answer, which is none when they are gone: with it, all of them were there.
        sources = [row["source"] for row in await db.read(SOURCES, (number,))]
        params = await db.read(PARAMS, (number,))
        answer = await read_answer(db, tenant, public_id)
        if request is not None and answer is not None and params:
            return RequestView(request, answer, sources, json.loads(params[0]["params"]))
    raise Problem("unknown-request", "There is no request of this id, or it is not yours.")
