"""What the pages call states, fields and lengths of time, in words that people read."""

import re

from partway.app.problems import Problem

# What a page calls the state of a segment.
STATUS_LABELS = {
    "pending": "waiting",
    "processing": "working",
    "done": "done",
    "failed": "failed",
    "timed_out": "timed out",
    "cancelled": "cancelled",
}

# The letters of an outcome, one more for a lease that ran out, and two for what never began.
STATES = {
    "d": "done",
    "r": "processing",
    "x": "expired",
    "p": "pending",
    "f": "failed",
    "t": "timed_out",
    "c": "cancelled",
}

OPS_LABELS = STATUS_LABELS | {
    "expired": "lease run out",
    "part": "partly done",
    "unread": "not read",
}

# How a closed request knew a segment that has become something else since, or nothing.
AT_THE_CLOSE = {"d": "done", "f": "failed", "p": "waiting", "r": "working"}

# What a fault of a body is about, for one who has never seen the body.
FIELDS = {
    "document": "The text",
    "segments": "The segments",
    "language": "The language",
    "deadline_ms": "The deadline in milliseconds",
    "params": "What is chosen for the handler",
}

# Those that most is written in; a program may name any other.
LANGUAGES = {
    "ar": "Arabic",
    "bn": "Bengali",
    "ca": "Catalan",
    "zh": "Chinese",
    "cs": "Czech",
    "nl": "Dutch",
    "en": "English",
    "fr": "French",
    "de": "German",
    "el": "Greek",
    "hi": "Hindi",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "fa": "Persian",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "es": "Spanish",
    "sv": "Swedish",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "vi": "Vietnamese",
}

# A handler's word for what went wrong, or the type of its exception; what follows may be the text.
CODE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,39}")

# Of our own reasons, which hold no text, the ends differ.
OWN_REASONS = {
    "time limit of ": "time limit reached",
    "failed after ": "no worker reported an error",
    "the handler's process ended ": "the handler's process ended",
    "the handler returned ": "the handler returned no text",
    "the result is not UTF-8": "the result is not UTF-8",
}

IN_WORDS = "in the handler's own words"

SECONDS_OF = {"d": 86_400, "h": 3_600, "min": 60}


def format_duration(seconds: float) -> str:
    """A length of time as a person says it, in its two largest units."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    left = round(seconds)
    parts: list[str] = []
    for unit, of_unit in (SECONDS_OF | {"s": 1}).items():
        count, left = divmod(left, of_unit)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def failure_reason(beginning: str | None) -> str:
    """Why an attempt failed, as far as it can be said without a word of a document; "" for None."""
    if beginning is None:
        return ""
    for own, said in OWN_REASONS.items():
        if beginning.startswith(own):
            return said
    return beginning if CODE.fullmatch(beginning) else IN_WORDS


def error_sentences(problem: Problem) -> list[str]:
    """A problem in sentences, for one who has never seen a body."""
    return [
        f"{FIELDS.get(wrong.pointer.split('/')[1], 'The text')} {wrong.detail}."
        if wrong.pointer
        else f"The text {wrong.detail}."
        for wrong in problem.wrong
    ] or [problem.detail]
