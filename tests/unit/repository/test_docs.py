"""What the documents say is true: commands exist, links lead somewhere, tables are current, names are the public ones."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import itertools
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

import runyard
from runyard_api.cli.main import app

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md"), *(ROOT / "tests").glob("*.md")]
)
MAPS = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md", ROOT / "docs" / "glossary.md"]
"""Documents that say where in the code a thing is."""
GENERATED = sorted((ROOT / "docs" / "reference").glob("*.md"))
STARTER = ROOT / "api" / "runyard_api" / "cli" / "starter" / "README.md.txt"


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if not re.match(r"https?://", target):
            there = document.parent / target if target else document
            assert there.exists(), target
            assert not anchor or there.suffix != ".md" or anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("document", [*DOCUMENTS, STARTER], ids=named)
def test_commands_and_their_options_exist(document: Path) -> None:
    for line, words in commands_in(document.read_text(encoding="utf-8")):
        command = known(words)
        options = {option for param in command.params for option in (*param.opts, *param.secondary_opts)} | {"--help"}
        for word in itertools.takewhile(lambda word: word != "--", words):
            if word.startswith("--"):
                assert word.split("=")[0] in options, line


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_make_targets_exist(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([a-z]+)", document.read_text(encoding="utf-8")):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_python_in_documents_is_python_and_imports_what_exists(document: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
        tree = ast.parse("async def example():\n" + re.sub("^", "    ", code, flags=re.MULTILINE))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "runyard":
                assert {alias.name for alias in node.names} <= set(runyard.__all__)


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_nothing_is_left_undone_or_points_to_a_tracker(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert not re.search(r"\bissue #?\d|\bTODO\b|\bFIXME\b", text)


def test_the_reference_is_current() -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "reference" / "make.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert made.returncode == 0, made.stderr


def test_every_setting_is_in_the_reference() -> None:
    """A variable that code reads, and that no class of settings has, must be named by hand."""
    text = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(RUNYARD_\w+)` \|.*\| (.*) \|$", text, re.MULTILINE)
    assert [name for name, meaning in rows if not meaning] == []
    read: set[str] = set()
    for folder in ("runner", "backends", "api"):
        for file in (ROOT / folder).rglob("*.py"):
            read |= set(re.findall(r"\bRUNYARD_[A-Z][A-Z_]*[A-Z]\b", file.read_text(encoding="utf-8")))
    assert read - {name for name, _ in rows} == set()


def test_every_public_name_is_in_the_python_reference() -> None:
    """With words: a name without a docstring is a type or a constant."""
    found = {"errors"}
    for module in ("runyard", "runyard.models", "runyard.hitl", "runyard.checkpointer", "runyard.testing"):
        text = (ROOT / "docs" / "reference" / "python" / f"{module}.md").read_text(encoding="utf-8")
        found |= set(re.findall(r"^### (\w+)$", text, re.MULTILINE))
        assert set(importlib.import_module(module).__all__) - found == set(), module
        silent = re.findall(r"^#{3,4} ([\w.]+)\n\n```py\n(?:async )?(?:def|class) [^`]*```\n\n(?=#|\Z)", text, re.MULTILINE)
        assert silent == [], module


def test_every_command_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8").replace("\\|", "/")
    listed = {name: names.split("/") for name, names in re.findall(r"^\| `runyard ([a-z-]+) ?([a-z/]*)", text, re.MULTILINE)}
    for name, *inner in every_command():
        assert name in listed, name
        assert set(inner) <= set(listed[name]), inner


def test_decisions_are_listed_and_complete() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    for path in folder.glob("0*.md"):
        text = path.read_text(encoding="utf-8")
        assert path.name in listed
        assert [f"## {part}" in text for part in ("Context", "Decision", "Consequences")] == [True] * 3


def test_every_guarantee_names_tests_that_exist() -> None:
    """A promise without a test is a wish; a renamed test must not leave its promise alone."""
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not re.match(r"\| (---|failure|\|)", line)]
    assert rows
    assert [row for row in rows if "`test_" not in row] == []
    suites = (ROOT / "backends" / "runyard_backends" / "conformance", ROOT / "tests" / "support" / "suites")
    files = [*(ROOT / "tests").rglob("test_*.py"), *(file for suite in suites for file in suite.glob("*.py"))]
    known = {name for file in files for name in re.findall(r"def (test_\w+)\(", file.read_text(encoding="utf-8"))}
    assert set(re.findall(r"`(test_\w+)`", text)) - known == set()


@pytest.mark.parametrize("document", MAPS, ids=named)
def test_places_in_the_code_exist(document: Path) -> None:
    """A path with a folder is one of this repository; a dotted name is a module of runyard."""
    places = re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", document.read_text(encoding="utf-8"))
    assert [place for place in places if not (ROOT / place).exists()] == []
    modules = re.findall(r"`(runyard\w*(?:\.[a-z]\w*)+)`", document.read_text(encoding="utf-8"))
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []
    assert places


def test_the_architecture_answers_where_things_are() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+) \| (.+) \|$", text.partition("## Where is")[2], re.MULTILINE)
    questions = [question for question, places in rows if "`" in places]
    assert len(set(questions)) == len(questions) >= 30


def test_the_architecture_has_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for package in ("runner/runyard", "backends/runyard_backends"):
        rooms = [path for path in (ROOT / package).iterdir() if (path / "__init__.py").is_file()]
        missing = [named(room) for room in rooms if f"`{named(room)}/`" not in text and f"`runyard.{room.name}`" not in text]
        assert missing == []


def test_the_glossary_is_in_order() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = text.partition("| --- | --- | --- |\n")[2].strip().splitlines()
    terms = [row.split(" | ")[0].strip("| `") for row in rows]
    assert terms == sorted(terms, key=str.casefold)
    assert len(rows) > 50


@pytest.mark.parametrize("document", GENERATED, ids=named)
def test_text_after_a_table_is_not_a_row_of_it(document: Path) -> None:
    """Markdown takes a line right below a table for one more row."""
    lines = document.read_text(encoding="utf-8").splitlines()
    assert [text for row, text in itertools.pairwise(lines) if row.startswith("|") and text and not text.startswith("|")] == []


def anchors(document: Path) -> set[str]:
    """The places in a document that a link can name: its headings, as GitHub spells them, and its own anchors."""
    text = document.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings} | set(
        re.findall(r'<a id="([^"]+)">', text)
    )


def commands_in(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each use of ``runyard`` in code, as words."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL) + re.findall(r"`(runyard [^`]*)`", text)
    blocks += re.findall(r"^    (runyard .*)$", text, re.MULTILINE)
    for line in "\n".join(blocks).splitlines():
        for use in re.findall(r"(?:^|&& )runyard ([^&#`]*)", line):
            words = re.sub(r'"[^"]*"', "TEXT", use).replace("\\|", "|").split()
            if words and re.fullmatch(r"[a-z][a-z|-]*", words[0]):
                yield line, words


@cache
def program() -> typing.Any:
    """The command line, made once: typer takes half a second."""
    return typer.main.get_command(app)


def known(words: list[str]) -> typing.Any:
    """The command that ``words`` name; fails if there is none."""
    command = program()
    for word in words:
        inner = getattr(command, "commands", None)
        if inner is None:
            return command
        names = word.split("|")
        assert set(names) <= set(inner), words
        command = inner[names[0]]
    return command


def every_command() -> Iterator[list[str]]:
    for name, command in program().commands.items():
        inner = getattr(command, "commands", None)
        yield from ([name, each] for each in inner) if inner else [[name]]
