"""Whoever is woken at night must be woken for a reason, and find a page that is true."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

import partway.app.metrics
import partway.batch.metrics
import partway.store.metrics
import partway.worker.metrics
from partway.store.database import CONFLICTS, Database
from proof.settings_page import SETTINGS, names_of
from tests.actions import ROOT
from tests.conftest import AnyServer
from tests.system.test_deploy import DEPLOY, tool
from tests.system.test_faults_table import code

Rule = dict[str, Any]

ALERTS = DEPLOY / "prometheus" / "alerts.yml"
CASES = DEPLOY / "prometheus" / "alerts_test.yml"
RUNBOOKS = ROOT / "docs" / "runbooks"
DASHBOARD = json.loads((DEPLOY / "grafana" / "partway.json").read_text(encoding="utf-8"))

RULES: dict[str, Rule] = {
    rule["alert"]: rule
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(RUNBOOKS.glob("[a-z]*.md"))}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

# What each page says, in this order.
PARTS = [
    "What it means",
    "What callers notice",
    "What is lost",
    "Check",
    "Do",
    "When it ends",
]

BOUND_SECONDS = 60

# Where apt-get is, local/setup.sh can fetch it, and a test without it is a failure.
needs_promtool = pytest.mark.skipif(
    tool("promtool") is None and shutil.which("apt-get") is None,
    reason="promtool is not here, and without apt-get local/setup.sh test cannot fetch it",
)


def promtool(*words: object) -> tuple[bool, str]:
    """Whether promtool found nothing wrong, and what it said."""
    program = tool("promtool")
    assert program is not None, "promtool is not here: local/setup.sh test fetches it"
    ran = subprocess.run(
        [program, *map(str, words)], capture_output=True, text=True, timeout=BOUND_SECONDS
    )
    return ran.returncode == 0, ran.stdout + ran.stderr


def page_of(alert: str) -> str:
    """The name of its page: answers-late for PartwayAnswersLate."""
    words = re.findall(r"[A-Z][a-z]+", alert.removeprefix("Partway"))
    return "-".join(words).lower()


# The rules.


@needs_promtool
def test_the_rules_are_rules() -> None:
    is_right, said = promtool("check", "rules", ALERTS)

    assert is_right, said
    assert f"{len(RULES)} rules found" in said


@needs_promtool
def test_prometheus_can_be_told_how_the_programs_are_called(tmp_path: Path) -> None:
    """Debian's is built without Kubernetes: what is found there is named here by hand."""
    told = (ALERTS.parent / "prometheus.yml").read_text()
    found = "kubernetes_sd_configs:\n      - role: pod\n"
    assert found in told
    (tmp_path / "alerts.yml").write_text(ALERTS.read_text())
    path = tmp_path / "prometheus.yml"
    path.write_text(told.replace(found, "static_configs:\n      - targets: [node]\n"))

    is_right, said = promtool("check", "config", path)

    assert is_right, said


@needs_promtool
def test_each_alert_is_told_when_it_should_be_and_not_before() -> None:
    is_right, said = promtool("test", "rules", CASES)

    assert is_right, said


def changed(tmp_path: Path, change: Callable[[Rule], None]) -> Path:
    """The cases of all alerts, beside rules that are changed like this."""
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            change(rule)
    (tmp_path / ALERTS.name).write_text(yaml.safe_dump(rules), encoding="utf-8")
    return Path(shutil.copy(CASES, tmp_path))


CHANGES: dict[str, Callable[[Rule], None]] = {
    "is never told": lambda rule: rule.update(expr="vector(0) > 1"),
    "is always told": lambda rule: rule.update(expr="vector(1)"),
}


