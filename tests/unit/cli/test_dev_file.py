"""What a command follows to the servers of a ``runyard dev``, and what ``dev --reset`` removes."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from runyard.errors import InvalidInputError
from runyard.support import dev_file
from runyard_api.cli.commands import dev
from runyard_api.cli.dev import servers
from runyard_backends.embedded import postgres

HERE = dev_file.Deployment(os.getpid(), "postgresql://x", "redis://x", "app:app")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A folder with a running deployment, and one below it."""
    folder = tmp_path / dev_file.FOLDER
    folder.mkdir(mode=0o700)
    with dev_file.locked(folder):
        dev_file.write(folder, HERE)
        (tmp_path / "a" / "b").mkdir(parents=True)
        yield tmp_path


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks is another user than the one who made the files."""
    monkeypatch.setattr(os, "geteuid", lambda: 54321)


def test_is_for_its_owner_only_and_found_from_below(project: Path) -> None:
    assert stat.S_IMODE((project / dev_file.FOLDER / dev_file.FILE).stat().st_mode) == 0o600
    assert dev_file.find(project / "a" / "b") == HERE
    dev_file.remove(project / dev_file.FOLDER)
    assert dev_file.find(project / "a" / "b") is None


def test_long_trouble_does_not_hide_the_servers(project: Path) -> None:
    """The message of an import error can have any length."""
    dev_file.write(project / dev_file.FOLDER, replace(HERE, trouble="é" * 100_000))
    found = dev_file.find(project)
    assert found is not None and found.trouble.startswith("éé") and found.postgres_url == HERE.postgres_url


@pytest.mark.parametrize("pid", [1, os.getpid(), 2**22 + 1, 10**30], ids=["init", "own", "no process", "no pid"])
def test_file_of_a_dev_that_ended_is_no_deployment(tmp_path: Path, pid: int) -> None:
    """Another process may have the process id by now. The next `dev` removes the file before it starts its servers."""
    with dev_file.locked(tmp_path):
        dev_file.write(tmp_path, dev_file.Deployment(pid, "postgresql://x", "redis://x", "app:app"))
        assert dev_file.read(tmp_path) is not None
    assert dev_file.read(tmp_path) is None
    with dev_file.locked(tmp_path):
        assert dev_file.read(tmp_path) is None


def test_kill_of_a_dev_ends_its_deployment(tmp_path: Path) -> None:
    program = """
