"""Modules and functions are short: a module holds one idea, and a function fits a screen."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("runner", "backends", "api")
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 80


def modules() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Each function of a module, and how many lines it has with its decorators."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - first + 1


def test_modules_have_400_lines_at_most() -> None:
    assert {name: lines for name, text in modules() if (lines := len(text.splitlines())) > MAX_MODULE_LINES} == {}


def test_functions_have_80_lines_at_most() -> None:
    found = {(name, of): lines for name, text in modules() for of, lines in functions(text) if lines > MAX_FUNCTION_LINES}
    assert found == {}


def test_functions_are_measured_with_their_decorators() -> None:
    assert dict(functions("@one\n@two\ndef f():\n    async def g():\n        pass\n")) == {"f": 5, "g": 2}
