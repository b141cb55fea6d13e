"""A document becomes segments and the white space between them, and joins to itself again."""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

import sentencex

log = logging.getLogger("partway.app")

# What a handler has no use for at the ends of a segment: white space, and the marks that only look
# like nothing (zero-width space, byte order mark).
BLANK = "".join(c for c in map(chr, range(0x10000)) if c.isspace()) + "\u200b\ufeff"

# A line, with all the line ends behind it, in whichever of their three forms.
LINE = re.compile(r"[^\r\n]*[\r\n]+|[^\r\n]+")

# sentencex works in pieces of 10,000 characters and is unsure at their edges.
SENTENCEX_CHARACTERS = 8000

# sentencex panics on white space of several bytes between a letter and a dot ("A\u00a0."), so it is
# shown a plain space, which moves no offset.
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
    """The document in `target` segments or fewer, each of at most `longest` characters.

    Neighbours are joined when there are more, never dropped, and there are more than `target` only
    where `longest` asks for it. No segment is blank or begins or ends with white space; a blank
    document has none. `language` is a BCP 47 tag of the source.
    """
    lines = [line.span() for line in LINE.finditer(document)]
    sentences = [s for line in lines for s in sentence_spans(document, line, language)]
    for spans in (sentences, lines):
        pieces = cut(document, spans, target, longest)
        if joins_to(pieces, document):
            return pieces
        log.error("a text of %d characters did not join to itself", len(document))
    raise RuntimeError("a document that does not join to itself must not be stored")


def joins_to(pieces: Pieces, document: str) -> bool:
    """Whether the pieces join to exactly this document, with only white space between them."""
    whole = pieces.separators[0] + "".join(
        source + separator
        for source, separator in zip(pieces.sources, pieces.separators[1:], strict=True)
    )
    return whole == document and not any(separator.strip(BLANK) for separator in pieces.separators)


def cut(document: str, spans: list[Span], target: int, longest: int) -> Pieces:
    """The pieces of a document that is cut at these spans, cut again and joined to fit."""
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
    """One span for each sentence of a line; the line itself where sentencex fails.

    Only the starts are taken from sentencex, and each sentence goes on to the next start: whatever
    it leaves out between two sentences stays in the first.
    """
    start, end = line
    try:
        starts = sentence_starts(document[start:end], language.split("-")[0].lower())
    except BaseException as error:
        # A panic in Rust is no Exception, and its words repeat the text. A worse cut is an answer;
        # a lost document is not.
        log.error("sentencex failed on %d characters: %s", end - start, type(error).__name__)
        starts = [0]
    for first, after in zip(starts, [*starts[1:], end - start], strict=True):
        yield start + first, start + after


def sentence_starts(line: str, language: str) -> list[int]:
    """Where the sentences of a line begin, 0 first.

    The last sentence of a window is looked at again from its start in the next: a window ends
    anywhere.
    """
    starts = {0}
    at = 0
    while at < len(line):
        window = line[at : at + SENTENCEX_CHARACTERS].translate(PLAIN)
        found = sentencex.get_sentence_boundaries(language, window)
        begun = {at + s["start_index"] for s in found if s["start_index"] > 0}
        starts |= begun
        is_last = at + len(window) == len(line)
        at = len(line) if is_last else max(begun, default=at + len(window))
    return sorted(starts)


def strip_span(document: str, span: Span) -> Iterator[Span]:
    """The span without white space at its ends; nothing when it is blank."""
    start, end = span
    text = document[start:end]
    bare = text.strip(BLANK)
    if bare:
        start += len(text) - len(text.lstrip(BLANK))
        yield start, start + len(bare)


def shorten_span(document: str, span: Span, longest: int) -> Iterator[Span]:
    """The span in parts of at most `longest` characters, cut at white space where there is some."""
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

    More only where joining would make one longer than `longest`.
    """
    if len(spans) <= target:
        return spans
    total = sum(end - start for start, end in spans)
    wide: list[Span] = []
    before, last_place = 0, -1
    for start, end in spans:
        middle = before + (end - start) / 2
        place = int(middle * target / total)
        if wide and place == last_place and end - wide[-1][0] <= longest:
            wide[-1] = (wide[-1][0], end)
        else:
            wide.append((start, end))
        before += end - start
        last_place = place
    return wide
