"""Whatever an operator writes, a setting is taken or named, and a password is never shown."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from unittest import mock
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic_settings import BaseSettings

from partway.store.settings import DatabaseSettings, read_address, read_settings
from partway.worker.handlers import read_settings as read_handler_settings
from proof.settings_page import SETTINGS
from tests.sweeps import sampled

SECRET = "S3cr3t-of-mine"

SAME = settings(
    max_examples=sampled(300, sample=60),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

# What an environment can hold: anything but NUL, and bytes that are no UTF-8 as half surrogates.
ENVIRONMENT = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)
)

NUMBERS = (
    st.integers().map(str)
    | st.floats().map(str)
    | st.sampled_from(["", " 5 ", "1e400", "-0", "0x10", "1_000", "٣", "nan", "9" * 5000, "true"])
)

URLS = st.builds(
    "{}://{}:{}@{}:{}/{}?{}#{}".format,
    st.sampled_from(["mysql", "mariadb", "MYSQL", "http", ""]),
    *[ENVIRONMENT] * 2,
    st.sampled_from(["localhost", "[::1]", "[", "a b", ""]) | ENVIRONMENT,
    st.sampled_from(["3306", "", "-1", "99999", "٣"]) | ENVIRONMENT,
    *[ENVIRONMENT] * 3,
)


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Exactly these settings, for as long as the block lasts."""
    others = {k: v for k, v in os.environ.items() if not k.startswith("PARTWAY_")}
    with mock.patch.dict(os.environ, {**others, **values}, clear=True):
        yield


def refusal(read: Callable[[], object]) -> str | None:
    """What a refusal of settings says; None when they are taken."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            read()
    except SystemExit as end:
        return f"{end.code} {said.getvalue()}"
    except ValueError as error:
        return f"{error}\n"
    assert said.getvalue() == ""
    return None


@pytest.mark.sweep
@SAME
@given(ENVIRONMENT | URLS)
@example("mysql://[")
@example("mysql://a:b@[::1]]/d")
@example("mysql://a@h:٣/d")
@example("mysql://h/d?unix_socket=%00")
def test_any_text_as_a_url_is_read_or_refused(url: str) -> None:
    said = refusal(lambda: read_address(url))

    if said is None:
        place = read_address(url)
        assert place.database
        assert 0 < place.port <= 65_535
    else:
        assert said.isascii()
        assert len(said) < 100


@pytest.mark.sweep
@SAME
@given(ENVIRONMENT, ENVIRONMENT)
@example("a/", "")
@example("a#", "?")
@example("1@", "/x")
@example("1:", "%")
@example("\u2100", "")
def test_a_password_written_anyhow_is_read_or_refused_and_never_shown(
    before: str, after: str
) -> None:
    url = f"mysql://me:{before}{SECRET}{after}@host/partway"
    with environment(PARTWAY_DATABASE_URL=url):
        said = refusal(lambda: read_settings(DatabaseSettings, "app"))

    if said is None:
        assert SECRET in read_address(url).password
    else:
        assert said.startswith("2 app: PARTWAY_DATABASE_URL: ")
        assert said.count("\n") == 1
        assert SECRET not in said


@pytest.mark.sweep
@SAME
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_password_written_as_a_url_wants_it_comes_out_as_it_is(password: str) -> None:
    assert read_address(f"mysql://me:{quote(password, safe='')}@host/d").password == password


def fields() -> Iterator[tuple[type[BaseSettings], str]]:
    """Each setting that there is."""
    for kind in SETTINGS:
        for name in kind.model_fields:
            yield kind, name


GOOD = {
    "PARTWAY_DATABASE_URL": "mysql://host/d",
    "PARTWAY_WORKER_HANDLER": "sleep",
    "PARTWAY_HTTP_URL": "http://host/",
}


@pytest.mark.sweep
@pytest.mark.parametrize("kind, name", list(fields()), ids=lambda it: getattr(it, "__name__", it))
def test_any_text_as_a_setting_is_taken_or_named_and_not_shown(
    kind: type[BaseSettings], name: str
) -> None:
    setting = f"{kind.model_config.get('env_prefix', '')}{name}".upper()

    @settings(SAME, max_examples=sampled(60, sample=15))
    @given(ENVIRONMENT | NUMBERS | st.sampled_from(["{" + SECRET, f'{{"a": "{SECRET}\\n"}}']))
    def read(text: str) -> None:
        with environment(**GOOD | {setting: text}):
            if kind.__module__.startswith("partway.worker.handlers"):
                said = refusal(lambda: read_handler_settings(kind))
            else:
                said = refusal(lambda: read_settings(kind, "program"))
        if said is not None:
            assert setting in said.upper() or f"program: {name} " in said or f" {name} " in said
            assert said.count("\n") == 1
            assert SECRET not in said

    read()