import pathlib, sys, time
from runyard.support import dev_file
from runyard_api.cli.dev import servers
folder = pathlib.Path(sys.argv[1])
with dev_file.locked(folder):
    dev_file.write(folder, dev_file.Deployment(1, "postgresql://x", "redis://x", "app:app"))
    print("locked", flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None and owner.stdout.readline() == "locked\n"
            assert dev_file.read(tmp_path) is not None
            with pytest.raises(InvalidInputError, match=r"runs here already \(process 1\)"), dev_file.locked(tmp_path):
                pass
        finally:
            owner.kill()
    assert dev_file.read(tmp_path) is None
    with dev_file.locked(tmp_path):
        pass


def test_lock_outlives_a_reset(project: Path) -> None:
    """A second `dev --reset` would otherwise delete the data of the first one, which has begun to make its cluster."""
    folder = project / dev_file.FOLDER
    (folder / "postgres").mkdir()
    (folder / "postgres" / "words").write_text("of people")
    (folder / "link").symlink_to(project)
    servers.forget(folder)
    assert [path.name for path in folder.iterdir()] == [dev_file.LOCK] and (project / "a").exists()
    with pytest.raises(InvalidInputError, match="runs here already"), dev_file.locked(folder):
        pass


def test_command_that_looks_at_a_lock_does_not_stop_a_dev_from_starting(tmp_path: Path) -> None:
    with dev_file.locked(tmp_path):
        dev_file.write(tmp_path, HERE)
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            dev_file.write(tmp_path, HERE)
            dev_file.read(tmp_path)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(50):
            with dev_file.locked(tmp_path):
                pass
    finally:
        stop.set()
        looking.join()


def test_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / dev_file.LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidInputError, match="is a link"), dev_file.locked(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()


def store(folder: Path, text: str) -> None:
    """Put ``text`` in the place of the file."""
    (folder / dev_file.FILE).write_text(text, encoding="utf-8")
    (folder / dev_file.FILE).chmod(0o600)


def test_a_file_of_another_release_is_read(tmp_path: Path) -> None:
    """A newer release may write fields that this one does not know, or a trouble of another type."""
    newer = {**asdict(HERE), "trouble": {"code": 8}, "started_at": [1], "pid_of": None}
    with dev_file.locked(tmp_path):
        store(tmp_path, json.dumps(newer))
        assert dev_file.read(tmp_path) == HERE


def test_an_empty_trouble_is_not_written(project: Path) -> None:
    """Releases that do not know the field refuse a file that has it."""
    file = project / dev_file.FOLDER / dev_file.FILE
    assert set(json.loads(file.read_text("utf-8"))) == {"pid", "postgres_url", "redis_url", "app"}
    dev_file.write(file.parent, replace(HERE, trouble="no worker"))
    assert dev_file.find(project) == replace(HERE, trouble="no worker")
    dev_file.write(file.parent, HERE)
    assert dev_file.find(project) == HERE


def test_a_trouble_that_was_put_into_the_file_is_short(project: Path) -> None:
    """Each command that explains a run prints it."""
    store(project / dev_file.FOLDER, json.dumps({**asdict(HERE), "trouble": "x" * 50_000}))
    found = dev_file.find(project)
    assert found is not None and len(found.trouble) == dev_file.MAX_TROUBLE_CHARACTERS


def test_a_huge_file_is_not_read_whole(project: Path) -> None:
    store(project / dev_file.FOLDER, json.dumps({**asdict(HERE), "trouble": "x" * 10_000_000}))
    tracemalloc.start()
    try:
        assert dev_file.find(project) is None
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [dev_file.FILE, dev_file.LOCK])
@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_not_followed(project: Path, name: str, kind: str) -> None:
    path = project / dev_file.FOLDER / name
    path.unlink()
    path.mkdir() if kind == "folder" else os.mkfifo(path, 0o600)
    with pytest.raises(InvalidInputError, match=r"is not a file|Is a directory"):
        dev_file.find(project)


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example on a full disk."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = project / dev_file.FOLDER
    with monkeypatch.context() as patched:
        patched.setattr(json, "dump", full)
        with pytest.raises(OSError, match="No space"):
            dev_file.write(folder, replace(HERE, app="other:app"))
    assert dev_file.find(project) == HERE
    assert {path.name for path in folder.iterdir()} == {dev_file.FILE, dev_file.LOCK}


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"pid": 1}', '{"pid": "1", "postgres_url": 1, "redis_url": 2, "app": 3}', "null", "[" * 60_000),
        '{"pid": true, "postgres_url": "x", "redis_url": "x", "app": "x"}',
        '{"pid": 1e999, "postgres_url": "x", "redis_url": "x", "app": "x"}',
    ],
    ids=lambda text: text[:60],
)
def test_a_broken_file_is_no_deployment(tmp_path: Path, text: str) -> None:
    with dev_file.locked(tmp_path):
        store(tmp_path, text)
        assert dev_file.read(tmp_path) is None


def test_dev_file_of_another_user_is_not_followed(project: Path, stranger: None) -> None:
    """Prompts would go to the stranger's server. The message says what to do."""
    with pytest.raises(InvalidInputError, match=r"belongs to another user.*RUNYARD_POSTGRES_URL"):
        dev_file.find(project / "a" / "b")


@pytest.mark.parametrize("name", [".", dev_file.FILE])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_dev_file_that_others_may_write_is_not_followed(project: Path, name: str, mode: int) -> None:
    path = project / dev_file.FOLDER / name
    path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)
    with pytest.raises(InvalidInputError, match=r"can be changed by others.*chmod"):
        dev_file.find(project)


