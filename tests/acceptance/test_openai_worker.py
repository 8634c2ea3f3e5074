"""Tests of OpenAI Agents SDK agents in real workers: strict providers, approvals, cancels, kill -9 (R9, R10, H5, F9)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from runyard import Client, RunHandle, RunStatus
from runyard.support import backend_urls
from runyard_api.worker.process import serve
from tests.support.agents.customer_support import NOTES, notes
from tests.support.agents.desk import model
from tests.support.agents.sdk_desk import STEPS, make_app
from tests.support.fleet import Fleet, until
from tests.support.long_form import LONG
from tests.support.providers.server import Fault, Providers

APP = "tests.support.agents.sdk_desk:app"
BOUND = 60.0
KILLS = [
    "runs.append.before=crash",  # an answer of the model that is not stored
    # each answer and each result; in the short form, the first answer and the second
    *(["runs.append.after=crash"] * 2 * (STEPS - 1) if LONG else ["runs.append.after=crash", "runs.append.after=crash*1+1"]),
]
"""Failpoints at which the workers are killed with -9, before the run waits for its approval."""


@pytest.fixture
async def desk(postgres_url: str, redis_url: str, providers: Providers) -> AsyncIterator[Client]:
    """A client of a worker that serves the agents. Their models are the strict servers."""
    providers.scenario = model
    async with AsyncExitStack() as stack:
        backend = await backend_urls.connect(postgres_url, redis=redis_url)
        stack.push_async_callback(backend.close)
        await stack.enter_async_context(serve(make_app(), backend))
        yield await stack.enter_async_context(Client.connect(postgres_url, redis=redis_url))


async def text_of(handle: RunHandle) -> str:
    result = await handle.result(BOUND)
    assert result.ok, result.error
    return result.text


async def test_strict_providers_take_every_history(desk: Client, providers: Providers) -> None:
    """I7: Agents of two frameworks and three protocols alternate on one thread, with calls, approvals and repeated ids."""
    for agent in ["responses", "anthropic", "chat", "responses", "chat", "anthropic"]:
        assert await text_of(await desk.enqueue("t", "quick again", agent=agent)) == "Done: quick quick"
        handle = await desk.enqueue("t", "refund quick, quick", agent=agent)
        parked = await handle.result(BOUND)
        assert parked.status is RunStatus.SUSPENDED, parked.error
        await desk.respond("t", True, parked.requests[0].request_id)
        assert sorted((await text_of(handle)).split()) == ["Done:", "quick", "quick", "refunded"]
    assert providers.refused == []
    used = (await handle.run()).usage
    assert used.input_tokens > 0 and used.output_tokens > 0


async def test_usage_and_streams_of_a_real_protocol(desk: Client, providers: Providers) -> None:
    """The run has the tokens that the provider reports. The pieces of an answer are events with the id of their message."""
    for agent in ("responses", "chat"):
        handle = await desk.enqueue(agent, "quick", agent=agent)
        assert await text_of(handle) == "Done: quick"
        done = await handle.run()
        assert done.usage.requests == 2 and done.usage.input_tokens > 0, agent
        events = [event async for event in handle.stream()]
        last = (await handle.result(BOUND)).messages[-1]
        said = [event.data for event in events if event.type == "message.delta" and event.data["message_id"] == last.id]
        assert "".join(data.get("text", "") for data in said) == "Done: quick"


async def test_a_busy_provider_is_asked_again(desk: Client, providers: Providers) -> None:
    """R7: The SDK's client itself repeats a request. If the client gives up, the attempt fails, and another attempt follows."""
    providers.fail(*[Fault(status=503)] * 3)
    handle = await desk.enqueue("t", "quick", agent="responses", max_attempts=3)
    assert await text_of(handle) == "Done: quick"


async def test_r10_a_cancel_ends_a_tool(desk: Client) -> None:
    handle = await desk.enqueue("t", "slow", "r", agent="responses")
    async for event in handle.stream():
        if event.type == "tool.started":
            break
    await desk.cancel("t", "r")
    assert (await handle.result(BOUND)).status is RunStatus.CANCELLED
    assert await text_of(await desk.enqueue("t", "quick", agent="responses")) == "Done: quick"


async def test_forks_and_probes(desk: Client) -> None:
    """F9: A probe writes no message. A fork continues from its cut with the same agent."""
    handle = await desk.enqueue("t", "quick", agent="responses")
    await text_of(handle)
    before = (await desk.messages("t")).items
    await desk.fork("t", "copy", handle.id)
    assert await text_of(await desk.enqueue("copy", "quick", agent="responses")) == "Done: quick"
    assert (await desk.messages("t")).items == before
    assert [message.id for message in (await desk.messages("copy")).items][: len(before)] == [m.id for m in before]


@pytest.mark.slow
async def test_r9_kill_9_at_each_step(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker dies after one write. One request is repeated, and no tool call. The approval is asked for once (H5)."""
    file = tmp_path / "notes"
    monkeypatch.setenv(NOTES, str(file))
    await fleet.start(app=APP, slots=1, failpoints=KILLS[0])
    handle = await fleet.client.enqueue("t", "begin", "r", agent="steps")

    async def claimed(attempt: int) -> bool:
        return (await handle.run()).attempt >= attempt

    for attempt, failpoint in enumerate([*KILLS[1:], ""], start=1):
        await until(partial(claimed, attempt))
        waiting = [*fleet.processes.values()]
        await fleet.start(app=APP, slots=1, failpoints=failpoint)
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(process.wait() for process in waiting))
    parked = await handle.result(BOUND)
    assert parked.status is RunStatus.SUSPENDED, parked.error
    assert len(parked.requests) == 1 and "tool 2" not in notes(file)
    await fleet.client.respond("t", True, parked.requests[0].request_id)
    result = await handle.result(BOUND)
    assert result.ok, result.error
    assert [message.role for message in result.messages] == ["user", *["assistant", "tool"] * STEPS, "assistant"]
    requests = Counter(line for line in notes(file) if line.startswith("request"))
    assert requests.total() == STEPS + 2 and len(requests) == STEPS + 1
    assert sorted(line for line in notes(file) if line.startswith("tool")) == [f"tool {n}" for n in range(STEPS)]
    assert result.run.usage.requests == STEPS + 1
