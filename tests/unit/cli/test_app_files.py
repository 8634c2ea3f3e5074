"""Which files restart the workers of `dev --reload`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runyard.errors import AppImportError
from runyard_api.cli.dev.app_files import AppFiles

Writes = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writes:
    monkeypatch.chdir(tmp_path)

    def write(**files: str) -> None:
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    return write


def watched(files: AppFiles, folder: Path) -> set[str]:
    return {path.stem for path in files.among(folder.rglob("*.py"))}


def test_only_files_that_the_app_imports_at_once_or_later(write: Writes, tmp_path: Path) -> None:
    """A program of the user beside the app, and a test, restart nothing. An import inside a function counts."""
    write(app="import tools.prices\nfrom runyard import App\napp = App()\ndef later() -> None:\n    import rare\n")
    write(tools__prices="from . import base\n", tools__base="", rare="", ask="import app\n", test_app="import app\n")
    files = AppFiles("app:app")
    assert watched(files, tmp_path) == {"app", "prices", "base", "rare"}


def test_a_file_that_breaks_the_app_is_watched_until_it_is_mended(write: Writes, tmp_path: Path) -> None:
    write(app="from runyard import App\napp = App()\n", ask="")
    files = AppFiles("app:app")
    write(app="import fresh\nfrom runyard import App\napp = App()\n", fresh="def (")
    files.refresh()
    assert watched(files, tmp_path) == {"app", "fresh"}
    with pytest.raises(AppImportError):
        AppFiles("app:app")
    write(fresh="import deeper\n", deeper="")
    files.refresh()
    assert watched(files, tmp_path) == {"app", "fresh", "deeper"}
    write(app="from runyard import App\napp = App()\n")
    files.refresh()
    assert watched(files, tmp_path) == {"app"}
