"""What the documents say is true: commands exist, links lead somewhere, tables are current, names are the public ones."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import runner
from api.cli.main import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md"), *(ROOT / "tests").glob("*.md")]
)
STARTER = ROOT / "api" / "cli" / "starter" / "README.md.txt"


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_first_line_says_how_it_is_imported() -> None:
    assert "`runner`" in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[0]


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        assert re.match(r"https?://", target) or (document.parent / target).exists(), target


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
            if isinstance(node, ast.ImportFrom) and node.module == "runner":
                assert {alias.name for alias in node.names} <= set(runner.__all__)


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
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "backends" / "conformance").glob("*.py")]
    known = {name for file in files for name in re.findall(r"def (test_\w+)\(", file.read_text(encoding="utf-8"))}
    assert set(re.findall(r"`(test_\w+)`", text)) - known == set()


def commands_in(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each use of ``runyard`` in code, as words."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL) + re.findall(r"`(runyard [^`]*)`", text)
    blocks += re.findall(r"^    (runyard .*)$", text, re.MULTILINE)
    for line in "\n".join(blocks).splitlines():
        for use in re.findall(r"(?:^|&& )runyard ([^&#`]*)", line):
            words = re.sub(r'"[^"]*"', "TEXT", use).replace("\\|", "|").split()
            if words and re.fullmatch(r"[a-z][a-z|-]*", words[0]):
                yield line, words


def known(words: list[str]) -> typing.Any:
    """The command that ``words`` name; fails if there is none."""
    command = typer.main.get_command(app)
    for word in words:
        inner = getattr(command, "commands", None)
        if inner is None:
            return command
        names = word.split("|")
        assert set(names) <= set(inner), words
        command = inner[names[0]]
    return command


def every_command() -> Iterator[list[str]]:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        yield from ([name, each] for each in inner) if inner else [[name]]
