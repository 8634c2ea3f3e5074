"""What the documents show is executed: the tests of docs/how-to/testing.md, and the agent of the README."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from runyard import App, Message, RunContext, RunStatus
from runyard.testing import Harness
from tests.support.providers.conversation import Call, Reply
from tests.support.providers.server import Providers

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "how-to" / "testing.md").read_text(encoding="utf-8")


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


async def careful(ctx: RunContext) -> None:
    """What the document speaks of and does not show."""
    answer = await ctx.ask("Sure?", timeout=3600, on_timeout={"answer": "Nobody answered."})
    await ctx.append(Message.assistant(str(answer)))


def documented() -> dict[str, Any]:
    names: dict[str, Any] = {"App": App, "careful": careful}
    for block in blocks(TEXT):
        if "def test_" in block:
            exec(block, names)
    return {name: value for name, value in names.items() if name.startswith("test_") and inspect.iscoroutinefunction(value)}


TESTS = documented()


def test_documented_tests_are_all_found() -> None:
    assert set(re.findall(r"def (test_\w+)", TEXT)) == set(TESTS)


@pytest.mark.parametrize("name", TESTS)
async def test_documented(name: str) -> None:
    await TESTS[name]()


class Bank:
    """A bank that does nothing when it sees a key twice."""

    def __init__(self) -> None:
        self.refunds: dict[str, tuple[str, int]] = {}

    async def refund(self, order: str, cents: int, key: str) -> str:
        self.refunds.setdefault(key, (order, cents))
        return "refunded"


async def test_the_agent_of_the_readme(providers: Providers) -> None:
    """R9, H5: by the provider's own SDK; a worker dies between the refund and its record."""
    [block] = [block for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if "pydantic_ai" in block]
    bank = Bank()
    names: dict[str, Any] = {"bank": bank}
    providers.scenario = lambda conversation: (
        Reply("Done.") if conversation.results else Reply(calls=(Call("refund", {"order": "A-7", "cents": 1290}),))
    )
    exec(block, names)
    async with Harness(names["app"]) as harness:
        run = await harness.prompt("t1", "Please refund order A-7.")
        assert run.status is RunStatus.SUSPENDED and not bank.refunds
        harness.crash_before("append")
        run = await run.respond(True)
    assert (run.status, run.text, run.attempts) == (RunStatus.COMPLETED, "Done.", 3)
    assert list(bank.refunds.values()) == [("A-7", 1290)]
    assert not providers.refused
