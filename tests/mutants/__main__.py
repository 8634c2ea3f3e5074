"""``python -m tests.mutants [words of names …]``: remove one guard after the other and see that a test, or chaos, notices.

Works on copies of the tree, as many as the machine has cores. Ends with 1 if a mutant survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS

ROOT: Final = Path(__file__).parents[2]
IGNORED: Final = shutil.ignore_patterns(".*", "__pycache__", "node_modules", "build", "dist")
CHAOS_SECONDS: Final = 60
FAILED, PASSED = 1, 0


def main() -> int:
    """Try the mutants whose names contain one of the arguments; without arguments, all of them."""
    chosen = [mutant for mutant in MUTANTS if not sys.argv[1:] or any(word in mutant.name for word in sys.argv[1:])]
    with tempfile.TemporaryDirectory(prefix="runyard-mutants-") as scratch:
        survivors = _survivors(chosen, Path(scratch), os.cpu_count() or 1)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught")
    return 1 if survivors else 0


def _survivors(chosen: Sequence[Mutant], scratch: Path, at_once: int) -> list[Mutant]:
    trees: SimpleQueue[Path] = SimpleQueue()
    for n in range(at_once):
        trees.put(shutil.copytree(ROOT, scratch / f"tree{n}", ignore=IGNORED))

    def caught(mutant: Mutant) -> bool:
        tree = trees.get()
        try:
            return _caught(mutant, tree)
        finally:
            trees.put(tree)

    pool = ThreadPoolExecutor(at_once)
    try:
        return [mutant for mutant, noticed in zip(chosen, pool.map(caught, chosen), strict=True) if not noticed]
    finally:
        pool.shutdown(cancel_futures=True)


def _caught(mutant: Mutant, tree: Path) -> bool:
    """True if the mutant's tests, which pass without it, fail with it, or a minute of chaos does."""
    began = time.monotonic()
    if (code := _before(tree, mutant.tests)) != PASSED:
        sys.exit(f"the tests for {mutant.name!r} end with {code} before any guard is removed: {' '.join(mutant.tests)}")
    originals = {edit.file: (tree / edit.file).read_text("utf-8") for edit in mutant.edits}
    try:
        for edit in mutant.edits:
            edit.apply(tree)
        by = None
        if _run(tree, "pytest", *mutant.tests) == FAILED:
            by = "tests"
        elif _run(tree, "tests.chaos", "--duration", str(CHAOS_SECONDS)) == FAILED:
            by = "chaos"
    finally:
        for file, text in originals.items():
            (tree / file).write_text(text, "utf-8")
    print(f"{f'caught by {by}' if by else 'SURVIVED':<18}{time.monotonic() - began:6.0f} s  {mutant.name}", flush=True)
    return by is not None


@cache
def _before(tree: Path, tests: tuple[str, ...]) -> int:
    """The exit code of tests, which several mutants may share, with every guard in place."""
    return _run(tree, "pytest", *tests)


def _run(tree: Path, module: str, *arguments: str) -> int:
    """The exit code of a Python module in the copy."""
    options: Sequence[str] = ("-q", "-x", "-p", "no:cacheprovider") if module == "pytest" else ()
    path = os.pathsep.join(map(str, (tree, *(tree / folder for folder in ("runner", "backends", "api")))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", module, *options, *arguments]
    return subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())
