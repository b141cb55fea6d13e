"""The code is laid out as it is deployed, and nothing in it stands without a sentence."""

import ast
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from partway.store.database import Database
from proof.settings_page import SETTINGS
from tests.actions import ROOT

PROGRAMS = ("app", "worker", "batch")
FLOORS = (*PROGRAMS, "store", "client", "local", "bench", "tests", "proof")

# Which folder may import which, of those that a checkout has.
MAY_IMPORT = {
    "app": {"app", "store"},
    "worker": {"worker", "store"},
    "batch": {"batch", "store"},
    "store": {"store"},
    "client": {"client"},
    "local": {"local"},
}

# The floors of the app from the top down: arrows only downwards. What lies beside them, such as the
# settings, imports none of them; what puts them together imports all.
APP_FLOORS = ("pages", "api", "requests")
APP_TOP = {"app/application.py", "app/serve.py", "app/command.py"}

# A file that is longer than a reader keeps in mind is two files.
LONGEST_FILE_LINES = 450


def modules(*floors: str) -> Iterator[Path]:
    """The Python files of these floors."""
    for floor in floors:
        yield from sorted((ROOT / floor).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """The top-level names that a file imports, wherever in it; `app` for `partway.app.x`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.removeprefix("partway.").split(".")[0] for name in names}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("floor", MAY_IMPORT)
def test_programs_stand_side_by_side_on_the_store(floor: str) -> None:
    wrong = {
        named(path): beyond
        for path in modules(floor)
        if (beyond := (imported(path) & set(FLOORS)) - MAY_IMPORT[floor])
    }

    assert wrong == {}


def app_imports(path: Path) -> set[str]:
    """The modules of the app that a file imports, such as `api.body`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.removeprefix("partway.app.") for name in names if name.startswith("partway.app.")}


def test_the_arrows_between_the_floors_of_the_app_point_downwards() -> None:
    upwards = []
    for path in modules("app"):
        floor = path.relative_to(ROOT).parts[1]
        above = APP_FLOORS[: APP_FLOORS.index(floor)] if floor in APP_FLOORS else APP_FLOORS
        if named(path) not in APP_TOP:
            found = sorted(name for name in app_imports(path) if name.split(".")[0] in above)
            upwards += [f"{named(path)} imports {name}" for name in found]

    assert upwards == []


def test_no_modules_of_the_app_import_each_other_in_a_circle() -> None:
    of = {
        ".".join(path.relative_to(ROOT / "app").with_suffix("").parts): app_imports(path)
        for path in modules("app")
    }

    def reaches(start: str, at: str, seen: set[str]) -> bool:
        for name in of.get(at, set()) - seen:
            seen.add(name)
            if name == start or reaches(start, name, seen):
                return True
        return False

    assert [name for name in of if reaches(name, name, set())] == []


def test_only_the_upper_floors_of_the_app_know_the_web() -> None:
    web = {"fastapi", "starlette", "uvicorn"}

    knows = {named(path) for path in modules(*PROGRAMS, "store") if imported(path) & web}

    below = [name for name in knows - APP_TOP if not name.startswith(("app/api/", "app/pages/"))]
    assert below == []


def test_no_file_of_the_product_is_longer_than_a_reader_keeps_in_mind() -> None:
    long = {
        named(path): count
        for path in modules(*PROGRAMS, "store", "client")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST_FILE_LINES
    }

    assert long == {}


@pytest.mark.parametrize("path", list(modules(*FLOORS)), ids=named)
def test_a_module_opens_with_one_sentence(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))

    assert said is not None, "no sentence, no module"
    assert said.splitlines()[0].endswith("."), said.splitlines()[0]


def test_a_public_function_says_what_comes_back() -> None:
    silent = [
        f"{named(path)}: {node.name}"
        for path in modules(*PROGRAMS, "store", "client")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not node.name.startswith("_") and ast.get_docstring(node) is None
    ]

    assert silent == []


async def test_every_table_column_and_index_has_its_sentence(db: Database) -> None:
    rows = [
        *await db.read(
            "SELECT table_name AS what, table_comment AS said FROM information_schema.tables"
            " WHERE table_schema = DATABASE()"
        ),
        *await db.read(
            "SELECT CONCAT(table_name, '.', column_name) AS what, column_comment AS said"
            " FROM information_schema.columns WHERE table_schema = DATABASE()"
        ),
        *await db.read(
            "SELECT CONCAT(table_name, ' ', index_name) AS what, index_comment AS said"
            " FROM information_schema.statistics WHERE table_schema = DATABASE()"
        ),
    ]

    assert len(rows) > 40
    assert [row["what"] for row in rows if not row["said"].endswith((".", ")"))] == []


def dependency_lines() -> Iterator[tuple[str, str]]:
    """Each dependency of pyproject.toml with the line above it."""
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    project = tomllib.loads("\n".join(lines))["project"]
    wanted = [
        *project["dependencies"],
        *itertools.chain(*project["optional-dependencies"].values()),
    ]
    for above, line in itertools.pairwise(lines):
        if line.strip().strip('",') in wanted:
            yield line.strip(), above.strip()


def test_every_dependency_has_its_sentence() -> None:
    pairs = list(dependency_lines())

    # One sentence may stand above two that come together, such as a library and its types.
    alone = [
        line
        for (line, above), (before, _) in zip(pairs, [("", ""), *pairs], strict=False)
        if not above.startswith("#") and above != before
    ]

    assert len(pairs) > 15
    assert alone == []


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: s.__name__)
def test_every_setting_has_its_sentence(settings: type[BaseSettings]) -> None:
    unexplained = [
        name
        for name, field in settings.model_fields.items()
        if not (field.description or "").endswith(".")
    ]

    assert unexplained == []


def test_every_target_of_the_makefile_has_its_sentence() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    targets = re.findall(r"^([a-z][a-z-]*):(.*)$", makefile, flags=re.MULTILINE)

    assert {"run", "test", "help"} <= {name for name, _ in targets}
    assert [name for name, rest in targets if "##" not in rest] == []


def constants(path: Path) -> Iterator[tuple[str, str]]:
    """The string constants that are SQL, by name."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE)\b", node.value.value)
        ):
            assert isinstance(node.targets[0], ast.Name)
            yield node.targets[0].id, node.value.value


def test_a_statement_is_a_constant_in_capitals_that_compares_times_to_the_microsecond() -> None:
    statements = [
        (f"{named(path)} {name}", name, sql)
        for path in modules(*PROGRAMS, "store")
        for name, sql in constants(path)
    ]

    assert len(statements) > 25
    assert [where for where, name, _ in statements if not name.isupper()] == []
    assert [where for where, _, sql in statements if re.search(r"\b(NOW|SYSDATE)\(\)", sql)] == []
    assert [where for where, _, sql in statements if "CURRENT_TIMESTAMP" in sql] == []
