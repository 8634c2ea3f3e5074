"""A copy of the repository in which one mutant after another is tried."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.mutants.mutant import Mutant

ROOT: Final = Path(__file__).parents[2]
IGNORED: Final = shutil.ignore_patterns(".*", "__pycache__", "node_modules", "build", "dist")
CHAOS_SECONDS: Final = 60
TEST_SECONDS: Final = 90
"""Seconds that one test may take. The tests of a mutant may name another ``--timeout``."""
TIMED_OUT: Final = "from pytest-timeout"
"""What pytest says of a test that took longer."""


class Outcome(StrEnum):
    """What became of a mutant."""

    TESTS = "caught by tests"
    CHAOS = "caught by chaos"
    TIMEOUT = "timeout"
    """A test took too long, as on a busy machine. The mutant of a guard against endless waiting names a ``--timeout`` in its
    tests, and is then caught by the timeout."""
    NO_TEST = "no test"
    """Its tests select no test."""
    BROKEN = "does not run"
    """The tests cannot be imported."""
    UNFIT = "tests fail anyway"
    """Its tests fail with all guards in place."""
    SURVIVED = "SURVIVED"

    @property
    def caught(self) -> bool:
        return self in (Outcome.TESTS, Outcome.CHAOS)


class Interrupted(Exception):
    """A signal ended the tests."""


class Tree:
    """A copy of the repository in ``folder``. Python stores compiled modules in the copy, which makes each start four times as
    fast."""

    def __init__(self, folder: Path) -> None:
        self.folder = shutil.copytree(ROOT, folder, ignore=IGNORED)

    def passes(self, tests: Sequence[str]) -> bool:
        """Whether tests pass with all guards in place."""
        return self._pytest(tests)[0] == 0

    def try_out(self, mutant: Mutant) -> Outcome:
        """Run the mutant's tests, and if they pass, a minute of chaos."""
        with self._changed(mutant):
            code, said = self._pytest(mutant.tests)
            if code == 0:
                print(f"{'chaos':<18}{'':>9}{mutant.name}: its tests pass", flush=True)
                code, _ = self._run("tests.chaos", "--duration", str(CHAOS_SECONDS))
                return Outcome.CHAOS if code == 1 else Outcome.SURVIVED
        if code == 1:
            return Outcome.TIMEOUT if TIMED_OUT in said and "--timeout" not in mutant.tests else Outcome.TESTS
        return Outcome.NO_TEST if code == 5 else Outcome.BROKEN

    @contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        originals = {edit.file: (self.folder / edit.file).read_text("utf-8") for edit in mutant.edits}
        try:
            for edit in mutant.edits:
                edit.apply(self.folder)
                self._forget(edit.file)
            yield
        finally:
            for file, text in originals.items():
                (self.folder / file).write_text(text, "utf-8")
                self._forget(file)

    def _forget(self, file: str) -> None:
        """Remove the compiled module. Python compares only the size and the second of the change."""
        path = self.folder / file
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def _pytest(self, tests: Sequence[str]) -> tuple[int, str]:
        return self._run("pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", str(TEST_SECONDS), *tests)

    def _run(self, module: str, *arguments: str) -> tuple[int, str]:
        """Run a module in the copy. Return its exit code and its output."""
        path = os.pathsep.join(map(str, (self.folder, *(self.folder / name for name in ("runner", "backends", "api")))))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode < 0:
            raise Interrupted
        return done.returncode, done.stdout
