"""A program that cannot do its work says why in one line, and does not start."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from urllib.parse import quote

import pytest

from local.server import Server, find
from partway.command import COMMANDS
from partway.store.database import Database
from partway.store.settings import DatabaseSettings, read_address
from partway.store.start import StartupError, check_version, open_database
from partway.worker.lease import Ready
from tests.actions import (
    ROOT,
    Programs,
    claimed,
    exchanged,
    free_port,
    request_row,
    run_to_the_end,
    segment_rows,
    submitted,
)
from tests.conftest import GIVEN, AnyServer

PROGRAMS = {
    "app": ("app", "--port", "1024"),
    "worker": ("worker", "--handler", "sleep"),
    "batch": ("batch",),
    "audit": ("audit",),
    "keys list": ("keys", "list"),
}


def endings(
    url: str | None, words: Sequence[Sequence[str]] = tuple(PROGRAMS.values()), **settings: object
) -> list[tuple[int, str, str]]:
    """How each of these programs ended: status, standard output, standard error."""
    environment = Programs(url or "", ROOT).environment(None, settings)
    if url is None:
        del environment["PARTWAY_DATABASE_URL"]
    return run_to_the_end(words, environment)


def all_refuse(url: str, why: str) -> None:
    """Fail unless each program refuses this database in one line with these words."""
    for program, (status, out, said) in zip(PROGRAMS, endings(url), strict=True):
        assert (status, out, said.count("\n")) == (1, "", 1), said
        assert said.startswith(f"{program}: ")
        assert re.search(why, said), said
        assert "secret" not in said


def changed(url: str, user: str = "", password: str = "", database: str = "") -> str:
    """The URL with another user, password or database."""
    place = read_address(url)
    options = url.partition("?")[2]
    return (
        f"mysql://{quote(user or place.user)}:{quote(password or place.password)}"
        f"@{place.host}:{place.port}/{quote(database or place.database)}?{options}"
    )


def test_a_server_that_cannot_be_reached_is_refused() -> None:
    port = free_port()
    all_refuse(
        f"mysql://me:secret@127.0.0.1:{port}/partway",
        f"cannot use the database at 127.0.0.1:{port}: 2003 Can't connect to MySQL server",
    )


def test_a_socket_that_is_not_there_is_refused() -> None:
    all_refuse(
        "mysql://me:secret@localhost/partway?unix_socket=/nowhere/socket",
        "cannot use the database at /nowhere/socket: 2003 Can't connect",
    )


def test_a_wrong_password_is_refused(url: str) -> None:
    all_refuse(changed(url, password="secret-and-wrong"), "1045 Access denied for user")


def test_a_database_that_does_not_exist_is_refused(url: str) -> None:
    all_refuse(changed(url, database="partway_nowhere"), "1049 Unknown database|1044 Access denied")


async def test_newer_tables_that_no_longer_serve_a_program_are_refused(
    db: Database, url: str
) -> None:
    await db.write("UPDATE schema_version SET version = 999 WHERE version = 2")

    await asyncio.to_thread(
        all_refuse,
        url,
        "holds schema version 999, which no longer serves programs of version 2: "
        "run a newer Partway",
    )


async def test_a_server_that_takes_the_words_and_does_not_lock_is_refused(
    db: Database, url: str
) -> None:
    await db.write("ALTER TABLE schema_version ENGINE = MyISAM")

    await asyncio.to_thread(all_refuse, url, r"the server \(.+\) accepts SKIP LOCKED but does not")


def test_a_server_without_the_tls_that_is_asked_for_is_refused(url: str) -> None:
    if GIVEN:
        pytest.skip("the given server may offer TLS")
    # One of the private servers offers none, the other a certificate that nobody vouches for.
    tls = f"{url}&tls=on"
    all_refuse(tls, "tls=on is set, but the server offers no TLS|CERTIFICATE_VERIFY_FAILED")


@pytest.fixture(params=["mariadb", "mysql"])
def logs_statements(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server whose binary log holds statements."""
    program = find(request.param)
    if program is None:
        pytest.skip(f"there is no {request.param} server here")
    options = ("--log-bin", "--server-id=1", "--binlog-format=STATEMENT")
    server = Server(program, tmp_path_factory.mktemp("binlog"), options)
    server.start()
    yield server
    server.stop()


