"""Clients that generators make from the API's document, in Python and TypeScript: complete, typed, and able to call the API."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from fastapi import FastAPI

from runyard import Client
from runyard.worker.worker import Worker
from tests.support.api_server import serving
from tests.support.node import BOUND, NODE, installed, said

GENERATED: Final = Path(__file__).parent / "generated"
OPTIONS: Final = ("-o", "api.d.ts", "--default-non-nullable=false")
"""Else the generator demands each field of a request that has a default."""
PYTHON_CONFIG: Final = "package_name_override: runyard_client\npost_hooks: []\n"
MYPY_CONFIG: Final = "[mypy]\nstrict = true\n[mypy-runyard_client.*]\nfollow_imports = silent\n"

pytestmark = [pytest.mark.timeout(2 * BOUND), pytest.mark.xdist_group("generated clients")]


@pytest.fixture
async def served(app: FastAPI, client: Client, worker: Worker) -> AsyncIterator[tuple[str, str]]:
    """The URL of an API with a worker behind it, and a key."""
    _, key = await client.create_key("generated", scopes=("read", "write", "respond"))
    async with serving(app) as url:
        yield url, key


async def test_a_python_client_has_every_type(app: FastAPI, served: tuple[str, str], tmp_path: Path) -> None:
    """openapi-python-client leaves nothing out; mypy knows what each operation answers."""
    (tmp_path / "openapi.json").write_text(json.dumps(app.openapi()))
    (tmp_path / "config.yaml").write_text(PYTHON_CONFIG)
    (tmp_path / "mypy.ini").write_text(MYPY_CONFIG)
    shutil.copy(GENERATED / "use_client.py", tmp_path)
    options = ("--path", "openapi.json", "--config", "config.yaml", "--meta", "none", "--output-path", "runyard_client")
    told = await said(Path(sys.executable).with_name("openapi-python-client"), "generate", *options, cwd=tmp_path)
    assert "warning" not in told.lower(), told
    await said(sys.executable, "-m", "mypy", "use_client.py", cwd=tmp_path)
    await said(sys.executable, "use_client.py", *served, cwd=tmp_path)


async def test_a_typescript_client_has_every_type(app: FastAPI, served: tuple[str, str], tmp_path: Path) -> None:
    """openapi-typescript with openapi-fetch; tsc is strict and knows each answer, and each event by its type."""
    shutil.copytree(GENERATED, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py"))
    (tmp_path / "openapi.json").write_text(json.dumps(app.openapi()))
    (tmp_path / "node_modules").symlink_to(await installed(GENERATED))
    bin = tmp_path / "node_modules" / ".bin"
    made = await said(NODE, bin / "openapi-typescript", "openapi.json", *OPTIONS, cwd=tmp_path)
    assert "warn" not in made.lower() and "error" not in made.lower(), made
    await said(NODE, bin / "tsc", "--preserveSymlinks", cwd=tmp_path)
    await said(NODE, "--preserve-symlinks", "use_client.ts", *served, cwd=tmp_path)