@needs_promtool
@pytest.mark.parametrize("how", CHANGES)
def test_an_alert_that_is_told_otherwise_is_noticed(how: str, tmp_path: Path) -> None:
    is_right, said = promtool("test", "rules", changed(tmp_path, CHANGES[how]))

    assert not is_right
    assert set(re.findall(r"alertname: ?(\w+),", said)) == set(RULES)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_says_whether_to_get_up_and_what_is_wrong_and_where_to_read_on(alert: str) -> None:
    rule = RULES[alert]

    assert rule["labels"]["severity"] in ("page", "ticket")
    assert re.fullmatch(r"[^.]+\.", re.sub(r"\{\{.*?\}\}", "X", rule["annotations"]["summary"]))
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{page_of(alert)}.md"


def test_the_conflicts_that_are_told_are_those_that_are_run_again() -> None:
    (numbers,) = re.findall(r'errno=~"([\d|]+)"', RULES["PartwayConflictsMany"]["expr"])

    assert {int(number) for number in numbers.split("|")} == CONFLICTS


# What rules and panels ask for is there.


def exposed() -> dict[str, tuple[str, dict[str, set[str]]]]:
    """Each metric of the programs: its type, and which values its labels have at the start."""
    found: dict[str, tuple[str, dict[str, set[str]]]] = {}
    modules = (
        partway.store.metrics,
        partway.app.metrics,
        partway.worker.metrics,
        partway.batch.metrics,
    )
    text = "\n".join(generate_latest(module.REGISTRY).decode() for module in modules)
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, flags=re.MULTILINE):
        found[name] = kind, {}
    for name, labels in re.findall(r"^(\w+)\{(.*?)\} ", text, flags=re.MULTILINE):
        for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
            if name in found:
                found[name][1].setdefault(label, set()).add(value)
    # There once a worker knows its handler.
    found["partway_segments_total"][1]["outcome"] = set(partway.worker.metrics.OUTCOMES)
    return found


EXPOSED = exposed()

# What Prometheus adds to each metric that it reads.
ADDED = {"job", "instance", "le"}


def asked() -> Iterator[tuple[str, str]]:
    """Each expression of a rule or a panel, with where it stands."""
    for name, rule in RULES.items():
        yield name, rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def base(name: str) -> str:
    """The metric that a series belongs to: a histogram has three of them."""
    of = re.sub(r"_(bucket|sum|count)$", "", name)
    return of if EXPOSED.get(of, ("",))[0] == "histogram" else name


def test_rules_and_panels_ask_only_for_what_the_programs_show() -> None:
    unknown = [
        (where, name)
        for where, expr in asked()
        for name in re.findall(r"\bpartway_\w+", expr)
        if base(name) not in EXPOSED
        or (EXPOSED[base(name)][0] == "histogram") == (base(name) == name)
    ]

    assert unknown == []


def test_rules_and_panels_ask_only_for_labels_that_are_there() -> None:
    labels = {label for _, values in EXPOSED.values() for label in values} | {"handler"} | ADDED

    wrong: list[tuple[str, str]] = []
    for where, expr in asked():
        for name, matchers in re.findall(r"\b(partway_\w+)\{([^}]+)\}", expr):
            for label, wanted in re.findall(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"', matchers):
                known = EXPOSED[base(name)][1].get(label, set())
                wrong += [(where, value) for value in wanted.split("|") if value not in known]
        for by in re.findall(r"\bby \(([^)]*)\)", expr):
            wrong += [(where, label) for label in by.split(", ") if label not in labels]
        for panel_label in re.findall(r"\{\{ ?\$labels\.(\w+)", str(RULES.get(where, ""))):
            wrong += [(where, panel_label)] if panel_label not in labels | {"program"} else []

    assert wrong == []


def test_whatever_a_program_shows_somebody_looks_at() -> None:
    seen = {base(name) for _, expr in asked() for name in re.findall(r"\bpartway_\w+", expr)}

    assert set(EXPOSED) - seen == set()


@needs_promtool
def test_the_expressions_of_the_panels_can_be_asked(tmp_path: Path) -> None:
    # Grafana puts its own window in.
    rules = [
        {"record": f"panel:{number}", "expr": expr.replace("$__rate_interval", "5m")}
        for number, (_, expr) in enumerate(asked())
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))

    is_right, said = promtool("check", "rules", path)

    assert is_right, said


