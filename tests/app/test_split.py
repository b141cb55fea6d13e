"""Pieces and gaps join to exactly the document, whatever the document is."""

from collections.abc import Iterator

import pytest
import sentencex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from partway.app.requests import split as module
from partway.app.requests.split import BLANK, Pieces, joins_to, sentence_spans, split
from tests.sweeps import sampled

# How many random texts of each kind.
settings.register_profile("partway", max_examples=sampled(3_000, sample=100), deadline=None)
settings.load_profile("partway")

LANGUAGES = ("en", "es", "ja", "ar", "th", "xx", "zh-Hant", "EN-gb")

# What public reports name as lost, doubled or moved by splitters; see the rows S1, S2, S7 and S8.
REPORTED = (
    "Fig. ??",
    "Really.. What??",
    "1) a. 2) b.",
    "a) first b) second. c) third",
    "The host 192.168.0.1 answered. So did 10.0.0.1.",
    "gpt-5.4 is out. gpt-5 is not.",
    "I like the Mrs. ",
    'She turned to him, "This is great." she said.',
    "これはWCAG 2.1の要件です。次の文。",
    "第一文です．第二文です．",
    "a\n\n\n\nb",
    "\u3000\u3000段落の始め。\t\t\n次。\t",
    "\n\n \t\n first\n \n\n second \n\n",
    "```\ncode. With. Dots.\n\n    more()\n```\nText after.",
    "| a. | b. |\n|----|----|\n| 1. | 2. |\n",
    '<p title="One. Two. Three."><b>Bold. <i>Both.</i></b> Rest.</p>',
    "Line one.\r\nLine two.\r\n\r\nLine three.",
    "A\u00a0. B\u3000.  C\u2028.",
    "\ufeffWith a mark. And\u200bwithout.",
    "👩‍👩‍👧‍👦. 🇩🇰🇩🇪! é e\u0301? \U00020bb7。",
    "مرحبا بالعالم. كيف حالك؟ \u202bنعم\u202c!",
    "\x00NUL. \ufffe. \x1c\x1d\x1e\x1f \x85 \x0b\x0c",
    "…",
    ".",
    " ",
    "",
)

WHITE = st.sampled_from(
    [*" \t\n\r\x0b\x85\xa0\u2028\u2029\u202f\u3000\u200b\ufeff", "\r\n", "\n\r"]
)
MARKS = st.sampled_from(
    [
        *'.!?。．؟()"“”AbกبÉ\u0301\u200d\u202b\u202c\U00020bb7',
        "...",
        "??",
        "e.g. ",
        "Mrs. ",
        "[1]",
        "1.",
        "👩\u200d👧",
        "🇩🇰",
    ]
)
ANYTHING = st.text(st.characters(exclude_categories=["Cs"]))
HOSTILE = st.lists(st.one_of(WHITE, MARKS, ANYTHING, st.just("a" * 40))).map("".join)


def assert_the_law(document: str, pieces: Pieces, target: int, longest: int) -> None:
    whole = pieces.separators[0] + "".join(
        source + gap for source, gap in zip(pieces.sources, pieces.separators[1:], strict=True)
    )
    assert whole == document
    assert all(gap.strip(BLANK) == "" for gap in pieces.separators)
    assert all(source and source == source.strip(BLANK) for source in pieces.sources)
    assert max(map(len, pieces.sources), default=0) <= longest
    # More than the target only by neighbours that would be too long together.
    together = zip(pieces.sources, pieces.separators[1:-1], pieces.sources[1:], strict=False)
    apart = sum(len(one) + len(gap) + len(other) > longest for one, gap, other in together)
    assert len(pieces.sources) <= target + apart


@pytest.mark.sweep
@given(HOSTILE, st.sampled_from(LANGUAGES), st.integers(1, 20), st.integers(10, 200))
@example("A\u00a0.", "en", 1, 10)
def test_any_text_joins_to_itself(document: str, language: str, target: int, longest: int) -> None:
    assert_the_law(document, split(document, language, target, longest), target, longest)


