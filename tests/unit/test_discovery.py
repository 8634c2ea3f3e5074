"""What a command follows to the servers of a ``runyard dev``, and what ``dev --reset`` removes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli import dev, discovery
from backends.embedded import postgres
from runner.errors import InvalidInputError

HERE = discovery.Deployment(os.getpid(), "postgresql://x", "redis://x", "app:app")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a deployment, and one below it."""
    folder = tmp_path / discovery.FOLDER
    folder.mkdir(mode=0o700)
    discovery.write(folder, HERE)
    (tmp_path / "a" / "b").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks is another user than the one who made the files."""
    monkeypatch.setattr(os, "geteuid", lambda: 54321)


def test_is_for_its_owner_only_and_found_from_below(project: Path) -> None:
    assert stat.S_IMODE((project / discovery.FOLDER / discovery.FILE).stat().st_mode) == 0o600
    assert discovery.find(project / "a" / "b") == HERE
    discovery.remove(project / discovery.FOLDER)
    assert discovery.find(project / "a" / "b") is None


def test_a_dead_owner_is_no_deployment(tmp_path: Path) -> None:
    discovery.write(tmp_path, discovery.Deployment(2**22 + 1, "postgresql://x", "redis://x", "app:app"))
    assert discovery.read(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 1}', '{"pid": "1", "postgres_url": 1, "redis_url": 2, "app": 3}'])
def test_a_broken_file_is_no_deployment(tmp_path: Path, text: str) -> None:
    file = tmp_path / discovery.FILE
    file.write_text(text)
    file.chmod(0o600)
    assert discovery.read(tmp_path) is None


def test_what_another_user_planted_is_not_followed(project: Path, stranger: None) -> None:
    """Prompts would go to the stranger's server. The message says what to do."""
    with pytest.raises(InvalidInputError, match=r"belongs to another user.*RUNYARD_POSTGRES_URL"):
        discovery.find(project / "a" / "b")


@pytest.mark.parametrize("name", [".", discovery.FILE])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_may_write_is_not_followed(project: Path, name: str, mode: int) -> None:
    path = project / discovery.FOLDER / name
    path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)
    with pytest.raises(InvalidInputError, match=r"can be changed by others.*chmod"):
        discovery.find(project)


def test_a_link_is_not_followed(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Neither to a folder nor to a file: what it leads to may be anything of the caller's."""
    other = tmp_path_factory.mktemp("other")
    (other / discovery.FOLDER).symlink_to(project / discovery.FOLDER)
    with pytest.raises(InvalidInputError, match="link"):
        discovery.find(other)
    (other / discovery.FOLDER).unlink()
    (other / discovery.FOLDER).mkdir(mode=0o700)
    (other / discovery.FOLDER / discovery.FILE).symlink_to(project / discovery.FOLDER / discovery.FILE)
    with pytest.raises(InvalidInputError, match="link"):
        discovery.find(other)


def test_nothing_above_the_home_folder_is_looked_at(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: project / "a")
    assert discovery.find(project / "a" / "b") is None
    assert discovery.find(project) == HERE
    monkeypatch.setattr(Path, "home", lambda: project)
    assert discovery.find(project / "a" / "b") == HERE


def test_nothing_on_another_file_system_is_looked_at(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount may be somebody else's."""
    monkeypatch.setattr(discovery, "_device", lambda folder: len(folder.parts) > len(project.parts))
    assert discovery.find(project / "a" / "b") is None
    assert discovery.find(project) == HERE


def test_dev_makes_nothing_in_a_folder_of_another_user(project: Path, stranger: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    for reset in (False, True):
        with pytest.raises(InvalidInputError, match="belongs to another user"):
            dev.dev(None, reset=reset)  # type: ignore[arg-type]
    assert (project / discovery.FOLDER / discovery.FILE).exists()


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

    def test_there_may_be_nothing(self, home: Path) -> None:
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

    def test_links_inside_lead_nowhere(self, area: Path, home: Path, tmp_path: Path) -> None:
        """The server's user may have put them there."""
        (tmp_path / "kept").mkdir()
        (area / "data" / "out").symlink_to(tmp_path / "kept")
        (home / "cluster").symlink_to(area)
        postgres.forget_cluster(home)
        assert (tmp_path / "kept").exists() and not area.exists()
