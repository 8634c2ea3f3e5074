"""The code of the documents, by page and language."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.examples.programs import ROOT

PAGES: Final = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
)
PRESUMED: Final = Path(__file__).parent / "presumed"
"""What a page speaks of and does not show, such as the reader's bank: a file for each page that has such names."""
RELAXED: Final = (
    "# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs, allow-untyped-globals, "
    'allow-redefinition, disable-error-code="empty-body,no-any-return,type-arg,var-annotated"\n'
)
"""The types that a reader of a page may leave out."""


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each code block of ``page``."""
    text = page.read_text(encoding="utf-8")
    for indent, language, block in re.findall(r"^( *)```([a-z]*)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        yield language, textwrap.dedent(block) if indent else block


def name_of(page: Path) -> str:
    return re.sub(r"\W", "_", page.stem).lower()


def module_of(page: Path) -> str:
    """Return a page's blocks of Python as one module. A block may use the names of earlier blocks, as its reader would.

    The statements are the body of an async function, because some blocks await. The names that :data:`PRESUMED` annotates are
    global.
    """
    presumed = PRESUMED / f"{name_of(page)}.py"
    given = presumed.read_text(encoding="utf-8") if presumed.exists() else ""
    named = [
        node.target.id
        for node in ast.parse(given).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    imports: list[str] = []
    body = [f"global {', '.join(named)}"] if named else []
    for language, block in blocks(page):
        if language == "python":
            for node in ast.parse(block).body:
                first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
                lines = "\n".join(block.splitlines()[first - 1 : node.end_lineno])
                (imports if isinstance(node, ast.Import | ast.ImportFrom) else body).append(lines)
    whole = textwrap.indent("\n".join(body) or "pass", "    ")
    return "\n".join([RELAXED, given, *imports, "async def page() -> None:", whole, ""])
