"""Load an app in a separate process: ``python -m runyard_api.cli.dev.app_check module:app REPORT``.

REPORT is the number of an open file. The process writes lines to it, each a JSON object. The first line has the beginning of
the import. ``began``: the time of the monotonic clock. If the import takes longer than SLOW_SECONDS, the next line says which
line of code is being executed. ``at``: the file and the number of this line. The last line has the result. ``files``: the files
of the working directory that the app imports. ``agents``: the names of the app's agents. ``error``: the error if the app cannot
be loaded, or null. The process ends when standard input ends.
"""

from __future__ import annotations

import ast
import json
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from runyard.app import load_app
from runyard.errors import RunyardError
from runyard.support.tracebacks import innermost_place

from ..commands.worker import stop_with_owner

SLOW_SECONDS: Final = 5.0
"""Seconds after which an import takes long."""


def imported_files(app: str, folder: Path) -> set[Path]:
    """Return the files below ``folder`` that the app imports. These are the files of all loaded modules, and the files that the
    import statements of these modules name. Some of these statements may be executed later.

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
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
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


def main(app: str, report: int) -> None:
    """Load ``app``, and write the lines to the file ``report``."""

    def write(line: dict[str, Any]) -> None:
        with open(report, "a", encoding="utf-8", closefd=False) as file:
            file.write(f"{json.dumps(line)}\n")

    def write_place() -> None:
        if ended.wait(SLOW_SECONDS):
            return
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        if (place := innermost_place(reversed(list(traceback.walk_stack(frame))) if frame else ())) is not None:
            file, _, line = place.rpartition(":")
            write({"at": [file, int(line)]})

    write({"began": time.monotonic()})
    ended = threading.Event()
    placing = threading.Thread(target=write_place, name="runyard-place", daemon=True)
    placing.start()
    threading.Thread(target=stop_with_owner, name="runyard-owner", daemon=True).start()
    error: RunyardError | None = None
    agents: list[str] = []
    try:
        agents = list(load_app(app).agents)
    except RunyardError as problem:
        error = problem
    ended.set()
    placing.join()
    files = sorted(map(str, imported_files(app, Path.cwd().resolve())))
    write({"files": files, "agents": agents, "error": error and error.to_dict()})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
