"""The usage of attempts counts once in the totals of the run, the thread and the tenant, whatever ends the attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runyard.app import App
from runyard.errors import BackendUnavailableError
from runyard.events.writer import EventWriter
from runyard.execution import attempt_store
from runyard.execution.context import RunContext
from runyard.execution.executor import Execution, Stop, WorkerServices
from runyard.models import Message, RetryPolicy, RunOptions, ToolCallPart, ToolResultPart, Usage
from runyard.ports.commands import AcceptRequest
from runyard.ports.refs import RunRef
from runyard.ports.results import Claim
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard_backends.memory import connect

Agent = Callable[[RunContext], Awaitable[None]]
ASKED = Usage(requests=1, input_tokens=30, output_tokens=4, cost=0.25)
STEPPED = Usage(requests=1, input_tokens=10, seconds=0.5)
HIDDEN = Usage(requests=1, output_tokens=7)
LAST = Usage(requests=1, output_tokens=3)
STORED = ASKED + STEPPED + HIDDEN


class Lab:
    """Run "r" of thread "t" on the memory backend."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.stored = asyncio.Event()

    async def working(self, ctx: RunContext) -> None:
        """Answer in the second attempt."""
        if ctx.attempt == 1:
            await self.endless(ctx)
        await ctx.append(Message.assistant("done", usage=LAST))

    async def endless(self, ctx: RunContext) -> None:
        """Store messages and a step with usage, then work until the attempt is stopped."""
        ctx.add_usage(HIDDEN)
        call = ToolCallPart(id="c", name="look", arguments={})
        await ctx.append(
            Message.assistant([call], usage=ASKED), Message(role="tool", content=[ToolResultPart(call_id="c", content=[])])
        )

        async def step() -> None:
            ctx.add_usage(STEPPED)

        await ctx.step(step)
        self.stored.set()
        await asyncio.Event().wait()

    async def claim(self, worker: str) -> Claim:
        await self.backend.workers.register(WorkerInfo(worker_id=worker, queues=["default"]))
        key = await self.backend.threads.thread_key("t")
        assert key is not None
        [claim] = await self.backend.runs.claim(worker, [RunRef(key, "r")])
        return claim

    async def execution(self, worker: str = "w", agent: Agent | None = None) -> Execution:
        claim = await self.claim(worker)
        assert claim.outcome == "claimed"
        services = WorkerServices.of(App({"agent": agent or self.working}), self.backend, EventWriter(self.backend.events))
        return Execution(services, claim)

    @asynccontextmanager
    async def under_way(self, agent: Agent | None = None) -> AsyncIterator[Execution]:
        """An attempt that has stored everything and works on."""
        execution = await self.execution(agent=agent)
        running = asyncio.create_task(execution.run())
        await self.stored.wait()
        yield execution
        await running

    async def bury(self, worker: str) -> None:
        [info] = [each for each in await self.backend.workers.workers() if each.worker_id == worker]
        assert info.heartbeat_at is not None and await self.backend.workers.mark_dead(worker, info.heartbeat_at)

    async def totals(self) -> tuple[str, Usage, Usage, Usage]:
        """Return the status of the run, and the usage of the run, of its thread and of its tenant."""
        await self.backend.usage.count(1000)
        run, thread = await self.backend.runs.run("t", "r"), await self.backend.threads.thread("t")
        assert run is not None and thread is not None
        total = (await self.backend.usage.report()).total.model_dump(exclude={"runs"})
        return str(run.status), run.usage, thread.usage, Usage(**total)


@pytest.fixture
async def lab() -> Lab:
    lab = Lab(await connect())
    options = RunOptions(max_attempts=3, retry=RetryPolicy(initial=0))
    await lab.backend.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user("hi"), options=options))
    return lab


@pytest.mark.parametrize("keep", [True, False])
async def test_a_cancelled_attempt(lab: Lab, keep: bool) -> None:
    async with lab.under_way() as execution:
        await lab.backend.runs.cancel("t", "r", keep=keep)
        execution.stop(Stop.CANCEL)
    assert await lab.totals() == ("cancelled", STORED, STORED if keep else Usage(), STORED)


async def test_a_retried_attempt(lab: Lab) -> None:
    async def failing(ctx: RunContext) -> None:
        ctx.add_usage(HIDDEN)
        await ctx.append(Message.user("noted"), Message.assistant("held", usage=ASKED))
        raise ValueError("no")

    await (await lab.execution(agent=failing)).run()
    await (await lab.execution()).run()
    expected = HIDDEN + ASKED + LAST
    assert await lab.totals() == ("completed", expected, expected, expected)


async def test_a_released_attempt(lab: Lab) -> None:
    async with lab.under_way() as execution:
        execution.stop(Stop.HANDOVER)
    await (await lab.execution("v")).run()
    expected = STORED + LAST
    assert await lab.totals() == ("completed", expected, expected, expected)


@pytest.mark.parametrize("reads", [True, False])
async def test_an_attempt_that_another_worker_takes_over(lab: Lab, reads: bool) -> None:
    """Also if the agent of the next attempt does not read what the lost attempt stored."""

    async def next_attempt(ctx: RunContext) -> None:
        if reads:
            await ctx.history()
        await lab.working(ctx)

    async with lab.under_way() as execution:
        await lab.bury("w")
        execution.stop(Stop.ABANDON)
    await (await lab.execution("v", next_attempt)).run()
    expected = STORED + LAST
    assert await lab.totals() == ("completed", expected, expected, expected)


