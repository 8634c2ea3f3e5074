"""The files of a project that its app imports. ``dev --reload`` restarts the workers when one of them changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from runyard.errors import RunyardError

from .app_check import imported_files
from .app_import import AppImport


class AppFiles:
    """The files of ``app``, a ``MODULE:APP`` of the working directory.

    The app is loaded in a separate process, so that this process imports no module of the project. The constructor waits for
    the end of the import. If the app cannot be loaded, the error of :func:`runyard.app.load_app` is raised. ``say``: gets
    :meth:`note` if the import takes long. The ``with`` block ends an import that still runs. ``agents``: the names of the app's
    agents. ``error``: the error of the last import, or None.
    """

    def __init__(self, app: str, say: Callable[[str], None] = lambda _: None) -> None:
        self._app = app
        self._files: set[Path] = set()
        self.agents: list[str] = []
        self.error: RunyardError | None = None
        self._import = AppImport(app)
        try:
            while not self._import.wait():
                if note := self.note():
                    say(note)
            self.ended()
            if self.error is not None:
                raise self.error
        except BaseException:
            self._import.stop()
            raise

    def __enter__(self) -> AppFiles:
        return self

    def __exit__(self, *exc: object) -> None:
        self._import.stop()

    def among(self, changed: Iterable[Path]) -> list[Path]:
        """Return the ``changed`` files that the app imports."""
        return sorted(path for path in changed if path.resolve() in self._files)

    def refresh(self) -> None:
        """End an import that still runs, then start another import.

        Until the new import has ended, this object keeps the files of earlier imports. It also adds the files that the app's
        import statements name now. A change of one of these files may be the repair of an app that cannot be loaded.
        """
        self._import.stop()
        self.error = None
        self._files |= imported_files(self._app, Path.cwd().resolve())
        self._import = AppImport(self._app)

    def ended(self) -> bool:
        """If an import has ended since the last call, read its result and return True. If the app cannot be loaded, also keep
        the files of earlier imports."""
        if (found := self._import.result()) is None:
            return False
        self.agents, self.error = found.agents, found.error
        self._files = found.files if found.error is None else self._files | found.files
        return True

    def wait(self) -> None:
        """Wait for the end of an import, and read its result."""
        while not self._import.wait():
            pass
        self.ended()

    def note(self) -> str:
        """Return a sentence about an import that takes long, once for each import. Otherwise return an empty text."""
        return self._import.note()
