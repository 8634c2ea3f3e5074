"""Load an app in a separate process: ``python -m runyard_api.cli.dev.app_check module:app``.

The last line of standard output is a JSON object. ``files``: the files of the working directory that the app imports.
``agents``: the names of the app's agents. ``error``: the error if the app cannot be loaded, or null.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from runyard.app import load_app
from runyard.errors import RunyardError

from ..view import output


def imported_files(app: str, folder: Path) -> set[Path]:
    """Return the files below ``folder`` that the app imports: the files of all loaded modules, and the files that their import
    statements name and may load later.

    A file that an import statement names is included, even if it cannot be parsed. The packages of a virtual environment in
    ``folder`` are not included.
    """
    loaded = {Path(file).resolve() for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    found: set[Path] = set()
    waiting = {*loaded, *places(folder, app.partition(":")[0])}
    while waiting := {path for path in waiting - found if path.is_relative_to(folder) and not path.is_relative_to(sys.prefix)}:
        found |= waiting
        waiting = {path for file in waiting for path in named_in(file, folder)}
    return found


def named_in(file: Path, folder: Path) -> Iterator[Path]:
    """Yield the files below ``folder`` that the import statements of ``file`` name, including statements inside functions."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield from places(folder, name.name)
        elif isinstance(node, ast.ImportFrom) and node.level < len(file.parts):
            base = file.parents[node.level - 1] if node.level else folder
            for name in node.names:
                yield from places(base, f"{node.module or ''}.{name.name}".strip("."))


def places(base: Path, name: str) -> Iterator[Path]:
    """Yield the files below ``base`` that define the module ``name`` or a package that contains this module."""
    for part in name.split("."):
        base = base / part
        yield from (path for path in (base.with_name(f"{part}.py"), base / "__init__.py") if path.is_file())


if __name__ == "__main__":
    problem: RunyardError | None = None
    agents: list[str] = []
    try:
        agents = list(load_app(sys.argv[1]).agents)
    except RunyardError as error:
        problem = error
    files = sorted(map(str, imported_files(sys.argv[1], Path.cwd().resolve())))
    output.print_line("")  # ends an incomplete line of the app
    output.print_line(json.dumps({"files": files, "agents": agents, "error": problem and problem.to_dict()}))
