"""The protocol holds in every order of steps, and each line of it is there for a law."""

import re
import shutil
import subprocess

import pytest

from tests.actions import ROOT
from tests.sweeps import sampled

MODEL = ROOT / "proof" / "model" / "partway.pml"

# What is taken away, and the law that breaks by the shortest way there is.
BREAKS = {
    "WITHOUT_CLAIM_LOCK": "law_1_one_live_lease",
    "WITHOUT_TOKEN": "law_1_no_stale_write",
    "WITHOUT_STATUS": "law_1_no_stale_write",
    "WITHOUT_GUARD": "law_2_the_answer_is_fixed_by_the_close",
    "WITHOUT_CLAIM_STATUS": "law_2_what_is_done_stays_done",
    "WITHOUT_OUTCOME": "law_3_the_bill_is_the_answer",
    "WITHOUT_BILLED": "law_3_no_answer_no_charge",
    "WITHOUT_LOCK": "law_4_what_is_deleted_was_counted",
    "WITHOUT_TRANSACTION": "law_4_metered_exactly_once",
    "WITHOUT_CHECK": "law_5_nothing_starts_too_late",
    "WITHOUT_GRACE": "law_6_only_the_dead_are_overdue",
    "WITHOUT_REAPER": "law_6_nothing_lives_for_ever",
    "WITHOUT_RETENTION_LIMIT": "law_6_nothing_lives_for_ever",
    "WITHOUT_INSERT_FIRST": "law_7_settled_ids_stay_settled",
}

needs_spin = pytest.mark.skipif(
    shutil.which("spin") is None,
    reason="spin is not installed: local/setup.sh test installs it where it has the right to",
)


def check(*words: str) -> subprocess.CompletedProcess[str]:
    """How proof/model/check.sh ended; without words it takes half a minute and 1.4 GB."""
    return subprocess.run(
        [ROOT / "proof" / "model" / "check.sh", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )


@needs_spin
@pytest.mark.sweep
def test_the_laws_hold_in_every_order_of_steps() -> None:
    ended = check(*sampled((), sample=("--sample",)))

    assert ended.returncode == 0, ended.stdout
    assert "errors: 0" in ended.stdout


@needs_spin
@pytest.mark.sweep
@pytest.mark.parametrize("mutant", sampled(list(BREAKS), sample=list(BREAKS)[::4]))
def test_without_the_line_its_law_breaks(mutant: str) -> None:
    ended = check(mutant)

    assert ended.returncode == 1, ended.stdout
    assert f"assertion violated {BREAKS[mutant]} (" in ended.stdout, ended.stdout


def test_every_law_of_the_model_can_break_and_every_line_is_taken_out_once() -> None:
    model = MODEL.read_text(encoding="utf-8")

    assert set(re.findall(r"^bool (law_\w+)", model, flags=re.MULTILINE)) == set(BREAKS.values())
    assert set(re.findall(r"\bWITHOUT_[A-Z_]+", model)) - {"WITHOUT_"} == set(BREAKS)


def test_the_model_names_statements_that_exist() -> None:
    model = re.sub(r"\s+\*?\s*", " ", MODEL.read_text(encoding="utf-8"))

    named = set(re.findall(r"((?:\w+/)+\w+\.py) ([A-Z][A-Z_]+)", model))

    assert len(named) > 12
    assert [
        f"{file} {name}"
        for file, name in sorted(named)
        if f"\n{name} = " not in (ROOT / file).read_text(encoding="utf-8")
    ] == []
