"""I7 for an Agent alone in its process: whatever stopped it, every provider takes what is left (R7, R9, H8)."""

from __future__ import annotations

import asyncio

import pytest

from runyard import Agent, Event, Message
from runyard.errors import AgentCancelledError
from runyard.ports.stores import Checkpointer
from tests.support.agents.desk import READERS, clerk, model, send_as_it_is
from tests.support.providers.conversation import MODELS
from tests.support.providers.server import Providers


def agent(protocol: str, cp: Checkpointer, thread_id: str) -> Agent:
    return Agent(engine=clerk(MODELS[protocol]), checkpointer=cp, thread_id=thread_id)


async def stopped(cp: Checkpointer, protocol: str, thread_id: str, run_id: str) -> None:
    """Stop a prompt while one tool of two is through."""
    one = agent(protocol, cp, thread_id)
    through = asyncio.Event()

    def listen(event: Event) -> None:
        if event.type == "tool.completed":
            through.set()

    one.subscribe(listen)
    prompt = asyncio.create_task(one.prompt("quick slow", run_id=run_id))
    await asyncio.wait_for(through.wait(), 30)
    await one.abort()
    with pytest.raises(AgentCancelledError):
        await prompt


async def everyone_goes_on(cp: Checkpointer, thread_id: str) -> None:
    for protocol in MODELS:
        other = agent(protocol, cp, thread_id)
        await other.prompt("quick")
        if protocol in READERS:
            await send_as_it_is([*other.state.messages, Message.user("Thanks.")], protocol)
        assert other.state.messages[-1].text == "Done: quick"


@pytest.mark.parametrize("protocol", ["openai-responses", "anthropic"])
async def test_i7_an_abort_and_a_later_resumption(cp: Checkpointer, providers: Providers, protocol: str) -> None:
    """R7, R9: the run that was stopped stays out of the conversation until it is resumed behind the others."""
    providers.scenario = model
    await stopped(cp, protocol, "t", "first")
    await everyone_goes_on(cp, "t")
    again = agent(protocol, cp, "t")
    await again.resume("first")
    assert again.state.messages[-1].text == "Done: quick slow"
    await everyone_goes_on(cp, "t")
    assert providers.refused == []


@pytest.mark.parametrize("protocol", ["openai-responses", "anthropic"])
async def test_i7_abort_pending(cp: Checkpointer, providers: Providers, protocol: str) -> None:
    """H8: two approvals wait, and a tool beside them is through."""
    providers.scenario = model
    one = agent(protocol, cp, "t")
    await one.prompt("refund quick refund", run_id="first")
    assert len(one.state.pending) == 2
    await one.abort_pending("changed my mind")
    await everyone_goes_on(cp, "t")
    await one.prompt("quick")
    assert [m.text for m in one.state.messages if m.stop_reason == "aborted"] == ["aborted: changed my mind"]
    assert providers.refused == []
