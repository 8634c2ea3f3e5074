"""runyard.testing.deployment: a worker beside the test, without a server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import pydantic_ai
import pytest
from fastapi import FastAPI

from runyard import App, Client, Message, RetryPolicy, RunContext, RunHandle, RunStatus
from runyard.errors import HitlNoPendingRequestError
from runyard.testing import ScriptedModel, call, deployment
from runyard_api.http.app import asgi_app
from runyard_api.http.settings import ApiSettings

BOUND = 30.0
"""Seconds that anything may take."""


async def echo(ctx: RunContext) -> None:
    assert ctx.input is not None
    await ctx.append(Message.assistant(f"you said {ctx.input.text}"))


async def doubtful(ctx: RunContext) -> None:
    answer = await ctx.ask("Sure?", timeout=3600)
    await ctx.append(Message.assistant(f"answered {answer}"))


async def for_ever(ctx: RunContext) -> None:
    await ctx.emit("began")
    await asyncio.Event().wait()


@asynccontextmanager
async def nothing_left_behind() -> AsyncIterator[None]:
    """Fail if a task or a thread that began in the block is there after it."""
    before = asyncio.all_tasks(), own_threads()
    try:
        async with asyncio.timeout(BOUND):
            yield
    finally:
        assert (asyncio.all_tasks(), own_threads()) == before


def own_threads() -> set[threading.Thread]:
    """Threads but those in which FastAPI calls what is not async; they end with the event loop."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("AnyIO worker")}


async def began(client: Client, thread_id: str, run_id: str) -> None:
    """Return once the agent of the run is at work."""
    async with aclosing(client.stream(thread_id, run_id)) as events:
        async for event in events:
            if event.type == "message.delta":
                return


async def test_a_prompt_is_executed_without_the_test() -> None:
    async with nothing_left_behind(), deployment(echo) as client:
        results = [await (await client.enqueue(f"t{n}", f"word {n}", "r1")).result() for n in range(3)]
        assert [result.text for result in results] == ["you said word 0", "you said word 1", "you said word 2"]
        assert [message.text for message in (await client.messages("t1")).items] == ["word 1", "you said word 1"]
        assert all(result.run.fence and result.run.attempt == 1 for result in results)


async def test_a_stream_is_live() -> None:
    """E1, E2: through the scripts of the event log, from a later subscriber too."""
    async with nothing_left_behind(), deployment(pydantic_ai.Agent(ScriptedModel(["one two three"]))) as client:
        handle = await client.enqueue("t", "count", "r")
        seen = [event async for event in handle.stream()]
        assert (seen[0].type, seen[-1].type) == ("run.queued", "run.completed")
        assert "".join(str(event.data["text"]) for event in seen if event.type == "message.delta") == "one two three"
        assert [event.id async for event in handle.stream(seen[2].id)] == [event.id for event in seen[3:]]


async def test_a_human_is_asked_and_answers() -> None:
    """H1, H5."""
    agent = pydantic_ai.Agent(ScriptedModel([call("refund", order="7"), "Done."]))
    refunds: list[str] = []

    @agent.tool_plain(requires_approval=True)
    async def refund(order: str) -> str:
        refunds.append(order)
        return "refunded"

    async with nothing_left_behind(), deployment(agent) as client:
        handle = await client.enqueue("t", "refund 7", "r")
        asked = await handle.result()
        assert asked.status is RunStatus.SUSPENDED and not refunds
        await client.respond("t", True, asked.requests[0].request_id)
        done = await handle.result()
        assert (done.text, done.run.attempt, refunds) == ("Done.", 2, ["7"])
        with pytest.raises(HitlNoPendingRequestError):
            await client.respond("t", True)


async def test_a_running_run_is_cancelled() -> None:
    """R10: the hint comes by a channel of Redis."""
    stopped: list[str] = []

    async def stubborn(ctx: RunContext) -> None:
        try:
            await for_ever(ctx)
        finally:
            stopped.append(ctx.run_id)

    async with nothing_left_behind(), deployment(stubborn) as client:
        handle = await client.enqueue("t", "go", "r")
        await began(client, "t", "r")
        await handle.cancel()
        assert (await handle.result()).status is RunStatus.CANCELLED
    assert stopped == ["r"]


async def test_a_retry_waits_for_its_backoff() -> None:
    """R11."""
    app, tries = App(), list[float]()

    @app.agent(max_attempts=3, retry=RetryPolicy(initial=0.1, factor=2, maximum=1, jitter=0))
    async def flaky(ctx: RunContext) -> None:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise ConnectionError("not yet")
        await ctx.append(Message.assistant("ok"))

    async with nothing_left_behind(), deployment(app) as client:
        result = await (await client.enqueue("t", "go", agent="flaky", max_attempts=3)).result()
    assert (result.text, result.run.attempt) == ("ok", 3)
    assert tries[1] - tries[0] >= 0.1 and tries[2] - tries[1] >= 0.2


async def test_agents_in_several_queues() -> None:
    app = App()
    app.agent("small", queue="cpu")(echo)
    app.agent("large", queue="gpu")(echo)
    queues = app.queue_of

    async def prompt(client: Client, agent: str) -> RunHandle:
        return await client.enqueue(agent, f"hello {agent}", agent=agent, queue=queues[agent])

    async with nothing_left_behind(), deployment(app) as client:
        results = [await (await prompt(client, agent)).result() for agent in queues]
        assert [(result.run.queue, result.text) for result in results] == [
            ("cpu", "you said hello small"),
            ("gpu", "you said hello large"),
        ]
    async with nothing_left_behind(), deployment(app, queues=["cpu"]) as client:
        unserved = await prompt(client, "large")
        assert (await (await prompt(client, "small")).result()).ok
        assert await unserved.status() is RunStatus.QUEUED


