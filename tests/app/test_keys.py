"""Keys are made, listed and revoked where the database is, and each is shown once."""

import asyncio
import re

import pytest

from partway.app.api.access import Caller, digest, find_caller
from partway.store.database import Database
from tests.store.test_start import endings

# The command's words are its own, whichever server holds the rows.
pytestmark = pytest.mark.one_server

KEY = re.compile(r"pw_[A-Za-z0-9_-]{43}\n")


async def said_by(url: str, *words: str) -> tuple[int, str, str]:
    """How `partway keys` ended: status, standard output, standard error."""
    (ending,) = await asyncio.to_thread(endings, url, [("keys", *words)])
    return ending


async def listed_keys(url: str) -> list[dict[str, str]]:
    """The lines of the list, by the names in its first."""
    status, out, said = await said_by(url, "list")
    assert (status, said) == (0, "")
    names, *lines = (line.split("\t") for line in out.splitlines())
    return [dict(zip(names, line, strict=True)) for line in lines]


async def test_a_new_key_stands_alone_on_standard_output_and_works(url: str, db: Database) -> None:
    status, out, said = await said_by(url, "create", "--tenant", "acme", "--name", "billing run")

    assert status == 0
    assert KEY.fullmatch(out)
    prefix = digest(out.strip()).hex()[:12]
    assert said == (
        "keys create: a key of acme for requests; it is shown this once, "
        f"and `partway keys revoke {prefix}` ends it\n"
    )
    assert await find_caller(db, out.strip(), None) == Caller("acme", frozenset({"requests"}))
    (row,) = await db.read("SELECT * FROM access_keys")
    assert row["hash"] == digest(out.strip())
    assert (row["name"], row["revoked_at"]) == ("billing run", None)


@pytest.mark.parametrize(
    "flags, scopes",
    [
        (["--scope", "operator"], {"operator"}),
        (["--scope", "operator", "--scope", "requests"], {"requests", "operator"}),
        (["--scope", "requests", "--scope", "requests"], {"requests"}),
    ],
)
async def test_a_key_is_for_what_it_was_made_for(
    url: str, db: Database, flags: list[str], scopes: set[str]
) -> None:
    _, out, _ = await said_by(url, "create", "--tenant", "acme", *flags)

    assert await find_caller(db, out.strip(), None) == Caller("acme", frozenset(scopes))


async def test_the_first_key_can_be_made_before_any_program_has_run(empty_url: str) -> None:
    status, out, _ = await said_by(empty_url, "create", "--tenant", "acme")

    assert (status, bool(KEY.fullmatch(out))) == (0, True)


async def test_the_list_shows_every_key_and_none_of_them(url: str) -> None:
    keys = [(await said_by(url, "create", "--tenant", t))[1] for t in ("beta", "acme", "acme")]
    await said_by(url, "revoke", digest(keys[2].strip()).hex()[:12])

    rows = await listed_keys(url)

    assert [row["tenant"] for row in rows] == ["acme", "acme", "beta"]
    assert [row["key"] for row in rows] == [digest(keys[n].strip()).hex()[:12] for n in (1, 2, 0)]
    assert [bool(row["revoked_at"]) for row in rows] == [False, True, False]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d", row["created_at"]) for row in rows)
    _, out, _ = await said_by(url, "list")
    assert not any(key.strip()[3:] in out for key in keys)


async def test_a_revoked_key_is_worth_nothing_and_stays_so(url: str, db: Database) -> None:
    key = (await said_by(url, "create", "--tenant", "acme", "--name", "old"))[1].strip()
    prefix = digest(key).hex()[:12]

    ends = [await said_by(url, "revoke", prefix)]
    when = await db.read("SELECT revoked_at FROM access_keys")
    ends.append(await said_by(url, "revoke", prefix))

    assert await db.read("SELECT revoked_at FROM access_keys") == when
    assert ends == [(0, "", f"keys revoke: the key {prefix} of acme (old) is revoked\n")] * 2
    assert await find_caller(db, key, None) is None
    (row,) = await db.read("SELECT created_at < revoked_at AS is_later FROM access_keys")
    assert row["is_later"]


async def test_what_names_no_key_or_more_than_one_revokes_none(url: str, db: Database) -> None:
    for last in (1, 2):
        await db.write(
            "INSERT INTO access_keys VALUES (%s, 'acme', 'requests', '', NOW(6), NULL)",
            (bytes([0xAB] * 31 + [last]),),
        )

    unknown = await said_by(url, "revoke", "abac")
    both = await said_by(url, "revoke", "abab")
    one = await said_by(url, "revoke", "ab" * 31 + "01")

    assert unknown == (1, "", "keys revoke: no key begins with abac\n")
    assert both == (1, "", "keys revoke: more than one key begins with abab: give more digits\n")
    assert one[0] == 0
    rows = await db.read("SELECT revoked_at IS NULL AS works FROM access_keys ORDER BY hash")
    assert [row["works"] for row in rows] == [0, 1]


GOOD = "mysql://me:secret@127.0.0.1:1/partway"


def test_a_wrong_word_is_named_and_the_status_is_2() -> None:
    for words, wanted in (
        (("make",), "keys: No such command 'make'"),
        (("create",), "keys create: Missing option '--tenant'"),
        (("create", "--tenant", "a b"), "keys create: .*--tenant.*: a tenant is a"),
        (("create", "--tenant", "*"), "keys create: .*--tenant.*: a tenant is a"),
        (("create", "--tenant", "a", "--scope", "all"), "keys create: .*--scope.*: 'all' is not"),
        (("create", "--tenant", "a", "--name", "a\tb"), "keys create: .*--name.*: a name"),
        (("revoke",), "keys revoke: Missing argument 'PREFIX'"),
        (("revoke", "abc"), "keys revoke: .*PREFIX.*: the digits that `partway keys list` shows"),
        (("revoke", "pw_abcdef"), "keys revoke: .*PREFIX.*: the digits that"),
    ):
        ((status, out, said),) = endings(GOOD, [("keys", *words)])
        assert (status, out, said.count("\n")) == (2, "", 1), said
        assert re.match(wanted, said), said


def test_keys_without_a_word_show_their_help() -> None:
    ((status, out, said),) = endings(GOOD, [("keys",)])

    assert (status, out) == (2, "")
    assert "Usage: partway keys" in said


def test_a_database_that_is_away_is_named_and_the_status_is_1() -> None:
    ((status, out, said),) = endings(GOOD, [("keys", "list")])

    assert (status, out, said.count("\n")) == (1, "", 1)
    assert said.startswith("keys list: cannot use the database at 127.0.0.1:1: 2003")
    assert "secret" not in said


def test_help_says_what_there_is() -> None:
    words = [("app", "--help"), ("keys", "--help"), ("keys", "create", "--help")]
    wanted = [("partway keys", "--keyless"), ("create", "list", "revoke"), ("--tenant",)]
    for (status, out, said), names in zip(endings(None, words), wanted, strict=True):
        assert (status, said) == (0, "")
        assert [name for name in names if name not in out] == []
