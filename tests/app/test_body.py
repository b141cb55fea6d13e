"""What comes in is taken as it was meant, or refused with the name of what is wrong."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partway.app.api.body import MAX_ERRORS_NAMED, check_public_id, read_submission
from partway.app.problems import Problem
from partway.app.requests.split import Pieces
from partway.app.requests.submission import Submission
from partway.app.settings import AppSettings

# The text that no answer may repeat.
SECRET = "Sehr geheim"

LIMITS = AppSettings(
    max_segments=50, max_segment_characters=100, max_params_bytes=1000, max_deadline_ms=60_000
)


def body(**fields: Any) -> bytes:
    """A request that is right but for these fields; a field that is ... is left out."""
    whole = {"document": SECRET, **fields}
    return json.dumps({name: it for name, it in whole.items() if it is not ...}).encode()


def raw(fields: str) -> bytes:
    """A request with these fields, as they are written."""
    return b'{"document": "' + SECRET.encode() + b'", ' + fields.encode() + b"}"


def deep(levels: int) -> str:
    """A list in a list, so many times."""
    return '"params": {"a": ' + "[" * levels + "]" * levels + "}"


DEADLINE, PARAMS = "/deadline_ms", "/params"
MISSING, LEAVING = "/on_missing", "/on_disconnect"

# What a caller may send, the status it gets, and the places that are named; None: none is.
BAD: dict[str, tuple[bytes, int, list[str] | None]] = {
    "nothing": (b"", 400, None),
    "white space": (b" \n", 400, None),
    "not JSON": (SECRET.encode(), 400, None),
    "half of it": (b'{"document": "' + SECRET.encode(), 400, None),
    "two of it": (body() + body(), 400, None),
    "a form": (b"document=" + SECRET.encode(), 400, None),
    "not UTF-8": (b'{"document": "' + SECRET.encode() + b'\xff"}', 400, None),
    "UTF-16": (body().decode().encode("utf-16"), 400, None),
    "a byte order mark": (b"\xef\xbb\xbf" + body(), 400, None),
    "NaN": (raw('"params": {"a": NaN}'), 400, None),
    "Infinity": (raw('"deadline_ms": Infinity'), 400, None),
    "-Infinity": (raw('"params": {"a": [-Infinity]}'), 400, None),
    "1e999": (raw('"params": {"a": 1e999}'), 400, None),
    "a number of 5,000 digits": (raw(f'"params": {{"a": {"9" * 5000}}}'), 400, None),
    "100,000 levels": (raw(deep(100_000)), 400, None),
    "a control character": (b'{"document": "a\x01b"}', 400, None),
    "a list": (b"[]", 422, [""]),
    "a number": (b"7", 422, [""]),
    "null": (b"null", 422, [""]),
    "a string": (json.dumps(SECRET).encode(), 422, [""]),
    "an empty object": (b"{}", 422, [""]),
    "both": (body(segments=["a"]), 422, [""]),
    "neither": (body(document=...), 422, [""]),
    "both null": (body(document=None, segments=None), 422, [""]),
    "an empty document": (body(document=""), 422, ["/document"]),
    "a document that is a number": (body(document=5), 422, ["/document"]),
    "a document that is a list": (body(document=[SECRET]), 422, ["/document"]),
    "no segments": (body(document=..., segments=[]), 422, ["/segments"]),
    "segments that are text": (body(document=..., segments=SECRET), 422, ["/segments"]),
    "a segment that is a number": (body(document=..., segments=["a", 5]), 422, ["/segments/1"]),
    "a segment that is null": (body(document=..., segments=[None]), 422, ["/segments/0"]),
    "too many segments": (body(document=..., segments=["a"] * 51), 422, ["/segments"]),
    "a segment too long": (body(document=..., segments=["a", "b" * 101]), 422, ["/segments/1"]),
    "too many sentences": (body(document="word " * 1100), 422, ["/document"]),
    "an unknown field": (body(documents="a", **{"a/b~": 1}), 422, ["/documents", "/a~1b~0"]),
    "a field in capitals": (body(Document="a"), 422, ["/Document"]),
    "half a character": (raw('"x": 1').replace(b"heim", b"\\ud83d"), 422, ["/document"]),
    "half a character in a segment": (b'{"segments": ["a", "\\udc00"]}', 422, ["/segments/1"]),
    "half a character in a name": (raw('"params": {"\\ud800": 1}'), 422, [PARAMS]),
    "half a character below": (raw('"params": {"a": ["\\ud800"]}'), 422, ["/params/a/0"]),
    "half a character as a field": (raw('"\\ud800": 1'), 422, [""]),
    "101 levels": (raw(deep(100)), 422, ["/params/a" + "/0" * 99]),
    "900 levels": (raw(deep(900)), 422, ["/params/a" + "/0" * 99]),
    "no time": (body(deadline_ms=0), 422, [DEADLINE]),
    "less than no time": (body(deadline_ms=-1), 422, [DEADLINE]),
    "part of a millisecond": (body(deadline_ms=1.5), 422, [DEADLINE]),
    "a deadline as text": (body(deadline_ms="5"), 422, [DEADLINE]),
    "a deadline that is true": (body(deadline_ms=True), 422, [DEADLINE]),
    "a deadline that is null": (body(deadline_ms=None), 422, [DEADLINE]),
    "too much time": (body(deadline_ms=60_001), 422, [DEADLINE]),
    "a deadline of 400 digits": (raw(f'"deadline_ms": {"9" * 400}'), 422, [DEADLINE]),
    "a language that is none": (body(language="english please"), 422, ["/language"]),
    "an empty language": (body(language=""), 422, ["/language"]),
    "a language with a line end": (body(language="en\n"), 422, ["/language"]),
    "a language too long": (body(language="en" + "-abcdefgh" * 4), 422, ["/language"]),
    "a language that is a number": (body(language=1), 422, ["/language"]),
    "a language in other letters": (body(language="日本"), 422, ["/language"]),
    "params that are a list": (body(params=[1]), 422, [PARAMS]),
    "params that are text": (body(params=SECRET), 422, [PARAMS]),
    "params that are null": (body(params=None), 422, [PARAMS]),
    "params too large": (body(params={"a": "ü" * 500}), 422, [PARAMS]),
    "another on_missing": (body(on_missing="error"), 422, [MISSING]),
    "an on_missing that is a number": (body(on_missing=0), 422, [MISSING]),
    "another on_disconnect": (body(on_disconnect="stop"), 422, [LEAVING]),
    "an on_disconnect that is true": (body(on_disconnect=True), 422, [LEAVING]),
    "several faults": (body(deadline_ms=0, language=5), 422, ["/language", DEADLINE]),
    "two limits at once": (
        body(document=..., segments=["a" * 101], deadline_ms=99_999),
        422,
        [DEADLINE, "/segments/0"],
    ),
}


def taken(content: bytes, public_id: str | None = None) -> Submission:
    """The request in a body, at the limits of these tests."""
    return read_submission(content, "application/json", public_id, "own", LIMITS)


def problem(content: bytes, content_type: str | None = "application/json") -> Problem:
    """The problem with a body."""
    with pytest.raises(Problem) as found:
        read_submission(content, content_type, None, "own", LIMITS)
    return found.value


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_its_place_is_named(name: str) -> None:
    content, status, places = BAD[name]

    found = problem(content)

    assert found.status == status
    assert [wrong.pointer for wrong in found.wrong] == (places or [])
    assert found.detail


@pytest.mark.parametrize("name", BAD)
def test_a_refusal_never_repeats_the_text(name: str) -> None:
    said = json.dumps(problem(BAD[name][0]).document())

    assert SECRET not in said
    assert len(said) < 1000


@pytest.mark.parametrize(
    "content",
    [
        b'{"segments": [' + b"1," * 500_000 + b"1]}",
        b'{"segments": [' + b'"\\ud800",' * 100_000 + b'""]}',
        b'{"segments": [' + (b'"' + b"a" * 101 + b'",') * 10_000 + b'""]}',
        b"{" + b",".join(b'"a%d": 1' % n for n in range(100_000)) + b"}",
    ],
    ids=["numbers", "half characters", "long", "unknown"],
)
def test_a_hundred_thousand_faults_are_answered_with_the_first_few(content: bytes) -> None:
    found = problem(content)

    assert 1 <= len(found.wrong) <= MAX_ERRORS_NAMED
    assert len(json.dumps(found.document())) < 3000


def test_a_name_as_long_as_a_document_is_not_repeated() -> None:
    found = problem(body(**{"x" * 100_000: 1}))

    assert found.wrong[0].pointer == "/" + "x" * 64


@pytest.mark.parametrize(
    "content_type",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "application/json5", "json"],
)
def test_another_content_type_is_refused(content_type: str | None) -> None:
    assert problem(body(), content_type).status == 415


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=utf-8", "application/json;"]
)
def test_json_is_taken_however_its_type_is_written(content_type: str) -> None:
    assert read_submission(body(), content_type, None, "own", LIMITS).is_document


@pytest.mark.parametrize(
    "public_id", ["a", "7", "A.b_c~d-e", "x" * 64, "0f8fad5b-d9cb-469f-a165-70867728950e"]
)
def test_an_id_of_the_allowed_characters_is_taken(public_id: str) -> None:
    assert check_public_id(public_id) == public_id


@pytest.mark.parametrize(
    "public_id", ["", ".", "..", "-a", "~", "a b", "a/b", "é", "a\n", "a\x00", "x" * 65, "a%", "ａ"]
)
def test_an_id_with_other_characters_is_refused(public_id: str) -> None:
    with pytest.raises(Problem) as found:
        check_public_id(public_id)

    assert found.value.status == 422


def test_a_request_that_says_nothing_gets_the_defaults() -> None:
    new = taken(body(document="One. Two."))

    assert new.pieces == Pieces(["", " ", ""], ["One.", "Two."])
    assert new.deadline_ms == 30_000
    assert new.params == "{}"
    assert new.on_missing == "null"


def test_a_null_field_is_a_field_left_out() -> None:
    new = taken(body(segments=None, on_missing=None, on_disconnect=None))

    assert new.is_document
    assert (new.on_missing, new.on_disconnect) == ("null", "cancel")


def test_who_can_come_back_is_not_cancelled_by_leaving() -> None:
    assert taken(body(), None).on_disconnect == "cancel"
    assert taken(body(), "mine").on_disconnect == "continue"
    assert taken(body(on_disconnect="cancel"), "mine").on_disconnect == "cancel"
    assert taken(body(on_disconnect="continue"), None).on_disconnect == "continue"


def test_segments_are_taken_as_they_are() -> None:
    sources = ["  one ", "", "\n", "two. three."]

    new = taken(body(document=..., segments=sources))

    assert new.pieces.sources == sources
    assert not new.is_document


def test_the_limits_themselves_are_allowed() -> None:
    assert taken(body(deadline_ms=60_000)).deadline_ms == 60_000
    assert len(taken(body(document=..., segments=["a"] * 50)).pieces.sources) == 50
    assert taken(body(document=..., segments=["a" * 100])).pieces.sources == ["a" * 100]
    assert len(taken(body(params={"a": "ü" * 495 + "x"})).params.encode()) == 1000
    assert taken(raw(deep(99))).params.count("[") == 99


def test_a_whole_number_is_whole_however_it_is_written() -> None:
    for written in ("20000", "20000.0", "2e4"):
        content = raw(f'"deadline_ms": {written}')

        assert taken(content).deadline_ms == 20_000
        assert taken(content).body_hash == taken(body(deadline_ms=20_000)).body_hash


def test_who_says_no_deadline_is_never_told_that_it_is_too_long() -> None:
    short = AppSettings(max_deadline_ms=2000)

    new = read_submission(body(), "application/json", None, "own", short)

    assert new.deadline_ms == 2000


def test_sentences_are_joined_where_fewer_segments_are_allowed_than_aimed_at() -> None:
    few = AppSettings(target_segments=100, max_segments=5)

    new = read_submission(body(document="A sentence. " * 50), "application/json", None, "own", few)

    assert 1 < len(new.pieces.sources) <= 5


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abü~/", max_size=3), inner)
    ),
    max_leaves=8,
)


@pytest.mark.sweep
@given(st.dictionaries(st.text("abc"), JSON, max_size=4))
def test_params_are_handed_on_unchanged(params: dict[str, Any]) -> None:
    content = body(params=params)
    large = AppSettings(max_params_bytes=1_000_000)

    new = read_submission(content, "application/json", None, "own", large)

    assert repr(json.loads(new.params)) == repr(json.loads(content)["params"])


@pytest.mark.parametrize(
    "other",
    [
        body(document=SECRET + "."),
        body(language="de"),
        body(params={"a": 1}),
        body(deadline_ms=29_999),
        body(on_missing="omit"),
        body(document=..., segments=[SECRET]),
    ],
)
def test_another_body_has_another_hash(other: bytes) -> None:
    assert taken(other).body_hash != taken(body()).body_hash


def test_the_same_request_written_otherwise_has_the_same_hash() -> None:
    one = b'{"document":"\\u00e9 /", "params": {"a": 1, "b": 2}}'
    other = '{ "params": {"b": 2, "a": 1},\n"document": "é \\/", "deadline_ms": 30000}'.encode()

    assert taken(one).body_hash == taken(other).body_hash
    assert taken(one.replace(b"1", b"1.0")).body_hash != taken(one).body_hash
    assert taken(one.replace(b"1", b"true")).body_hash != taken(one).body_hash
