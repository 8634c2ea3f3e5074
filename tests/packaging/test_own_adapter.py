"""Tests of examples/own_adapter, a third party's adapter in a separate package with an entry point."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_adapter"


def installed(folder: Path) -> Path:
    """Install the example's modules and entry points into ``folder``, as pip would, and return its tests."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    info = folder / "runyard_parrot-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", "utf-8")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    for module in ("parrot.py", "runyard_parrot.py"):
        shutil.copy(EXAMPLE / module, folder)
    tests = folder.parent / "tests"
    tests.mkdir()
    shutil.copy(EXAMPLE / "test_runyard_parrot.py", tests)
    return tests


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, *command], cwd=folder.parent, env=environment, text=True, capture_output=True)


def test_the_package_passes_the_suite_of_adapters(tmp_path: Path) -> None:
    tests = installed(tmp_path / "site")
    options = ("-q", "-o", "asyncio_mode=auto", "-p", "no:valkey", "-p", "no:schemathesis", "-p", "no:cacheprovider")
    done = run(tmp_path / "site", "-m", "pytest", *options, str(tests))
    assert done.returncode == 0, done.stdout
    assert "15 passed" in done.stdout, done.stdout


def test_the_adapter_is_loaded_with_its_framework_only(tmp_path: Path) -> None:
    """A process that has not imported the framework does not import the adapter."""
    installed(tmp_path / "site")
    without = "import asyncio, sys, runyard; runyard.App({'f': asyncio.sleep}); sys.exit('runyard_parrot' in sys.modules)"
    assert run(tmp_path / "site", "-c", without).returncode == 0
    having = "import parrot; from runyard import App; App({'p': parrot.Bot()}); App({'q': object()})"
    refused = run(tmp_path / "site", "-c", having)
    assert "InvalidInputError" in refused.stderr and "parrot" in refused.stderr and "got <object" in refused.stderr


BROKEN = """
import parrot, sys
from importlib.metadata import version
from runyard import App
class Own: pass
class Mine(parrot.Bot): pass
async def answers(ctx): ...
App({"f": answers})
for agent in (Own(), Mine()):
    try:
        App({"a": agent})
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_broken_adapter_breaks_only_the_agents_of_its_framework(tmp_path: Path) -> None:
    """The error names the distribution. A second distribution for the same framework serves its agents."""
    site = tmp_path / "site"
    installed(site)
    (site / "runyard_parrot.py").write_text("import not_installed\n", "utf-8")
    done = run(site, "-c", BROKEN)
    assert done.returncode == 0, done.stderr
    own, mine = done.stdout.splitlines()
    assert own.startswith("InvalidInputError an agent is") and "cannot be loaded" not in own
    assert mine.startswith("InvalidInputError the adapter runyard_parrot:")
    assert "runyard-parrot 1.0" in mine and "No module named 'not_installed'" in mine


def test_two_packages_may_have_an_adapter_for_one_framework(tmp_path: Path) -> None:
    """The first adapter that accepts an agent serves it."""
    site = tmp_path / "site"
    installed(site)
    other = site / "another_parrot-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: another-parrot\nVersion: 1.0\n", "utf-8")
    (other / "entry_points.txt").write_text("[runyard.adapters]\nparrot = another_parrot:adapt", "utf-8")
    (site / "another_parrot.py").write_text("def adapt(agent): return None\n", "utf-8")
    done = run(site, "-c", "import parrot; from runyard import App; App({'p': parrot.Bot()})")
    assert done.returncode == 0, done.stderr
