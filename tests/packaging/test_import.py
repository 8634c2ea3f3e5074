"""A web backend imports `runner` quickly and gets no driver with it."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUDGET_SECONDS = 0.150
HEAVY = {"asyncpg", "redis", "arq", "fastapi", "httpcore", "httpx", "uvicorn", "pydantic_ai"}


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


def test_importing_runner_is_quick() -> None:
    python("import runner")  # writes the byte code
    assert median_seconds("import runner") - median_seconds("pass") < BUDGET_SECONDS


def test_importing_runner_imports_no_driver() -> None:
    loaded = set(python("import runner, sys; print(*sys.modules)").split())
    assert "runner" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize(
    "what", ["from runner.hitl import ask_user_tool", "from runner import Agent; Agent('test')", "from runner import serve"]
)
def test_what_needs_an_extra_names_it(what: str) -> None:
    """R14: an error of runyard's own says what to install."""
    code = f"""
import sys
sys.modules["pydantic_ai"] = None
from runner.errors import ExtraMissingError
try:
    {what}
except ExtraMissingError as error:
    print(error)
"""
    assert "pip install 'runyard[agents]'" in python(code)