async def test_slots_bound_what_runs_at_once() -> None:
    running, most = 0, 0

    async def busy(ctx: RunContext) -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1

    async with nothing_left_behind(), deployment(busy, slots=2) as client:
        handles = [await client.enqueue(f"t{n}", "go") for n in range(6)]
        assert all([(await handle.result()).ok for handle in handles])
    assert most == 2


async def test_a_tenant_has_a_deployment_of_its_own() -> None:
    async with nothing_left_behind(), deployment(echo, tenant="acme") as one, deployment(echo) as other:
        assert (one.backend.tenant, other.backend.tenant) == ("acme", "")
        assert (await (await one.enqueue("t", "hello", "r")).result()).ok
        assert await other.backend.threads.thread("t") is None


async def test_a_script_raises_once_in_each_deployment() -> None:
    model = ScriptedModel([pydantic_ai.ModelHTTPError(503, "scripted"), "Hello."])
    app = App()
    app.agent("support", max_attempts=2, retry=RetryPolicy(initial=0.01))(pydantic_ai.Agent(model))
    for _ in range(2):
        async with nothing_left_behind(), deployment(app) as client:
            result = await (await client.enqueue("t", "hi", max_attempts=2)).result()
            assert (result.text, result.run.attempt) == ("Hello.", 2)


async def waits(client: Client) -> None:
    await client.enqueue("t", "go", "r", delay=3600)


async def runs(client: Client) -> None:
    await client.enqueue("t", "go", "r")
    await began(client, "t", "r")


async def asks(client: Client) -> None:
    assert (await (await client.enqueue("t", "go", "r", agent="doubtful")).result()).requests


@pytest.mark.parametrize("leave", [waits, runs, asks])
async def test_an_error_of_the_test_ends_everything(leave: Callable[[Client], Awaitable[None]]) -> None:
    """The error itself is raised, whatever the worker had in hand, and at once."""
    app = App({"agent": for_ever, "doubtful": doubtful})
    started = time.monotonic()
    async with nothing_left_behind():
        with pytest.raises(ZeroDivisionError):
            async with deployment(app) as client:
                await leave(client)
                raise ZeroDivisionError
    assert time.monotonic() - started < 5


async def test_grace_lets_runs_end() -> None:
    ended: list[str] = []

    async def slow(ctx: RunContext) -> None:
        await ctx.emit("began")
        await asyncio.sleep(0.1)
        ended.append(ctx.run_id)

    for grace, expected in ((0.0, []), (10.0, ["r"])):
        async with nothing_left_behind(), deployment(slow, grace=grace) as client:
            await client.enqueue("t", "go", "r")
            await began(client, "t", "r")
        assert ended == expected


async def test_a_fixture_may_be_left_in_another_task() -> None:
    """pytest-asyncio sets a fixture up in one task and tears it down in another."""
    async with nothing_left_behind():
        block = deployment(echo)
        client = await asyncio.create_task(block.__aenter__())
        assert (await (await client.enqueue("t", "hello")).result()).ok
        await asyncio.create_task(block.__aexit__(None, None, None))


@pytest.mark.parametrize("grace", [0.0, 60.0])
async def test_a_block_that_is_cancelled_again_and_again_ends_its_agents(grace: float) -> None:
    """A timeout inside a timeout cancels the block, then its end. A later cancel ends the grace time."""
    ended: list[str] = []
    at_work = asyncio.Event()

    async def thorough(ctx: RunContext) -> None:
        try:
            await for_ever(ctx)
        finally:
            for _ in range(50):
                await asyncio.sleep(0)
            ended.append(ctx.run_id)

    async def block() -> None:
        async with deployment(thorough, grace=grace) as client:
            await client.enqueue("t", "go", "r")
            await began(client, "t", "r")
            at_work.set()
            await asyncio.Event().wait()

    async with nothing_left_behind():
        running = asyncio.create_task(block())
        await at_work.wait()
        while not running.done():
            running.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
        assert running.cancelled() and ended == ["r"]


def routes(client: Client) -> FastAPI:
    """A host's own routes, and the API beside them."""
    app = FastAPI()

    @app.post("/refunds/{order}")
    async def refund(order: str) -> dict[str, Any]:
        handle = await client.enqueue(order, f"refund {order}")
        return {"run": handle.id, "text": (await handle.result(BOUND)).text}

    app.mount("/agents", asgi_app(client, auth="off", settings=ApiSettings(_env_file=None)))
    return app


async def test_routes_of_fastapi() -> None:
    async with (
        nothing_left_behind(),
        deployment(echo) as client,
        httpx.AsyncClient(transport=httpx.ASGITransport(routes(client)), base_url="http://localhost") as http,
    ):
        assert (await http.post("/refunds/A-7")).json()["text"] == "you said refund A-7"
        waited = await http.post("/agents/v1/threads/t/runs/wait", json={"message": "hello"})
        assert waited.status_code == 200 and "you said hello" in waited.text
        run_id = waited.json()["run"]["run_id"]
        assert "event: run.completed" in (await http.get(f"/agents/v1/threads/t/runs/{run_id}/stream")).text