def test_a_binary_log_of_statements_is_refused(logs_statements: Server) -> None:
    logs_statements.execute("CREATE DATABASE partway")
    all_refuse(logs_statements.url("partway"), "binary log by statement; set binlog_format = ROW")


async def test_a_binary_log_of_rows_is_not_refused(logs_statements: Server) -> None:
    logs_statements.execute("CREATE DATABASE partway")
    logs_statements.execute("SET GLOBAL binlog_format = ROW")
    async with open_database(DatabaseSettings(database_url=logs_statements.url("partway"))) as db:
        await submitted(db)


@pytest.mark.parametrize(
    "version, wanted",
    [
        ("5.7.44-log", "MySQL 8.0.16"),
        ("8.0.11-TiDB-v7.5.0", "MySQL 8.0.16"),
        ("8.0.15", "MySQL 8.0.16"),
        ("10.5.23-MariaDB-0+deb11u1", "MariaDB 10.6.0"),
        ("PostgreSQL", "no MySQL or MariaDB version"),
    ],
)
def test_a_server_that_is_too_old_is_refused_by_its_name(version: str, wanted: str) -> None:
    with pytest.raises(StartupError, match=wanted) as refusal:
        check_version(version)
    assert version in str(refusal.value)


@pytest.mark.parametrize(
    "version",
    ["8.0.16", "8.4.3", "9.7.4-2", "10.6.0-MariaDB", "10.11.19-MariaDB-log", "12.0.1-MariaDB"],
)
def test_a_server_that_is_new_enough_is_taken(version: str) -> None:
    check_version(version)


GOOD = "mysql://me:secret@127.0.0.1:3306/partway"

# The words of a program, its settings, and the one line that it ends with.
WRONG_SETTINGS = [
    (("app",), {"APP_PORT": "many"}, "app: PARTWAY_APP_PORT: Input should be a valid integer"),
    (("app", "--port", "0"), {}, "app: --port: Input should be greater than or equal to 1"),
    (("app", "--drain-seconds", "nan"), {}, "app: --drain-seconds: Input should be"),
    (("app", "--prot", "1"), {}, "app: No such option"),
    (("worker",), {}, "worker: PARTWAY_WORKER_HANDLER: Field required"),
    (
        ("worker", "--handler", "sleep"),
        {"WORKER_CONCURRENCY": "0"},
        "worker: PARTWAY_WORKER_CONCURRENCY: Input should be greater than or equal to 1",
    ),
    (
        ("batch",),
        {"BATCH_RETENTION_SECONDS": "0"},
        "batch: PARTWAY_BATCH_RETENTION_SECONDS: Input should",
    ),
    (("batch", "--grace-seconds", ""), {}, "batch: --grace-seconds: Input should be a valid"),
    (
        ("worker", "--handler", "sleep"),
        {"WORKER_CONCURENCY": "8", "APP_OF_ANOTHER": "1"},
        "worker: PARTWAY_WORKER_CONCURENCY: there is no such setting; did you mean "
        "PARTWAY_WORKER_CONCURRENCY?\n",
    ),
    (("batch",), {"BATCH_XYZ": "8"}, "batch: PARTWAY_BATCH_XYZ: there is no such setting\n"),
    (("batch",), {"POOL_SIZE": "0"}, "batch: PARTWAY_POOL_SIZE: Input should be greater"),
    (("usage",), {"POOL_SIZE": "x"}, "usage: PARTWAY_POOL_SIZE: Input should be a valid"),
]


