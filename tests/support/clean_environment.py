"""Environments like that of the image: the wheel, and the packages that pip installs with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from tests.support.authorities import public

ROOT: Final = Path(__file__).parents[2]
WITH_PIP: Final = "RUNYARD_TEST_PIP_INSTALL"
"""If this variable is set, pip installs the packages, as in the image. Otherwise those of this environment are linked."""


def make(folder: Path, extras: Iterable[str]) -> Path:
    """Make an environment in ``folder`` with the wheel of this repository and ``extras``. Return the folder of its programs."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist"]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = (folder / "dist").glob("runyard-*.whl")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python"]
    if os.environ.get(WITH_PIP):
        given = ["--only-binary", ":all:", f"{wheel}[{','.join(extras)}]"]
    else:
        given = ["--no-deps", "--no-index", str(wheel)]
        [site] = (environment / "lib").glob("python3*/site-packages")
        for found in closure(Requirement(f"runyard[{','.join(extras)}]")):
            link(found, site)
    subprocess.run([*pip, "install", "--quiet", *given], check=True, env=public())
    subprocess.run([*pip, "check"], check=True, capture_output=True)
    return environment / "bin"


def closure(wanted: Requirement) -> Iterator[Distribution]:
    """Yield the installed distributions that ``wanted`` requires, without its own."""
    seen: set[tuple[str, str]] = set()
    given: set[str] = set()
    todo = [wanted]
    while todo:
        requirement = todo.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        try:
            found = distribution(name)
        except PackageNotFoundError:
            raise AssertionError(f"{requirement} is required, and this environment does not have it") from None
        if name != "runyard" and name not in given:
            given.add(name)
            yield found
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                needed = (Requirement(text) for text in found.requires or ())
                todo += [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]


def link(found: Distribution, site: Path) -> None:
    """Link the files of a distribution into ``site``."""
    for file in found.files or ():
        if ".." not in file.parts:
            place = site / file
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                place.symlink_to(str(file.locate()))
