"""The fields of log lines that the tools of an in-process Agent write."""

from __future__ import annotations

from typing import Any

from structlog.contextvars import get_contextvars

from runyard import Agent, step
from runyard.checkpointer import MemoryCheckpointer
from tests.support.scripted_models import calling

lines: dict[str, dict[str, Any]] = {}


@step
async def charge() -> None:
    lines["step"] = {**get_contextvars()}


async def pay() -> str:
    lines["async tool"] = {**get_contextvars()}
    await charge()
    return "paid"


def look() -> str:
    """Write a line from the thread of a sync tool."""
    lines["sync tool"] = {**get_contextvars()}
    return "looked"


async def test_log_lines_of_tools_name_the_run_and_the_call() -> None:
    lines.clear()
    agent = Agent(
        calling(("pay", {}), ("look", {})), tools=[pay, look], checkpointer=MemoryCheckpointer("lines"), thread_id="t"
    )
    await agent.prompt("go", run_id="r")
    of_run = {"thread_id": "t", "run_id": "r", "attempt": 1, "fence": lines["step"]["fence"]}
    assert lines == {
        "async tool": {**of_run, "step": "tool:pay-0"},
        "sync tool": {**of_run, "step": "tool:look-1"},
        "step": {**of_run, "step": "pay-0/charge#0"},
    }
    assert get_contextvars() == {}


async def test_log_lines_of_a_probe_name_its_source() -> None:
    lines.clear()
    agent = Agent(calling(("pay", {})), tools=[pay], checkpointer=MemoryCheckpointer("lines of probes"), thread_id="t")
    await agent.prompt("go", run_id="r")
    await agent.fork_once(message="what if?", after_run_id="r")
    assert lines["async tool"]["thread_id"] == "t" and lines["async tool"]["run_id"] != "r"
