"""A process that imports the app of the user. An import that hangs does not stop ``runyard dev``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runyard.errors import InvalidInputError, RunyardError, from_dict

from .app_check import SLOW_SECONDS

POLL_SECONDS: Final = 0.02
PLACE_SECONDS: Final = 2.0
"""Seconds to wait for the place of a slow import. Native code that holds the interpreter has no place."""


@dataclass(frozen=True)
class Imported:
    """``files``: the files that the app imports. ``agents``: the names of its agents. ``error``: the error if the app cannot be
    loaded, or None."""

    files: set[Path]
    agents: list[str]
    error: RunyardError | None


class AppImport:
    """A process that imports ``app``, and reports to a file (:mod:`runyard_api.cli.dev.app_check`)."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._read = self._noted = False
        self._report = tempfile.TemporaryFile()  # noqa: SIM115 - stop closes it
        report = self._report.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runyard_api.cli.dev.app_check", app, str(report)],
            stdin=subprocess.PIPE,  # the process ends when the pipe closes
            stdout=subprocess.DEVNULL,
            pass_fds=[report],
            start_new_session=True,
        )

    def wait(self) -> bool:
        """Wait a moment. Return whether the import has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(POLL_SECONDS)
        return self._process.returncode is not None or "files" in self._reported()

    def result(self) -> Imported | None:
        """Return the result when the import has ended. Return None before this, and after the result was returned once."""
        code, found = self._process.poll(), self._reported()
        if self._read or (code is None and "files" not in found):
            return None
        self._read = True
        if "files" not in found:
            why = f"the process that imported {self._app} exited with status {code}"
            return Imported(set(), [], InvalidInputError(why, field="app"))
        error = from_dict(found["error"]) if found["error"] else None
        return Imported({Path(file) for file in found["files"]}, found["agents"], error)

    def note(self) -> str:
        """Return a sentence that says at which line of code the import takes long. Return an empty text before SLOW_SECONDS,
        and in every call after the first sentence."""
        if self._read or self._noted or "began" not in (found := self._reported()):
            return ""
        seconds, place = time.monotonic() - found["began"], found.get("at")
        if seconds < SLOW_SECONDS + (PLACE_SECONDS if place is None else 0.0):
            return ""
        self._noted = True
        where = f"; it is at {os.path.relpath(place[0])}:{place[1]}" if place is not None else ""
        return f"the import of {self._app} has taken {seconds:.0f} s{where}"

    def stop(self) -> None:
        """End the process and its child processes if it still runs."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._report.close()

    def _reported(self) -> dict[str, Any]:
        """Return the values of all complete lines of the report."""
        report = self._report.fileno()
        written = os.pread(report, os.fstat(report).st_size, 0)
        found: dict[str, Any] = {}
        for line in written[: written.rfind(b"\n") + 1].splitlines():
            found |= json.loads(line)
        return found
