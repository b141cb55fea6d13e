"""The documentation is true where a program can check it, and uses one word for one thing."""

import io
import re
import shlex
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from partway.command import partway
from proof import settings_page
from tests.actions import ROOT

README = ROOT / "README.md"

# The pages that readers get. CHANGELOG.md names what there was before, so it may use older words.
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

MODULES = [
    path
    for folder in ("app", "worker", "batch", "store", "client", "partway")
    for path in sorted((ROOT / folder).rglob("*.py"))
]

CODE = re.compile(r"^```.*?^```$|^    .*?$|`[^`]*`|<!--.*?-->", re.MULTILINE | re.DOTALL)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(text: str) -> str:
    """The text without its code; each line keeps its number."""
    return CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)


# Older words of ours, and what the glossary has instead. These are looked for in sentences.
OLD_WORDS = {
    r"\bdoors?\b": "HTTP API, request service, or node",
    r"\b(?:the|its|their) keep\b|\+ keep\b": "retention",
    r"\bgaps?\b(?! locks?)": "separators",
    r"\bstragglers?\b": "in-flight segment",
    r"\bsweep(?:s|er|ers|ing)?\b": "reaper",
    r"\bmeetings?\b": "transaction pairs",
    r"\bby chance\b": "sampled, or at random",
    r"\b(?:a|the|each|every|one|last|next|no|their|its|two) looks?\b": "poll, read, or pass",
    r"\b(?:set|sets|put|puts|time) aside\b": "back-off",
    r"\brooms\b|\bRoom\b": "folder, floor, or admission",
    r"\bunattended\b": "detached request",
    r"\bkeepers?\b": "supervisor",
    r"\bsuspects?\b|\binnocents?\b": "quarantined, or requeued",
    r"\bjoiners?\b|\bjoins (?:and|it|what|the request|a request|the running)\b": "attach",
    r"\b(?:comes?|came|coming) back (?:under|for (?:it|an|the|its))\b": "send the same id again",
    r"\b(?:a|an|longest|first) rests?\b": "idle wait",
    r"\bput(?:s|ting)? off\b": "deferred",
    r"\b(?:database|server) (?:is|was|being) away\b": "unavailable",
    r"\bback to life\b": "computed again",
    r"\bhouse\b": "design rule",
    r"\b[Ww]hoever\b": "a plain subject, such as the caller",
    r"\bshel(?:f|ves)\b": "queue",
    r"\bsees to\b|\bseen to by\b": "track",
}

# Older names; these are looked for in code too.
OLD_NAMES = {
    r"\bKEEP_SECONDS\b|\bkeep_seconds\b": "PARTWAY_BATCH_RETENTION_SECONDS",
    r"\bASIDE_SECONDS\b|\baside_seconds\b": "PARTWAY_WORKER_BACKOFF_SECONDS",
    r"\bpython -m (?:app|worker|batch|client)\b": "the command partway",
    r"\bmake orders\b|\borders\.(?:md|py)\b": "interleavings",
    r"\bother-body\b": "id-reused",
    r"\bAway\b": "ServerUnavailable",
    r"\bput_off\b": "deferred",
    r"\bmeetings\.py\b": "transaction_pairs.py",
    r"\bacts\.py\b": "actions.py",
    r"\bFORGET_\w+": "DELETE_…",
}


def found(text: str, words: dict[str, str]) -> Iterator[str]:
    """Each place of an older word: its line, the word, and the word to use."""
    for pattern, instead in words.items():
        for place in re.finditer(pattern, text):
            line = text.count("\n", 0, place.start()) + 1
            yield f"line {line}: not “{place[0]}” but: {instead}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_uses_the_words_of_the_glossary(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    old = [*found(prose(text), OLD_WORDS), *found(text, OLD_NAMES)]

    assert old == []


def sentences(module: Path) -> str:
    """The docstrings and comments of a module, each in its line, without the code in them."""
    lines: dict[int, list[str]] = defaultdict(list)
    source = module.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_text = token.type == tokenize.STRING and token.string.startswith('"""')
        # SQL is no sentence, and a column never changes its name.
        is_sql = re.match(r'"""\s*(?:SELECT|INSERT|UPDATE|DELETE)\b', token.string)
        if token.type == tokenize.COMMENT or (is_text and not is_sql):
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                lines[number].append(re.sub(r"`[^`]*`", "", line))
    return "\n".join(" ".join(lines[number]) for number in range(1, max(lines, default=0) + 1))


@pytest.mark.parametrize("module", MODULES, ids=named)
def test_docstrings_and_comments_use_the_words_of_the_glossary(module: Path) -> None:
    assert list(found(sentences(module), OLD_WORDS)) == []


def test_an_older_word_is_found_in_a_sentence_and_not_in_code() -> None:
    text = "One.\n\nThe door is open, `the door` is not.\n\n```\nthe door\n```\n"

    assert list(found(prose(text), OLD_WORDS)) == [
        "line 3: not “door” but: HTTP API, request service, or node"
    ]


