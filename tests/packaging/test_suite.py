"""The suite's own guards: a folder that runs nothing fails the run, and a group of tests runs in one process."""

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
SHARED = ("conftest.py", "support/authorities.py", "support/fleet.py", "support/forked.py")
WITHOUT = [part for name in ("cacheprovider", "langsmith_plugin", "schemathesis", "valkey") for part in ("-p", f"no:{name}")]
GROUP = """
import os
import pathlib
import pytest

@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("n", range(4))
def test_it(n):
    pathlib.Path(os.environ["PYTEST_XDIST_WORKER"]).touch()
"""


def suite(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pytest", *WITHOUT, *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def make_suite(root: Path) -> None:
    (root / "pytest.ini").write_text("[pytest]\ntestpaths = tests\naddopts = --import-mode=importlib\n")
    for folder, body in {"full": "def test_one(): pass", "some/idle": "def tset_two(): pass"}.items():
        (root / "tests" / folder).mkdir(parents=True)
        (root / "tests" / folder / "test_it.py").write_text(body)
    (root / "tests" / "support").mkdir()
    for name in SHARED:
        (root / "tests" / name).write_text((TESTS / name).read_text())


def test_a_folder_that_ran_nothing_fails_the_whole_suite(tmp_path: Path) -> None:
    make_suite(tmp_path)
    for arguments in ([], ["-n", "2"]):
        result = suite(tmp_path, *arguments)
        assert result.returncode == 1, result.stdout
        assert "no test ran in: tests/some/idle" in result.stdout


def test_a_chosen_part_may_leave_folders_out(tmp_path: Path) -> None:
    make_suite(tmp_path)
    assert suite(tmp_path, "tests/full").returncode == 0
    assert suite(tmp_path, "-k", "one").returncode == 0


def test_a_group_runs_in_one_process(tmp_path: Path) -> None:
    """Groups share what is expensive to start, and keep tests apart that would disturb each other."""
    (tmp_path / "test_it.py").write_text(GROUP)
    result = suite(tmp_path, "-n", "2", "--dist", "loadgroup")
    assert "4 passed" in result.stdout
    assert len(list(tmp_path.glob("gw*"))) == 1
