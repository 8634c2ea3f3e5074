"""Agents for tests of traces: `support` is an agent of pydantic-ai that asks for an approval, and whose tool `ship` waits.

The tool waits in attempt 2 of a run, so that a test can kill its worker there.
"""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent

from runyard import App, current_run
from tests.support.scripted_models import Answer, answering

SECRET = "the-secret-words"


def _answer(prompt: str, results: list[object]) -> Answer:
    calls: dict[int, Answer] = {0: [("refund", {"reason": SECRET})], 1: [("ship", {"to": SECRET})]}
    return calls.get(len(results), f"{SECRET} done") if "refund" in prompt else f"{SECRET} again"


support = Agent(answering(_answer))


@support.tool_plain(requires_approval=True)
async def refund(reason: str) -> str:
    """Refund the order."""
    return f"refunded for {reason}"


@support.tool_plain
async def ship(to: str) -> str:
    """Ship the order."""
    if current_run().attempt == 2:
        await asyncio.Event().wait()
    return f"shipped to {to}"


app = App({"support": support})
