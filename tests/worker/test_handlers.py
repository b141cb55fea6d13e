"""A handler is found by its name, reads its settings, and can be tried without a database."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partway.worker.handler import BUILT_IN, Context, HandlerError, Reject, Retry, load
from partway.worker.handlers.sleep import Sleep
from tests.worker.test_compute import computing, said, work

ROOT = Path(__file__).parents[2]

# As it is installed: `python -m partway` would run a partway.py of the folder.
COMMAND = Path(sys.executable).with_name("partway")


def try_out(*argv: str, given: bytes = b"", folder: Path = ROOT) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a trial."""
    ended = subprocess.run(
        [COMMAND, "worker", "try", *argv],
        input=given,
        capture_output=True,
        cwd=folder,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()


# Loading.


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_what_comes_with_partway_has_a_short_name(name: str) -> None:
    assert load(name).__module__ == f"partway.worker.handlers.{name}"


@pytest.mark.parametrize("name", ["", ":", "x:", ":x", "sleepy", "partway.worker.handlers.sleep"])
def test_a_name_that_names_nothing_is_refused(name: str) -> None:
    with pytest.raises(HandlerError, match=r"neither package.module:name nor one of apertium, "):
        load(name)


def test_an_error_inside_the_module_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_mt.py").write_text("import no_such_library\n")
    (tmp_path / "wrong_mt.py").write_text("def f(:\n")
    (tmp_path / "leaving_mt.py").write_text("raise SystemExit('bye')\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(HandlerError, match=r"'half_mt:f' .*No module named 'no_such_library'$"):
        load("half_mt:f")
    with pytest.raises(HandlerError, match=r"'wrong_mt:f' cannot be imported: SyntaxError"):
        load("wrong_mt:f")
    with pytest.raises(HandlerError, match=r"cannot be imported: SystemExit: bye$"):
        load("leaving_mt:f")


@pytest.mark.parametrize("after", [-1, float("inf"), float("nan")])
def test_a_retry_must_be_a_time(after: float) -> None:
    with pytest.raises(ValueError, match="after must be a number of seconds"):
        Retry(after)


def test_remaining_never_goes_below_zero() -> None:
    context = Context({}, 0, 1, time.monotonic() - 5)

    assert context.remaining() == 0.0


# sleep


async def test_sleep_returns_the_text_after_the_seconds_of_its_params() -> None:
    async with computing("sleep", seats=2) as compute:
        ending = await compute.run(work(" a\n", seconds=0.25))

    assert said(ending) == ("done", " a\n")
    assert ending.run_seconds >= 0.25


async def test_sleep_takes_its_seconds_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARTWAY_SLEEP_SECONDS", "0")
    async with computing("sleep") as compute:
        ending = await compute.run(work(left=30))

    assert ending.kind == "done"


@pytest.mark.parametrize("seconds", ["1", -0.1, True, None, [], float("nan"), float("inf")])
async def test_sleep_rejects_seconds_that_are_none(seconds: object) -> None:
    sleep = Sleep()
    sleep.setup()

    with pytest.raises(Reject, match="bad_params: seconds must be a number from 0 up"):
        await sleep("text", Context({"seconds": seconds}, 0, 1, time.monotonic() + 1))


@pytest.mark.parametrize("seconds", ["-1", "soon", "nan"])
def test_a_wrong_setting_is_named(seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTWAY_SLEEP_SECONDS", seconds)

    with pytest.raises(ValueError, match=r"^PARTWAY_SLEEP_SECONDS: Input should be "):
        Sleep().setup()


def test_a_setting_that_is_misspelt_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTWAY_SLEEP_SECOND", "3")

    with pytest.raises(
        ValueError, match=r"^PARTWAY_SLEEP_SECOND: .*did you mean PARTWAY_SLEEP_SECONDS"
    ):
        Sleep().setup()


# Trying.


def test_a_trial_prints_the_result_and_nothing_else() -> None:
    status, out, err = try_out("--handler", "sleep", "--text", "hé", "--param", "seconds=0.1")

    assert (status, out) == (0, "hé\n")
    assert err.startswith("done after 0.")


def test_a_trial_finds_a_handler_in_the_current_folder_and_reads_standard_input(
    tmp_path: Path,
) -> None:
    (tmp_path / "my_mt.py").write_text(
        "def shout(text, ctx):\n"
        "    print('thinking')\n"
        "    return text.upper() + ctx.params['end']\n"
    )
    status, out, err = try_out(
        "--handler", "my_mt:shout", "--param", "end=!", given="größe".encode(), folder=tmp_path
    )

    assert (status, out) == (0, "GRÖSSE!\n")
    assert "thinking" in err


# What a user's own folder may hold: files with the names of our folders, and of what we import.
OWN_NAMES = ("app/__init__", "worker", "store", "client", "batch", "partway", "click", "json")


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """A folder with a handler, and with modules that raise when they are imported."""
    for name in OWN_NAMES:
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"raise SystemExit('the module {name} of the user was imported')\n")
    (tmp_path / "mine.py").write_text(
        "import json\n"
        "from partway import Context, Reject, Retry\n"
        "def handler(text: str, ctx: Context) -> str:\n"
        "    return text.upper()\n"
    )
    return tmp_path


def test_no_file_beside_a_handler_stands_in_for_a_module_of_ours(own_folder: Path) -> None:
    status, out, err = try_out("--handler", "mine:handler", "--text", "hé", folder=own_folder)

    assert (status, out) == (0, "HÉ\n"), err


def test_python_m_partway_takes_the_modules_of_the_folder_last_too(own_folder: Path) -> None:
    # Python itself would run this one: it looks into the folder before anything of ours is run.
    (own_folder / "partway.py").unlink()
    of_mine = ("--handler", "mine:handler", "--text", "x")
    ended = subprocess.run(
        [sys.executable, "-m", "partway", "worker", "try", *of_mine],
        capture_output=True,
        cwd=own_folder,
        timeout=60,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (0, b"X\n"), ended.stderr


def test_a_handler_may_be_called_like_a_folder_of_ours(own_folder: Path) -> None:
    for path in ("app/mt.py", "worker.py"):
        (own_folder / path).write_text("def handler(text, ctx):\n    return __name__\n")
    (own_folder / "app/__init__.py").write_text("")

    tried = [
        try_out("--handler", f"{module}:handler", "--text", "x", folder=own_folder)
        for module in ("app.mt", "worker")
    ]

    assert [(status, out) for status, out, _ in tried] == [(0, "app.mt\n"), (0, "worker\n")]


def test_a_handler_called_like_a_module_of_python_is_refused_with_the_place_of_that(
    own_folder: Path,
) -> None:
    status, _, err = try_out("--handler", "json:handler", "--text", "x", folder=own_folder)

    assert status == 1
    assert "module 'json' has no attribute 'handler' (" in err
    assert err.endswith("json/__init__.py)\n")


@pytest.mark.parametrize(
    "argv, reason",
    [
        (["--handler", "sleep", "--param", "seconds=-1"], "rejected after 0.0.* s: bad_params: "),
        (["--handler", "sleep", "--seconds", "0.2"], "failed after .* s: time limit of 0.2 s reac"),
        (["--handler", "my_mt:x"], "handler 'my_mt:x' cannot be imported: ModuleNotFoundError: "),
    ],
)
def test_a_trial_that_fails_says_why(argv: list[str], reason: str) -> None:
    status, out, err = try_out(*argv, "--text", "x")

    assert (status, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert re.match(reason, err)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--handler", "sleep", "--text", "x", "--param", "seconds"],
        ["--handler", "sleep", "--text", "x", "--seconds", "0"],
        ["--handler", "sleep", "--text", "x", "--seconds", "nan"],
        ["--handler", "sleep", "--txet", "x"],
        ["--handler", "sleep"],
    ],
)
def test_wrong_usage_of_a_trial_is_status_2(argv: list[str]) -> None:
    status, out, err = try_out(*argv, given=b"\xff")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("worker try: ")