async def test_a_lost_attempt_of_a_run_that_is_cancelled_before_the_takeover(lab: Lab) -> None:
    async with lab.under_way() as execution:
        await lab.bury("w")
        execution.stop(Stop.ABANDON)
    await lab.backend.runs.cancel("t", "r")
    assert (await lab.claim("v")).outcome == "ended"
    assert await lab.totals() == ("cancelled", STORED, Usage(), STORED)


async def test_a_lost_attempt_after_a_retried_one(lab: Lab) -> None:
    """What the first attempt used beside its messages hides nothing of what the second attempt stored before it was lost."""

    async def failing(ctx: RunContext) -> None:
        ctx.add_usage(HIDDEN)
        raise ValueError("no")

    await (await lab.execution(agent=failing)).run()
    async with lab.under_way(lab.endless) as execution:
        await lab.bury("w")
        execution.stop(Stop.ABANDON)

    async def last(ctx: RunContext) -> None:
        await ctx.history()

    await (await lab.execution("v", last)).run()
    expected = HIDDEN + STORED
    assert await lab.totals() == ("completed", expected, expected, expected)


async def test_a_step_that_ends_behind_the_end_of_its_attempt(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that outlives its agent finishes a step while the completion is under way. The completion counts the usage."""
    used, go = asyncio.Event(), asyncio.Event()
    late: list[asyncio.Task[Any]] = []
    complete = lab.backend.runs.complete

    async def delayed(*args: Any, **kwargs: Any) -> Any:
        go.set()
        await asyncio.gather(*late, return_exceptions=True)
        return await complete(*args, **kwargs)

    monkeypatch.setattr(lab.backend.runs, "complete", delayed)

    async def agent(ctx: RunContext) -> None:
        async def step() -> None:
            ctx.add_usage(STEPPED)
            used.set()
            await go.wait()

        late.append(asyncio.create_task(ctx.step(step)))
        await used.wait()
        await ctx.append(Message.assistant("done", usage=LAST))

    await (await lab.execution(agent=agent)).run()
    assert len(late) == 1 and isinstance(late[0].exception(), BaseException)
    assert await lab.totals() == ("completed", STEPPED + LAST, STEPPED + LAST, STEPPED + LAST)


@pytest.mark.parametrize("committed", [True, False])
async def test_an_attempt_whose_store_is_away_until_its_end(lab: Lab, monkeypatch: pytest.MonkeyPatch, committed: bool) -> None:
    """The store answers neither a write nor the question about the usage of that write. It answers the end of the attempt."""

    async def at_once(call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()

    monkeypatch.setattr(attempt_store, "patiently", at_once)
    append, run_usage = lab.backend.runs.append, attempt_store.FencedAttemptStore.run_usage
    asked: list[str] = []

    async def unanswered(*args: Any, **kwargs: Any) -> Any:
        if committed:
            await append(*args, **kwargs)
        raise BackendUnavailableError("no answer")

    async def unread(_: attempt_store.FencedAttemptStore) -> Usage:
        asked.append("usage")
        monkeypatch.setattr(attempt_store.FencedAttemptStore, "run_usage", run_usage)
        monkeypatch.setattr(lab.backend.runs, "append", append)
        raise BackendUnavailableError("no answer")

    async def agent(ctx: RunContext) -> None:
        if ctx.attempt == 1:
            monkeypatch.setattr(lab.backend.runs, "append", unanswered)
            monkeypatch.setattr(attempt_store.FencedAttemptStore, "run_usage", unread)
            await ctx.append(Message.user("noted"), Message.assistant("held", usage=ASKED))
        await ctx.history()

    await (await lab.execution(agent=agent)).run()
    await (await lab.execution("v", agent)).run()
    assert asked and await lab.totals() == ("completed", ASKED, ASKED, ASKED)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("end", ["cancelled", "completed"])
async def test_an_attempt_whose_write_got_no_answer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, committed: bool, end: str
) -> None:
    """The write took effect or not. The end of the attempt counts the usage once in both cases."""

    async def at_once(call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()

    monkeypatch.setattr(attempt_store, "patiently", at_once)
    append = lab.backend.runs.append

    async def unanswered(*args: Any, **kwargs: Any) -> Any:
        if committed:
            await append(*args, **kwargs)
        if end == "cancelled":
            await lab.backend.runs.cancel("t", "r")
        raise BackendUnavailableError("no answer")

    async def agent(ctx: RunContext) -> None:
        if ctx.attempt == 1:
            monkeypatch.setattr(lab.backend.runs, "append", unanswered)
            try:
                await ctx.append(Message.user("noted"), Message.assistant("held", usage=ASKED))
            finally:
                monkeypatch.setattr(lab.backend.runs, "append", append)

    await (await lab.execution(agent=agent)).run()
    if end == "completed":
        await (await lab.execution("v", agent)).run()
    status, *used = await lab.totals()
    assert status == end and used == [ASKED, ASKED if end == "completed" else Usage(), ASKED]
