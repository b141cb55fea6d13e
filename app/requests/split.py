"""A document is split into segments and separators, from which it can be joined again."""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

import sentencex

log = logging.getLogger("partway.app")

# Characters that a segment never begins or ends with: white space, the zero-width space and the
# byte order mark.
BLANK = "".join(c for c in map(chr, range(0x10000)) if c.isspace()) + "\u200b\ufeff"

# A line with all the line ends after it, in each of their three forms.
LINE = re.compile(r"[^\r\n]*[\r\n]+|[^\r\n]+")

# sentencex works in pieces of 10,000 characters and finds wrong boundaries at their edges.
SENTENCEX_CHARACTERS = 8000

# sentencex panics on white space of several bytes between a letter and a dot ("A\u00a0."). So it
# gets a plain space instead, which moves no offset.
PLAIN = {ord(c): " " for c in BLANK if not c.isascii()}

Span = tuple[int, int]


@dataclass(frozen=True)
class Pieces:
    """separators[0] + sources[0] + separators[1] + ... + separators[-1] is the document."""

    separators: list[str]
    sources: list[str]

    @property
    def characters(self) -> int:
        """How many Unicode code points the sources have together."""
        return sum(map(len, self.sources))


def split(document: str, language: str, target: int, longest: int) -> Pieces:
    """The document in at most `target` segments, each of at most `longest` characters.

    If there are more sentences, neighbours are joined. There are more than `target` segments only
    if they would be longer than `longest` otherwise. No segment is blank, and none begins or ends
    with white space. A blank document has no segments. `language` is the BCP 47 tag of the source.
    """
    lines = [line.span() for line in LINE.finditer(document)]
    sentences = [s for line in lines for s in sentence_spans(document, line, language)]
    for spans in (sentences, lines):
        pieces = cut(document, spans, target, longest)
        if joins_to(pieces, document):
            return pieces
        log.error("the pieces of a text of %d characters do not join to it", len(document))
    raise RuntimeError("a document must not be stored if its pieces do not join to it")


def joins_to(pieces: Pieces, document: str) -> bool:
    """Whether the pieces join to exactly this document, and all separators are white space."""
    joined = pieces.separators[0] + "".join(
        source + separator
        for source, separator in zip(pieces.sources, pieces.separators[1:], strict=True)
    )
    return joined == document and not any(separator.strip(BLANK) for separator in pieces.separators)


def cut(document: str, spans: list[Span], target: int, longest: int) -> Pieces:
    """The pieces of a document, from spans that are cut and joined until they fit."""
    bare = [b for span in spans for b in strip_span(document, span)]
    short = [s for span in bare for s in shorten_span(document, span, longest)]
    sources: list[str] = []
    separators: list[str] = []
    at = 0
    for start, end in join_neighbours(short, target, longest):
        separators.append(document[at:start])
        sources.append(document[start:end])
        at = end
    return Pieces([*separators, document[at:]], sources)


def sentence_spans(document: str, line: Span, language: str) -> Iterator[Span]:
    """One span for each sentence of a line; one span for the whole line when sentencex fails.

    Only the starts of sentences come from sentencex. Each sentence ends at the next start, so text
    that sentencex leaves out between two sentences belongs to the first.
    """
    start, end = line
    try:
        starts = sentence_starts(document[start:end], language.split("-")[0].lower())
    except BaseException as error:
        # A panic in Rust is not an Exception. Its message repeats the text, so it is not logged.
        # The line as one sentence is a worse cut, but still an answer.
        log.error("sentencex failed on %d characters: %s", end - start, type(error).__name__)
        starts = [0]
    for first, next_first in zip(starts, [*starts[1:], end - start], strict=True):
        yield start + first, start + next_first


def sentence_starts(line: str, language: str) -> list[int]:
    """The offsets at which the sentences of a line begin, 0 first.

    A window may end within a sentence, so the last sentence of a window is split again as the
    first of the next window.
    """
    starts = {0}
    at = 0
    while at < len(line):
        window = line[at : at + SENTENCEX_CHARACTERS].translate(PLAIN)
        boundaries = sentencex.get_sentence_boundaries(language, window)
        window_starts = {at + b["start_index"] for b in boundaries if b["start_index"] > 0}
        starts |= window_starts
        is_last = at + len(window) == len(line)
        at = len(line) if is_last else max(window_starts, default=at + len(window))
    return sorted(starts)


def strip_span(document: str, span: Span) -> Iterator[Span]:
    """The span without white space at its ends; no span when it is blank."""
    start, end = span
    text = document[start:end]
    bare = text.strip(BLANK)
    if bare:
        start += len(text) - len(text.lstrip(BLANK))
        yield start, start + len(bare)


def shorten_span(document: str, span: Span, longest: int) -> Iterator[Span]:
    """Parts of the span, each of at most `longest` characters, cut at white space if possible."""
    start, end = span
    while end - start > longest:
        cut = start + longest
        for at in range(cut, start + longest // 2, -1):
            if document[at].isspace():
                cut = at
                break
        yield from strip_span(document, (start, cut))
        start = cut
    yield from strip_span(document, (start, end))


def join_neighbours(spans: list[Span], target: int, longest: int) -> list[Span]:
    """At most `target` spans of about the same length, made by joining neighbours.

    There are more only if a joined span would be longer than `longest`.
    """
    if len(spans) <= target:
        return spans
    total = sum(end - start for start, end in spans)
    joined: list[Span] = []
    before, last_group = 0, -1
    for start, end in spans:
        middle = before + (end - start) / 2
        group = int(middle * target / total)
        if joined and group == last_group and end - joined[-1][0] <= longest:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
        before += end - start
        last_group = group
    return joined