@pytest.mark.sweep
@given(ANYTHING, st.sampled_from(LANGUAGES))
def test_any_code_points_join_to_themselves_at_the_shipped_sizes(
    document: str, language: str
) -> None:
    assert_the_law(document, split(document, language, 100, 5000), 100, 5000)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("document", REPORTED)
def test_what_other_splitters_lost_is_kept(document: str, language: str) -> None:
    assert_the_law(document, split(document, language, 100, 5000), 100, 5000)
    assert_the_law(document, split(document, language, 2, 10), 2, 10)


def test_sentences_are_segments_and_white_space_lies_between_them() -> None:
    pieces = split("  One here. Two\tthere!\n\nThree? ", "en", 100, 5000)

    assert pieces == Pieces(["  ", " ", "\n\n", " "], ["One here.", "Two\tthere!", "Three?"])


def test_a_blank_document_has_no_segments() -> None:
    blank = " \n\r\n\t\u3000\u2028\x85\ufeff\u200b\xa0"

    assert split(blank, "en", 100, 5000) == Pieces([blank], [])


def test_blank_paragraphs_never_become_segments() -> None:
    pieces = split("\n \n\nfirst\n \t\n\nsecond\n\n \n", "en", 100, 5000)

    assert pieces.sources == ["first", "second"]


@pytest.mark.parametrize("target, longest", [(100, 5000), (5, 5000), (100, 30)])
def test_line_ends_of_every_form_give_the_same_segments(target: int, longest: int) -> None:
    """CRLF once hid blank lines from splitters, and left a lone CR in each segment."""
    text = "A heading\n\nOne here. Two there,\nstill two. Three!\n\n\n- item\n- item two.\n" * 5
    mixed = text.replace("\n\n", "\r\n\n\r").replace(".\n", ".\r")
    forms = [text, text.replace("\n", "\r\n"), text.replace("\n", "\r"), mixed]

    cuts = [split(form, "en", target, longest) for form in forms]

    assert len({len(pieces.sources) for pieces in cuts}) == 1
    for form, pieces in zip(forms, cuts, strict=True):
        assert_the_law(form, pieces, target, longest)
        assert not any(source.strip("\r") != source for source in pieces.sources)
    words = [[source.split() for source in pieces.sources] for pieces in cuts]
    assert words[0] == words[1] == words[2] == words[3]


def test_more_sentences_than_the_target_are_joined_and_none_is_dropped() -> None:
    document = " ".join(f"Sentence {n} is here." for n in range(1000))

    pieces = split(document, "en", 100, 5000)

    assert_the_law(document, pieces, 100, 5000)
    assert len(pieces.sources) == 100
    assert sum(source.count(" is here.") for source in pieces.sources) == 1000
    # Of about the same length: the slowest segment decides when the answer is complete.
    assert max(map(len, pieces.sources)) < 2 * min(map(len, pieces.sources))


def test_a_sentence_longer_than_the_longest_segment_is_cut_at_white_space() -> None:
    document = "word " * 3000 + "end."

    pieces = split(document, "en", 100, 498)

    assert_the_law(document, pieces, 100, 498)
    assert {word for source in pieces.sources for word in source.split()} == {"word", "end."}


def test_a_run_without_white_space_is_cut_at_the_longest_length() -> None:
    assert list(map(len, split("字" * 1234, "ja", 1, 500).sources)) == [500, 500, 234]


