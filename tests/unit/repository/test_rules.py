"""Rule numbers: docs/reference/rules.md has every rule that code, tests and documents cite, once, and no other."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RULES = ROOT / "docs" / "reference" / "rules.md"
ROOMS = ("api", "backends", "benchmarks", "charts", "docs", "examples", "runner", "tests")
TEXTS = frozenset({".lua", ".md", ".sql", ".txt", ".yaml", ".yml"})
"""Suffixes of files that may cite a rule anywhere; Python cites in docstrings, comments and names of tests."""

HEADING = re.compile(r"^## ([A-Z])\. \S.*$", re.MULTILINE)
ROW = re.compile(r'^\| <a id="([a-z]\d{1,2})"></a>([A-Z]\d{1,2}) \| (.+) \|$', re.MULTILINE)
CITATION = re.compile(r"(?<![\w%/.-])([A-Z])(\d{1,2})(?![\w%=])(?: to \1(\d{1,2})(?![\w%=]))?")
"""A rule, or the first and last one of a range: ``R7``, ``R13 to R15``."""
IN_A_NAME = re.compile(r"test_((?:[a-z]\d{1,2}_)+)")


def rules() -> list[str]:
    return [number for _, number, _ in ROW.findall(RULES.read_text(encoding="utf-8"))]


@cache
def letters() -> set[str]:
    return set(HEADING.findall(RULES.read_text(encoding="utf-8")))


def cited(text: str) -> Iterator[str]:
    """Each rule that ``text`` cites; a range cites all of its rules."""
    for letter, first, last in CITATION.findall(text):
        if letter in letters():
            yield from (f"{letter}{number}" for number in range(int(first), int(last or first) + 1))


def prose_of(path: Path) -> str:
    """The parts of a file that may cite: all of a text; of Python its docstrings, comments and the rules in names of tests."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    if not any(cited(text)) and not IN_A_NAME.search(text):
        return ""
    tree = ast.parse(text)
    statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    parts = [node.value for node in statements if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (named := IN_A_NAME.match(node.name)):
            parts.append(named.group(1).replace("_", " ").upper())
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Violation":
            parts.append(ast.literal_eval(node.args[0]))
    if any(
        cited("\n".join(re.findall("#.*", text)))
    ):  # perhaps in a comment; most files are spared the tokenizer, which is slow
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        parts += [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(parts)


@cache
def citations() -> dict[str, set[str]]:
    """Rule → the files that cite it."""
    found: dict[str, set[str]] = {}
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*") if file.suffix in TEXTS | {".py"}]
    for file in [*files, *ROOT.glob("*.md")]:
        if file == RULES or "node_modules" in file.parts:
            continue
        for rule in cited(prose_of(file)):
            found.setdefault(rule, set()).add(str(file.relative_to(ROOT)))
    return found


def test_each_citation_has_its_rule() -> None:
    missing = {rule: sorted(files) for rule, files in citations().items() if rule not in rules()}
    assert missing == {}


def test_each_rule_is_cited() -> None:
    assert [rule for rule in rules() if rule not in citations()] == []


def test_each_rule_is_listed_once_under_its_letter_and_in_order() -> None:
    assert [rule for rule, times in Counter(rules()).items() if times > 1] == []
    for section in re.split(r"^## ", RULES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        listed = [number for _, number, _ in ROW.findall(section)]
        assert {number[0] for number in listed} == {section[0]}
        assert listed == sorted(listed, key=lambda number: int(number[1:]))


def test_each_row_can_be_linked() -> None:
    text = RULES.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| rule", "| ---"))]
    assert [row for row in rows if not ROW.match(row)] == []
    assert [number for anchor, number, _ in ROW.findall(text) if anchor != number.lower()] == []


def test_links_lead_to_the_rule_that_they_name() -> None:
    for document in (ROOT / "docs").rglob("*.md"):
        for number, anchor in re.findall(r"\[([A-Z]\d{1,2})\]\([^)]*rules\.md#([^)]*)\)", document.read_text(encoding="utf-8")):
            assert anchor == number.lower(), document
            assert number in rules(), document


def test_no_rule_is_cited_by_the_name_of_another_document() -> None:
    """Numbers of sections of a document that does not ship lead nowhere."""
    pattern = re.compile(r"\b(design(\.md)?( §)? ?\d|design: |semantics(\.md)?:? [A-Z]\d)", re.IGNORECASE)
    for room in ROOMS:
        for file in (ROOT / room).rglob("*"):
            if file.suffix in TEXTS | {".py"} and "node_modules" not in file.parts and file != Path(__file__):
                assert not pattern.search(file.read_text(encoding="utf-8")), file


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Refuse the write (I2).", ["I2"]),
        ("R13 to R15; H3, H4", ["R13", "R14", "R15", "H3", "H4"]),
        ("noqa: F401, E501, S608; %E2%80%A8; /T0/B0/; W10=; 0xA4; sha F4e1; [A-Z0-9]", []),
        ("HTTP 404, SHA256, B008", []),
    ],
)
def test_what_counts_as_a_citation(text: str, found: list[str]) -> None:
    assert list(cited(text)) == found
