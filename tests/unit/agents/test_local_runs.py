"""Runs of an Agent alone in its process, when several of its calls meet (H5, H8, R4, R20)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runyard import Agent, current_run
from runyard.checkpointer import MemoryCheckpointer
from runyard.domain.size_limits import JsonObject
from runyard.errors import ThreadBusyError
from tests.support.scripted_models import calling


class Slow(MemoryCheckpointer):
    """A checkpointer whose second write of an extra takes many turns of the event loop. ``second`` is set as it begins."""

    def __init__(self) -> None:
        super().__init__()
        self.writes, self.second = 0, asyncio.Event()

    async def save_extra(self, thread_id: str, extra: JsonObject) -> None:
        self.writes += 1
        if self.writes == 2:
            self.second.set()
            for _ in range(50):
                await asyncio.sleep(0)
        await super().save_extra(thread_id, extra)


async def test_the_start_of_a_step_keeps_the_end_of_another_step() -> None:
    """H5, R20: a tool starts its step while the step of a tool beside it ends. After the answers, neither step is repeated."""
    checkpointer, first_runs, charged = Slow(), asyncio.Event(), list[str]()

    async def pay(card: str) -> str:
        async def charge() -> None:
            charged.append(card)
            first_runs.set()
            await checkpointer.second.wait()

        if card == "second":
            await first_runs.wait()
        await current_run().step(charge)
        await current_run().ask(f"is {card} yours?", {"type": "boolean"})
        return "paid"

    model = calling(("pay", {"card": "first"}), ("pay", {"card": "second"}))
    agent = Agent(model, tools=[pay], checkpointer=checkpointer, thread_id="t")
    await agent.prompt("go")
    for request in await agent.pending():
        await agent.respond(True, request.request_id)
    assert charged == ["first", "second"]


class Held(MemoryCheckpointer):
    """A checkpointer that gives no requests until ``free`` is set. ``asked`` is set as somebody asks."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.free = asyncio.Event(), asyncio.Event()
        self.free.set()

    async def load_requests(self, *args: Any, **options: Any) -> Any:
        found = await super().load_requests(*args, **options)
        self.asked.set()
        await self.free.wait()
        return found


async def test_an_abort_and_an_answer_at_once() -> None:
    """H8, R4: a run that is being aborted is not resumed by an answer, so an abort that succeeds has stopped the run."""
    checkpointer, done = Held(), list[int]()

    async def act(n: int) -> str:
        await current_run().ask("sure?", {"type": "boolean"})
        done.append(n)
        return "done"

    agent = Agent(calling(("act", {"n": 1})), tools=[act], checkpointer=checkpointer, thread_id="t")
    await agent.prompt("go", "r")
    checkpointer.asked.clear()
    checkpointer.free.clear()
    aborting = asyncio.create_task(agent.abort_pending("closed"))
    await checkpointer.asked.wait()
    answering = asyncio.create_task(agent.respond(True))
    await asyncio.sleep(0)
    checkpointer.free.set()
    await aborting
    with pytest.raises(ThreadBusyError):
        await answering
    assert (done, agent.state.active_run_id, agent.state.is_streaming) == ([], None, False)
    assert agent.state.pending == await agent.pending() == []
