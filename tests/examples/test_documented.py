"""The tests in docs/how-to/testing.md are tests."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from runner import App, Message, RunContext

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "testing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


async def careful(ctx: RunContext) -> None:
    """What the document speaks of and does not show."""
    answer = await ctx.ask("Sure?", timeout=3600, on_timeout={"answer": "Nobody answered."})
    await ctx.append(Message.assistant(str(answer)))


def documented() -> dict[str, Any]:
    names: dict[str, Any] = {"App": App, "careful": careful}
    for block in BLOCKS:
        if "def test_" in block:
            exec(block, names)
    return {name: value for name, value in names.items() if name.startswith("test_") and inspect.iscoroutinefunction(value)}


TESTS = documented()


def test_all_were_found() -> None:
    assert set(re.findall(r"def (test_\w+)", TEXT)) == set(TESTS)


@pytest.mark.parametrize("name", TESTS)
async def test_documented(name: str) -> None:
    await TESTS[name]()
