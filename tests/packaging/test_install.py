"""What is built is whole: every file of the packages, the command and the entry points."""

import re
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = {".py", ".sql", ".lua"}
FOLDERS = {"runyard": "runner", "runyard_backends": "backends", "runyard_api": "api"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return zipfile.ZipFile(next(target.glob("runyard-*.whl")))


def test_the_wheel_holds_every_file_of_the_packages(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    files = [(path, ROOT / folder) for package, folder in FOLDERS.items() for path in (ROOT / folder / package).rglob("*")]
    wanted = {str(path.relative_to(folder)) for path, folder in files if path.suffix in KINDS or path.name == "py.typed"}
    assert wanted >= {f"{package}/py.typed" for package in FOLDERS}
    assert wanted <= names


def test_the_wheel_installs_three_packages_and_nothing_beside_them(wheel: zipfile.ZipFile) -> None:
    """A project may have modules named `api`, `backends` and `runner`."""
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {name for name in tops if not name.endswith(".dist-info")} == FOLDERS.keys()


def test_the_wheel_has_the_built_console_and_not_its_sources(wheel: zipfile.ZipFile) -> None:
    """Whoever installs it needs no Node."""
    files = {name.removeprefix("runyard_api/console_files/") for name in wheel.namelist() if "/console" in name}
    page = wheel.read("runyard_api/console_files/index.html").decode()
    named = set(re.findall(r'(?:src|href)="(assets/[^"]+)"', page))
    assert len(named) == 2 and named <= files
    assert files == {*named, "index.html", "built.txt", "runyard_api/http/console.py"}


def test_every_entry_point_can_be_loaded() -> None:
    points = [
        point
        for point in distribution("runyard").entry_points
        if point.group in {"runyard.backends", "runyard.adapters", "console_scripts"}
    ]
    assert {point.name for point in points} == {
        "runyard", *("postgresql", "postgres", "sqlite", "mysql", "mariadb", "memory", "http", "https"),
        *("agents", "cubeloop", "cubepi", "langgraph", "pydantic_ai"),
    }  # fmt: skip
    for point in points:
        assert callable(point.load())
