"""Each message of an attempt is committed once, also if the timer, the end of the run and an append meet (R6, R9)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from runyard.domain.states import RunStatus
from runyard.execution import transcript
from runyard.execution.context import RunContext
from runyard.models import Message, ToolCallPart, ToolResultPart
from tests.support.attempt_lab import Lab, status

CALL = ToolCallPart(id="c1", name="refund", arguments={})


class Store:
    """Records the texts of each commit of the lab's store. An append waits until ``go`` is set."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.appending = asyncio.Event()
        self.go = asyncio.Event()
        self.texts: list[str] = []
        self._inner = {verb: getattr(lab.backend.runs, verb) for verb in ("append", "complete", "release")}
        for verb in ("append", "complete"):
            monkeypatch.setattr(lab.backend.runs, verb, getattr(self, verb))

    async def append(self, attempt: Any, messages: Sequence[Message], **options: Any) -> Any:
        sent = [message.text for message in messages]
        self.appending.set()
        await self.go.wait()
        self.texts += sent
        return await self._inner["append"](attempt, messages, **options)

    async def complete(self, writes: Sequence[Any], **options: Any) -> Any:
        self.texts += [message.text for write in writes for message in write.messages]
        return await self._inner["complete"](writes, **options)


@pytest.fixture
def store(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(lab, monkeypatch)


async def test_the_end_of_a_run_waits_for_the_commit_of_the_timer(
    lab: Lab, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "HOLD_SECONDS", 0.0)

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("one"))
        await store.appending.wait()
        asyncio.get_running_loop().call_soon(store.go.set)

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert store.texts == ["one"] and await lab.texts() == ["hi", "one"]


async def test_an_append_waits_for_the_commit_of_the_timer(lab: Lab, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "HOLD_SECONDS", 0.0)

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("one"))
        await store.appending.wait()
        asyncio.get_running_loop().call_soon(store.go.set)
        await ctx.append(Message.assistant([CALL]), Message.tool(ToolResultPart(call_id="c1", content="ok")))

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert store.texts.count("one") == 1 and await lab.texts() == ["hi", "one", "", ""]


async def test_an_append_behind_the_end_of_its_attempt_commits_nothing(lab: Lab, store: Store) -> None:
    """A task that outlives its agent waits for the lock behind the end. The end commits what was held."""
    late: list[asyncio.Task[Any]] = []

    async def agent(ctx: RunContext) -> None:
        first = asyncio.create_task(ctx.append(Message.assistant([CALL]), Message.assistant("held")))
        await store.appending.wait()
        late.append(first)
        asyncio.get_running_loop().call_later(0, appends_late, ctx)

    def appends_late(ctx: RunContext) -> None:
        late.append(asyncio.create_task(ctx.append(Message.tool(ToolResultPart(call_id="c1", content="late")))))
        late.append(asyncio.create_task(ctx.conclude(Message.assistant("later"))))
        late.append(asyncio.create_task(ctx.step(lambda: None, key="late")))
        asyncio.get_running_loop().call_later(0, store.go.set)

    await lab.attempt(agent)
    outcomes = await asyncio.gather(*late, return_exceptions=True)
    assert [isinstance(outcome, BaseException) for outcome in outcomes] == [False, True, True, True]
    assert store.texts == ["", "held"]


async def test_a_second_cancel_does_not_part_an_append_from_its_lock(lab: Lab, store: Store) -> None:
    """A timeout in the agent and a stop from outside cancel one append twice."""
    over: list[bool] = []

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("held"))
        writing = asyncio.create_task(
            ctx.append(Message.assistant([CALL]), Message.tool(ToolResultPart(call_id="c1", content="ok")))
        )
        await store.appending.wait()
        for _ in range(3):
            writing.cancel()
            await asyncio.sleep(0)
        over.append(writing.done())
        asyncio.get_running_loop().call_soon(store.go.set)
        over.append(isinstance((await asyncio.gather(writing, return_exceptions=True))[0], asyncio.CancelledError))

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert over == [False, True]
    assert store.texts.count("held") == 1 and await lab.texts() == ["hi", "held", "", ""]
