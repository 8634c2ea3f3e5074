"""The files of a project that its app imports. ``dev --reload`` restarts the workers when one of them changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from runyard.errors import InvalidInputError, RunyardError, from_dict


class AppFiles:
    """The files of ``app``, a ``MODULE:APP`` of the working directory.

    The app is loaded in a separate process, so that this process imports no module of the project. If the app cannot be loaded,
    the error of :func:`runyard.app.load_app` is raised. ``agents``: the names of its agents.
    ``error``: the error of the last :meth:`refresh`, or None.
    """

    def __init__(self, app: str) -> None:
        self._app = app
        self._files, self.agents, self.error = _load(app)
        if self.error is not None:
            raise self.error

    def among(self, changed: Iterable[Path]) -> list[Path]:
        """Return the ``changed`` files that the app imports."""
        return sorted(path for path in changed if path.resolve() in self._files)

    def refresh(self) -> None:
        """Read the imports again. If the app cannot be loaded, also keep the files that it imported before: the user may repair
        one of them."""
        files, self.agents, self.error = _load(self._app)
        self._files = files if self.error is None else self._files | files


def _load(app: str) -> tuple[set[Path], list[str], RunyardError | None]:
    """Return the files that the app imports, the names of its agents, and the error if the app cannot be loaded."""
    module = "runyard_api.cli.dev.app_check"
    done = subprocess.run([sys.executable, "-P", "-m", module, app], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return (
            set(),
            [],
            InvalidInputError(f"the process that imported {app} exited with status {done.returncode}", field="app"),
        )
    found = json.loads(done.stdout.splitlines()[-1])
    return {Path(file) for file in found["files"]}, found["agents"], from_dict(found["error"]) if found["error"] else None