def test_a_wrong_setting_is_named_in_one_line_and_ends_with_status_2() -> None:
    for words, settings, wanted in WRONG_SETTINGS:
        ((status, out, said),) = endings(GOOD, [words], **settings)
        assert (status, out, said.count("\n")) == (2, "", 1), said
        assert said.startswith(wanted)
        assert "secret" not in said


def test_a_missing_database_url_is_named() -> None:
    for program, (status, out, said) in zip(PROGRAMS, endings(None), strict=True):
        assert (status, out) == (2, "")
        assert said == f"{program}: PARTWAY_DATABASE_URL: Field required\n"


WRONG_URLS = {
    "": "must begin with mysql://",
    "postgresql://me:secret@host/partway": "must begin with mysql://",
    "mysql://me:secret@host": "must name a database",
    "mysql://me:secret@host/": "must name a database",
    "mysql://me:secret@host:many/partway": "the port must be a number up to 65535",
    "mysql://me:secret@host:70000/partway": "the port must be a number up to 65535",
    "mysql://me:secret@[host/partway": "must be a URL",
    # Unicode that would become a slash or a colon is refused by the library, which shows it all.
    "mysql://me:secret\u2100@host/partway": "must be a URL",
    "mysql://me:secret@host/partway?charset=utf8": "has an unknown option",
    "mysql://me:secret@host/partway?tls=maybe": "tls must be on or off",
    # Passwords that were not written as a URL wants them.
    "mysql://me:sec/secret@host/partway": "the port must be a number",
    "mysql://me:1/secret@host/partway": "must write / ",
    "mysql://me:1/x?secret@host/partway": "must write / ",
    "mysql://me:1/x#secret@host/partway": "must write / ",
    "mysql://me:sec#secret@host/partway": "the port must be a number",
}


@pytest.mark.parametrize("url, wanted", list(WRONG_URLS.items()))
def test_a_wrong_url_is_refused_and_its_password_never_shown(url: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wanted)) as error:
        read_address(url)
    for part in ("secret", "sec/", "sec#", "1/"):
        assert part not in str(error.value)


def test_a_program_names_the_setting_and_not_the_url() -> None:
    for url, wanted in list(WRONG_URLS.items())[:3]:
        ((status, out, said),) = endings(url, [("batch",)])
        assert (status, out) == (2, "")
        assert said.startswith(f"batch: PARTWAY_DATABASE_URL: {wanted}")
        assert said.count("\n") == 1
        assert "secret" not in said


def test_what_a_url_says_is_read() -> None:
    place = read_address("mariadb://a%40b:p%2F%23%3F%40@db.example:3307/part%20way?tls=on")
    assert (place.user, place.password) == ("a@b", "p/#?@")
    assert (place.host, place.port, place.database) == ("db.example", 3307, "part way")
    assert place.tls is not None
    place = read_address("mysql://u@localhost/d?unix_socket=/run/some%20where.sock")
    assert (place.password, place.unix_socket) == ("", "/run/some where.sock")
    assert place.tls is None


def test_help_names_every_setting_and_needs_none() -> None:
    words = {
        ("app", "--help"): ("--port", "PARTWAY_APP_PORT", "PARTWAY_DATABASE_URL"),
        ("worker", "--help"): ("--handler", "PARTWAY_WORKER_HANDLER", "PARTWAY_DATABASE_URL"),
        ("batch", "--help"): (
            "--once",
            "PARTWAY_BATCH_RETENTION_SECONDS",
            "usage",
            "audit",
            "status",
        ),
        ("usage", "--help"): ("--from", "--to", "--json"),
        ("migrate", "--help"): ("--check", "PARTWAY_DATABASE_URL"),
        ("--help",): tuple(COMMANDS),
    }
    for (status, out, said), wanted in zip(endings(None, list(words)), words.values(), strict=True):
        assert (status, said) == (0, "")
        assert [word for word in wanted if word not in out] == []