def test_the_glossary_is_in_order_and_has_a_line_for_each_word() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.MULTILINE)[1:]
    words = [word for word, _ in rows]

    assert len(words) > 40
    assert words == sorted(words, key=str.lower)
    assert [word for word, meaning in rows if not meaning.endswith(".")] == []


# Settings.


def test_the_page_of_settings_is_what_is_generated() -> None:
    written = settings_page.PAGE.read_text(encoding="utf-8")

    assert written == settings_page.page(), "make settings writes it"


def test_no_page_names_a_setting_that_is_gone() -> None:
    known = {name for kind in settings_page.SETTINGS for name in settings_page.names_of(kind)}
    known |= {name for name, _, _ in settings_page.CLIENT}
    # These are read by the setup of this tree and by the tests, not by a program.
    known |= {"PARTWAY_CACHE"}

    gone = {
        named(page): names
        for page in PAGES
        if (names := set(re.findall(r"\b(PARTWAY_[A-Z_]*[A-Z])\b", page.read_text())) - known)
    }

    assert gone == {}


# What a page names is there.


def anchors(page: Path) -> set[str]:
    """What a link to a heading of this page can say after its #."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_link_leads_to_a_page_and_a_heading_that_are_there(page: Path) -> None:
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith(("http:", "https:")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)

    assert dead == []


# The first words of paths in this tree.
PATH = re.compile(
    r"`((?:app|worker|batch|store|client|partway|local|bench|tests|proof|deploy|docs)"
    r"/[\w./-]*|schema\.sql)`"
)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_path_in_a_page_is_there(page: Path) -> None:
    paths = set(PATH.findall(page.read_text(encoding="utf-8")))

    assert {path for path in paths if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_target_of_make_in_a_page_is_there(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))

    said = set(re.findall(r"(?:`|^ *)make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE))

    assert said - targets == set()


# At the start of a line of code, after a prompt or an &, or at the start of code in a sentence.
COMMAND = re.compile(
    r"(?:^ *(?:\$ )?|`|& |exec \S+ -- |--rm app )partway ([a-z][^`&|>#\n]*)", re.MULTILINE
)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_command_in_a_page_is_there_with_its_flags(page: Path) -> None:
    wrong = []
    for line in COMMAND.findall(page.read_text(encoding="utf-8")):
        command: click.Command | None = partway
        words = line.split()
        with click.Context(partway) as ctx:
            while isinstance(command, click.Group) and words and words[0].isalpha():
                command = command.get_command(ctx, words.pop(0))
        known = {flag for option in command.params for flag in option.opts} if command else set()
        flags = {word for word in words if word.startswith("--")} - {"--help", "--version"}
        if command is None or flags - known:
            wrong.append(line)

    assert wrong == []


def statements() -> Iterator[tuple[str, list[str]]]:
    """Each statement that docs/architecture.md names, with the modules of its line."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        modules = re.findall(r"`(\w+(?:/\w+)+\.py)`", line)
        for name in re.findall(r"`([A-Z][A-Z_]+[A-Z])`", line) if modules else []:
            yield name, modules


def test_a_statement_is_in_the_module_that_the_architecture_names() -> None:
    known = list(statements())
    # The close is one statement, which the reaper calls; a session is set up for all of them.
    anywhere = {"CLOSE": "store/close.py", "SESSION": "store/database.py"}

    lost = [
        (name, modules)
        for name, modules in known
        if not any(
            re.search(rf"^{name}\b.*= ", (ROOT / module).read_text(encoding="utf-8"), re.MULTILINE)
            for module in [*modules, *filter(None, [anywhere.get(name)])]
        )
    ]

    assert len(known) > 20
    assert lost == []


# The page that everybody reads first.


def test_the_readme_begins_with_its_two_commands_and_stays_short() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()

    assert len(lines) <= 200
    assert any(line.strip().startswith("make run") for line in lines[:20])
    assert any(line.strip().startswith("make test") for line in lines[:20])


@pytest.mark.parametrize("page", ["README.md", "docs/handlers.md"])
def test_the_handler_of_a_page_computes_what_its_command_sends(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (code,) = (block for block in blocks if "def translate" in block)
    command = re.findall(r"^partway (worker try .*my_mt.*)$", text, re.MULTILINE)[0]
    (tmp_path / "my_mt.py").write_text(code, encoding="utf-8")

    tried = subprocess.run(
        [sys.executable, "-m", "partway", *shlex.split(command)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert tried.returncode == 0, tried.stderr
    assert "sopa" in tried.stdout


def test_the_readme_lists_the_ten_laws() -> None:
    text = README.read_text(encoding="utf-8")

    assert re.findall(r"^(\d+)\. \*\*", text, re.MULTILINE) == [str(n) for n in range(1, 11)]


def test_every_page_can_be_found_from_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    pages = {named(page) for page in PAGES if page.parent.name != "runbooks"} - {"README.md"}

    assert {page for page in pages if f"({page})" not in text} == set()
