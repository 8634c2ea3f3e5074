"""A web backend imports `runyard` quickly and gets no driver with it. The command line imports drivers when it connects."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUDGET_SECONDS = 0.150
HEAVY = {"asyncpg", "redis", "arq", "fastapi", "httpcore", "httpx", "uvicorn", "pydantic_ai", "opentelemetry"}


def python(code: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout


def median_seconds(code: str) -> float:
    timings = []
    for _ in range(5):
        begin = time.perf_counter()
        python(code)
        timings.append(time.perf_counter() - begin)
    return statistics.median(timings)


def test_importing_runyard_is_quick() -> None:
    python("import runyard")  # writes the byte code
    assert median_seconds("import runyard") - median_seconds("pass") < BUDGET_SECONDS


def test_importing_runyard_imports_no_driver() -> None:
    loaded = set(python("import runyard, sys; print(*sys.modules)").split())
    assert "runyard" in loaded
    assert not loaded & HEAVY


def test_the_command_line_imports_no_driver_before_it_connects() -> None:
    """The drivers are a third of the time that `runyard --help` and a command over HTTP take to start."""
    loaded = set(python("import runyard_api.cli.main, sys; print(*sys.modules)").split())
    assert "runyard_api.cli.main" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize(
    "what", ["from runyard.hitl import ask_user_tool", "from runyard import Agent; Agent('test')", "from runyard import serve"]
)
def test_feature_without_its_extra_names_the_extra(what: str) -> None:
    """R14: an error of runyard's own says what to install."""
    code = f"""
import sys
sys.modules["pydantic_ai"] = None
from runyard.errors import ExtraMissingError
try:
    {what}
except ExtraMissingError as error:
    print(error)
"""
    assert "pip install 'runyard[agents]'" in python(code)


@pytest.mark.parametrize("module", ["fakeredis", "lupa"])
def test_a_deployment_names_its_extra(module: str) -> None:
    """R14: the harness needs neither of them."""
    code = f"""
import asyncio, sys
sys.modules["{module}"] = None
from runyard.errors import ExtraMissingError
from runyard.testing import Harness, deployment
async def agent(ctx): pass
async def main():
    async with Harness(agent) as harness:
        assert (await harness.prompt("t", "x")).ok
    try:
        async with deployment(agent): pass
    except ExtraMissingError as error:
        print(error)
asyncio.run(main())
"""
    assert "pip install 'runyard[testing]'" in python(code)