async def test_applying_the_schema_again_harms_nothing(db: Database, url: str) -> None:
    request_id, _ = await submitted(db)
    await claimed(db, request_id)
    before = (await request_row(db, request_id), await segment_rows(db, request_id))
    await db.write("DELETE FROM schema_version")

    for _ in range(2):
        async with open_database(DatabaseSettings(database_url=url)):
            pass

    assert (await request_row(db, request_id), await segment_rows(db, request_id)) == before
    recorded = await db.read("SELECT version FROM schema_version ORDER BY version")
    assert [row["version"] for row in recorded] == [1, 2]


async def test_programs_that_start_at_once_on_an_empty_database_all_start(
    programs: Programs, empty_url: str
) -> None:
    programs.url = empty_url
    client, *_ = await asyncio.gather(
        programs.app(), programs.worker(), programs.worker(), programs.batch()
    )

    answered = await client.post("/v1/requests", json={"segments": ["a", "b"]})

    assert answered.status_code == 200
    assert answered.json()["status"] == "completed"
    for program in programs.all:
        assert program.process.poll() is None
        assert "Traceback" not in program.said()
        assert "Warning" not in program.said()


@pytest.fixture
async def small_account(server: AnyServer, empty_url: str) -> AsyncIterator[str]:
    """The URL of the database for an account that may change rows and nothing else."""
    if GIVEN:
        pytest.skip("the given account may not make others")
    server.execute("CREATE USER small@'%%' IDENTIFIED BY 'small'")
    database = read_address(empty_url).database
    server.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO small@'%%'")
    yield changed(empty_url, user="small", password="small")
    server.execute("DROP USER small@'%%'")


async def test_an_account_without_the_right_to_make_tables_will_do_where_they_exist(
    small_account: str, empty_url: str
) -> None:
    with pytest.raises(
        StartupError, match=r"migration 0001_\w+\.sql stopped: 1142 .*command denied"
    ):
        async with open_database(DatabaseSettings(database_url=small_account)):
            pass
    async with open_database(DatabaseSettings(database_url=empty_url)):
        pass
    async with open_database(DatabaseSettings(database_url=small_account)) as db:
        request_id, _ = await submitted(db)
        assert len(await claimed(db, request_id)) == 1


@contextlib.contextmanager
def engine_of_the_server(server: AnyServer, name: str) -> Iterator[None]:
    """Tables that do not name an engine get this one for a while."""
    server.execute(f"SET GLOBAL default_storage_engine = {name}")
    try:
        yield
    finally:
        server.execute("SET GLOBAL default_storage_engine = InnoDB")


async def test_what_the_server_has_by_default_does_not_matter(
    server: AnyServer, empty_url: str
) -> None:
    with engine_of_the_server(server, "MyISAM"):
        async with open_database(DatabaseSettings(database_url=empty_url)) as db:
            tables = await db.read(
                "SELECT table_name AS name, engine AS engine, table_collation AS collation"
                " FROM information_schema.tables WHERE table_schema = DATABASE()"
            )
            assert {table["name"] for table in tables} == {
                *("meter", "requests", "schema_version", "segments"),
                *("access_keys", "allowances", "sessions", "workers"),
            }
            assert {table["engine"] for table in tables} == {"InnoDB"}
            assert {table["collation"] for table in tables} == {"utf8mb4_bin"}
            texts = ["🫠 𠮷 🇩🇰", "\u0000\ufeff\ufffe", "e\u0301 ÿ"]
            request_id, _ = await submitted(db, texts)
            leases = await claimed(db, request_id, 3)
            assert [lease.source for lease in leases] == texts
            await exchanged(db, [Ready(lease, lease.source[::-1]) for lease in leases])
            rows = await segment_rows(db, request_id)
            assert [row["result"] for row in rows] == [text[::-1] for text in texts]