@pytest.mark.parametrize("length", [40, 47])
def test_a_long_line_is_cut_wherever_a_sentence_ends_and_nowhere_else(length: int) -> None:
    """sentencex is given a long line in windows, which end in or between sentences."""
    sentence = "This is one of the sentences".ljust(length - 2, "s") + ". "
    document = sentence * 2000

    pieces = split(document, "en", 2000, 5000)

    assert pieces.sources == [sentence.strip()] * 2000


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "document",
    [
        "One sentence here. Another one, with 3.14 in it!\n\n" * 3000,
        "これは文です。次の文もあります！" * 8000,
        "a" * 130_000,
        ". \r\n" * 30_000,
        "\n" * 120_000 + "x" + "\u3000" * 120_000,
        "Mr.\u00a0A\u00a0. " * 15_000,
        "👩‍👧 é\u0301 \U00020bb7。" * 12_000,
    ],
    ids=["sentences", "japanese", "one run", "dots", "blank", "panics", "emoji"],
)
def test_a_large_document_joins_to_itself(document: str, language: str) -> None:
    assert len(document) > 100_000
    assert_the_law(document, split(document, language, 100, 5000), 100, 5000)


def test_white_space_on_which_sentencex_panics_still_gives_sentences() -> None:
    """Rust code that slices inside a character ends in a panic, which is no Exception."""
    with pytest.raises(BaseException, match="char boundary"):
        sentencex.get_sentence_boundaries("en", "A\u00a0. Two.")

    sources = split("Plan A\u00a0. It is good.\nLine two.", "en", 100, 5000).sources

    assert sources == ["Plan A\u00a0.", "It is good.", "Line two."]


def panic(language: str, text: str) -> object:
    boundaries: object = PANICS("en", "A\u00a0.")
    return boundaries


PANICS = sentencex.get_sentence_boundaries


def test_a_line_on_which_sentencex_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is a real panic of sentencex, met on another text than ours."""
    monkeypatch.setattr(sentencex, "get_sentence_boundaries", panic)

    document = "One. Two.\n\nThree. " + "long " * 10
    pieces = split(document, "en", 100, 30)

    assert_the_law(document, pieces, 100, 30)
    assert pieces.sources[0] == "One. Two."
    assert pieces.sources[1] == "Three. long long long long"


@pytest.mark.sweep
@given(HOSTILE, st.integers(1, 20), st.integers(10, 200))
def test_any_text_joins_to_itself_without_sentencex(
    document: str, target: int, longest: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentencex, "get_sentence_boundaries", lambda *_: 1 / 0)
        assert_the_law(document, split(document, "en", target, longest), target, longest)


def test_offsets_that_lie_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some splitters start their offsets again at 0, or point beyond the text."""
    lies = [{"start_index": i} for i in (9, 0, 4, 4, -3, 700)]
    monkeypatch.setattr(sentencex, "get_sentence_boundaries", lambda *_: lies)

    pieces = split("One two three four.", "en", 100, 5000)

    assert_the_law("One two three four.", pieces, 100, 5000)
    assert pieces.sources == ["One", "two t", "hree four."]


def test_a_cut_that_does_not_join_is_replaced_by_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def overlapping(document: str, line: tuple[int, int], _: str) -> Iterator[tuple[int, int]]:
        yield line
        yield line

    monkeypatch.setattr(module, "sentence_spans", overlapping)

    assert split("One. Two.\nThree.", "en", 100, 5000).sources == ["One. Two.", "Three."]


def test_a_document_that_does_not_join_to_itself_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failure is an answer that costs nothing; a document with a hole is billed."""
    monkeypatch.setattr(module, "cut", lambda *_: Pieces(["", ""], ["something else"]))

    with pytest.raises(RuntimeError, match="do not join"):
        split("One. Two.", "en", 100, 5000)


def test_words_between_segments_do_not_pass_for_white_space() -> None:
    assert not joins_to(Pieces(["", " lost. ", ""], ["a", "b"]), "a lost. b")
    assert joins_to(Pieces(["", " ", ""], ["a", "b"]), "a b")


def test_only_the_language_of_a_tag_reaches_sentencex(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def asking(language: str, text: str) -> object:
        asked.append(language)
        return PANICS(language, text)

    monkeypatch.setattr(sentencex, "get_sentence_boundaries", asking)
    list(sentence_spans("One. Two.", (0, 9), "ZH-Hant-TW"))

    assert asked == ["zh"]
