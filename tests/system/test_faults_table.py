"""The table of faults is true: its tests are there, its lines written, its metrics exported."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.actions import ROOT

COLUMNS = [
    *("Fault", "The caller sees", "The operator sees", "Metric", "Lost", "Billed", "Shown by"),
]

# What an operator runs and what only a reader of a log sees are quoted alike.
NOT_LOGGED = re.compile(r"partway \w+")


def lines() -> list[list[str]]:
    """The cells of the table, its head first."""
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [cells[0], *cells[2:]]


def faults() -> Iterator[list[str]]:
    """Each row of the table."""
    yield from lines()[1:]


def code() -> str:
    """All that the programs could say."""
    files: list[Path] = []
    for program in ("app", "worker", "batch", "store"):
        files += sorted((ROOT / program).rglob("*.py"))
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_the_table_has_its_columns_and_its_faults() -> None:
    assert lines()[0] == COLUMNS
    assert len(list(faults())) >= 35
    assert [row[0] for row in faults() if len(row) != len(COLUMNS) or not all(row)] == []


@pytest.mark.parametrize("row", list(faults()), ids=lambda row: row[0])
def test_a_fault_is_shown_by_tests_that_are_there(row: list[str]) -> None:
    named = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", row[-1])

    assert named
    assert row[-1].count("`") == 2 * len(named)
    for file, name in named:
        tests = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert f"def {name}(" in tests, f"{file}::{name}"


def test_each_metric_that_moves_is_one_that_a_program_exports() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    exported = set(re.findall(r"^\| `(partway_\w+)`", page, re.MULTILINE))

    moves = {name for row in faults() for name in re.findall(r"`([^`]+)`", row[3])}

    assert len(moves) >= 10
    assert moves - exported == set()


def test_each_line_that_the_operator_sees_is_one_that_a_program_writes() -> None:
    # Where a number or a name stands in it, the code has its place.
    said = re.sub(r"%\w|\{\w+\}", "10", code())

    unsaid = [
        quoted
        for row in faults()
        for quoted in re.findall(r"`([^`]+)`", row[2])
        if quoted not in said and not NOT_LOGGED.fullmatch(quoted)
    ]

    assert unsaid == []