def test_a_link_is_not_followed(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Neither to a folder nor to a file: what it leads to may be anything of the caller's."""
    other = tmp_path_factory.mktemp("other")
    (other / dev_file.FOLDER).symlink_to(project / dev_file.FOLDER)
    with pytest.raises(InvalidInputError, match="link"):
        dev_file.find(other)
    (other / dev_file.FOLDER).unlink()
    (other / dev_file.FOLDER).mkdir(mode=0o700)
    (other / dev_file.FOLDER / dev_file.FILE).symlink_to(project / dev_file.FOLDER / dev_file.FILE)
    with pytest.raises(InvalidInputError, match="link"):
        dev_file.find(other)


def test_dev_file_above_the_home_folder_is_not_followed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: project / "a")
    assert dev_file.find(project / "a" / "b") is None
    assert dev_file.find(project) == HERE
    monkeypatch.setattr(Path, "home", lambda: project)
    assert dev_file.find(project / "a" / "b") == HERE


def test_a_user_without_a_home_folder_finds_the_dev_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run under a user id that has no entry and no HOME."""

    def missing() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", missing)
    assert dev_file.find(project / "a" / "b") == HERE
    dev_file.remove(project / dev_file.FOLDER)
    assert dev_file.find(project / "a" / "b") is None


def test_dev_file_on_another_file_system_is_not_followed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount may be somebody else's."""
    monkeypatch.setattr(dev_file, "_device", lambda folder: len(folder.parts) > len(project.parts))
    assert dev_file.find(project / "a" / "b") is None
    assert dev_file.find(project) == HERE


def test_dev_makes_nothing_in_a_folder_of_another_user(project: Path, stranger: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    for reset in (False, True):
        with pytest.raises(InvalidInputError, match="belongs to another user"):
            dev.dev(None, reset=reset)  # type: ignore[arg-type]
    assert (project / dev_file.FOLDER / dev_file.FILE).exists()


class TestReset:
    @pytest.fixture
    def area(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """A cluster elsewhere, as for a server that runs under another user id."""
        places = tmp_path / "var"
        places.mkdir()
        monkeypatch.setattr(postgres, "PLACES", (str(places),))
        made = places / "runyard-x1"
        (made / "data").mkdir(parents=True)
        (made / "data" / "words").write_text("of people")
        yield made

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        home = tmp_path / "postgres"
        home.mkdir()
        return home

    def test_the_link_is_followed(self, area: Path, home: Path) -> None:
        (home / "cluster").symlink_to(area)
        postgres.forget_cluster(home)
        assert not area.exists() and not (home / "cluster").is_symlink()

    def test_forgetting_a_cluster_that_is_not_there_does_nothing(self, home: Path) -> None:
        postgres.forget_cluster(home)
        (home / "cluster").mkdir()
        postgres.forget_cluster(home)
        (home / "cluster").rmdir()
        (home / "cluster").symlink_to(home / "gone")
        postgres.forget_cluster(home)

    def test_a_link_to_something_else_is_not(self, area: Path, home: Path, tmp_path: Path) -> None:
        """A link of another user's making, or one to what is no area of ours: nothing of it is removed."""
        precious = tmp_path / "precious"
        (precious / "data").mkdir(parents=True)
        (area.parent / "other").mkdir()
        (area.parent / "runyard-y2").symlink_to(precious)
        for target in (
            precious,
            area.parent,
            area / "data",
            area / ".." / "..",
            area.parent / "other",
            area.parent / "runyard-y2",
        ):
            (home / "cluster").symlink_to(target)
            postgres.forget_cluster(home)
            assert (precious / "data").exists() and (area / "data" / "words").exists() and (area.parent / "other").exists()
            (home / "cluster").unlink(missing_ok=True)

    def test_nor_one_to_what_belongs_to_somebody_else(
        self, area: Path, home: Path, monkeypatch: pytest.MonkeyPatch, stranger: None
    ) -> None:
        (home / "cluster").symlink_to(area)
        postgres.forget_cluster(home)
        assert (area / "data" / "words").exists()

    def test_links_inside_the_data_folder_are_not_followed(self, area: Path, home: Path, tmp_path: Path) -> None:
        """The server's user may have put them there."""
        (tmp_path / "kept").mkdir()
        (area / "data" / "out").symlink_to(tmp_path / "kept")
        (home / "cluster").symlink_to(area)
        postgres.forget_cluster(home)
        assert (tmp_path / "kept").exists() and not area.exists()