# The dashboard.


def test_a_panel_has_its_sentence_and_asks_the_source_that_was_chosen() -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}

    assert [one["type"] for one in DASHBOARD["templating"]["list"]] == ["datasource"]
    assert [p["title"] for p in PANELS if not p["description"].endswith(".")] == []
    assert [p["title"] for p in PANELS if not p["targets"] or p["datasource"] != source] == []
    assert [
        p["title"] for p in PANELS for target in p["targets"] if target["datasource"] != source
    ] == []


def test_panels_have_numbers_and_names_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    places = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) < 24
    for panel in PANELS:
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


# The pages.


def test_each_alert_has_its_page_and_each_page_its_alert() -> None:
    assert set(PAGES) == {page_of(alert) for alert in RULES}


def test_the_list_of_pages_is_whole() -> None:
    text = (RUNBOOKS / "README.md").read_text(encoding="utf-8")

    rows = re.findall(r"^\| `(\w+)` \| (yes|no) \| \[(.+)\]\((\S+)\.md\) \|$", text, re.MULTILINE)

    assert rows == [
        (
            alert,
            "yes" if rule["labels"]["severity"] == "page" else "no",
            PAGES[page_of(alert)].partition("\n")[0].removeprefix("# "),
            page_of(alert),
        )
        for alert, rule in RULES.items()
    ]


@pytest.mark.parametrize("alert", RULES)
def test_a_page_says_whose_it_is_and_has_its_parts(alert: str) -> None:
    page = PAGES[page_of(alert)]
    severity = RULES[alert]["labels"]["severity"]

    assert f"\n`{alert}`, a {severity}. In the dashboard: *" in page
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == PARTS


@pytest.mark.parametrize("name", PAGES)
def test_a_page_sends_nobody_to_what_is_not_there(name: str) -> None:
    page = PAGES[name]
    settings = {setting for kind in SETTINGS for setting in names_of(kind)}
    # Where a number or a name stands in a line, the code has its place.
    said = re.sub(r"%\w|\{\w+\}", "10", code())

    panels = re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", page)
    lines = re.findall(r"`(?:app|worker|batch): ([^`]+)`", page)
    lines += re.findall(
        r"`(unhandled exception[^`]*|database available again after|no answer within[^`]*)`", page
    )
    words = re.findall(r"`partway (\w+)[^`]*`", page)
    links = re.findall(r"\]\(([^)]+)\)", page)
    files = re.findall(r"`((?:deploy|docs)/[^`]+|schema\.sql)`", page)

    assert panels
    assert set(panels) <= {panel["title"] for panel in PANELS}
    assert [line for line in lines if line not in said] == []
    assert set(words) <= {"status", "audit", "batch", "worker"}
    assert set(re.findall(r"PARTWAY_[A-Z_]+", page)) <= settings
    assert [link for link in links if not (RUNBOOKS / link).is_file()] == []
    assert [file for file in files if not (ROOT / file).exists()] == []


def statements() -> Iterator[tuple[str, str]]:
    """Each statement of a page, with the page."""
    for name, page in PAGES.items():
        for statement in re.findall(r"^```sql\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
            yield name, statement


async def test_the_statements_of_the_pages_only_read_and_can_be_asked(
    db: Database, server: AnyServer
) -> None:
    asked_for = list(statements())

    assert len(asked_for) > 5
    for name, statement in asked_for:
        assert statement.startswith("SELECT"), name
        assert "FOR UPDATE" not in statement, name
        if "innodb_trx" in statement:
            # An account of the programs has not the right that its page asks for.
            server.execute(statement)
        else:
            await db.read(statement)
