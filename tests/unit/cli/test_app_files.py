"""Which files restart the workers of `dev --reload`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runyard.errors import AppImportError, InvalidInputError
from runyard_api.cli.dev.app_files import AppFiles

Writes = Callable[..., None]
BOUND = 30.0


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
    files.wait()
    assert watched(files, tmp_path) == {"app", "fresh"}
    with pytest.raises(AppImportError):
        AppFiles("app:app")
    write(fresh="import deeper\n", deeper="")
    files.refresh()
    files.wait()
    assert watched(files, tmp_path) == {"app", "fresh", "deeper"}
    write(app="from runyard import App\napp = App()\n")
    files.refresh()
    files.wait()
    assert watched(files, tmp_path) == {"app"}


def test_an_import_that_hangs_stops_neither_the_next_nor_the_end(write: Writes, tmp_path: Path) -> None:
    """Its process and the processes that it started end with it. The files that it names are watched meanwhile."""
    good = "from runyard import App\napp = App()\n"
    write(app=good)
    hangs = (
        "import os, socket, subprocess, fresh\n"
        "program = subprocess.Popen(['sleep', '600'])\n"
        "open('pids.new', 'w').write(f'{os.getpid()} {program.pid}')\n"
        "os.rename('pids.new', 'pids')\n"
        "socket.create_server(('127.0.0.1', 0)).accept()\n"
    )
    with AppFiles("app:app") as files:
        write(app=hangs, fresh="")
        files.refresh()
        first = started(tmp_path)
        assert not files.ended() and watched(files, tmp_path) == {"app", "fresh"}
        write(app=good)
        files.refresh()
        files.wait()
        assert files.error is None and watched(files, tmp_path) == {"app"}
        write(app=hangs)
        files.refresh()
        second = started(tmp_path)
    for pid in first + second:
        ends(pid)


def test_an_import_ends_with_the_process_that_started_it(write: Writes, tmp_path: Path) -> None:
    write(
        app="import os, time\nopen('pids.new', 'w').write(f'{os.getpid()}')\nos.rename('pids.new', 'pids')\ntime.sleep(600)\n"
    )
    program = "from runyard_api.cli.dev.app_files import AppFiles; AppFiles('app:app')"
    with subprocess.Popen([sys.executable, "-P", "-c", program], cwd=tmp_path) as owner:
        try:
            [pid] = started(tmp_path)
        finally:
            owner.kill()
    ends(pid)


@pytest.mark.parametrize(
    "text", ["import os\nos._exit(0)\n", "import os\nos._exit(3)\n", "import os\nos.kill(os.getpid(), 9)\n"]
)
def test_an_import_that_ends_its_process_is_an_error(write: Writes, text: str) -> None:
    write(app=text)
    with pytest.raises(InvalidInputError, match=r"the process that imported app:app exited with status (0|3|-9)$"):
        AppFiles("app:app")


def test_threads_of_the_app_do_not_delay_the_result(write: Writes) -> None:
    write(
        app="import threading, time\nfrom runyard import App\n"
        "app = App()\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    )
    with AppFiles("app:app") as files:
        assert files.error is None


def started(folder: Path) -> list[int]:
    """The ids of the processes of an import, which has stored them. Remove the file."""
    deadline = time.monotonic() + BOUND
    while not (folder / "pids").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    (folder / "pids").unlink()
    return pids


def ends(pid: int) -> None:
    """Wait for the end of a process of another parent."""
    deadline = time.monotonic() + BOUND
    listed = ["ps", "-o", "stat=", "-p", str(pid)]
    while (state := subprocess.run(listed, capture_output=True, text=True, check=False).stdout.strip()) and state[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
