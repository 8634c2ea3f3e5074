"""The names of agents that a client completes with its namespace (L4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runyard import App, Client, Message, RunContext, RunHandle
from runyard.errors import InvalidInputError
from runyard.testing import Harness
from runyard_backends.memory import MemoryWorld, connect

BOUND = 10.0


@pytest.fixture
async def clients() -> AsyncIterator[dict[str, Client]]:
    """Clients of one deployment, by namespace."""
    world = MemoryWorld()
    yield {name: Client(await connect(world=world), namespace=name) for name in ("", "shop", "blog")}


async def agent(handle: RunHandle) -> str | None:
    return (await handle.run()).agent


async def test_every_call_completes_the_agents_that_it_names(clients: dict[str, Client]) -> None:
    """L4: a name with a namespace is whole. A filter without an agent matches all namespaces."""
    shop = clients["shop"]
    assert await agent(await shop.enqueue("t", "hi", "r1", agent="clerk")) == "shop/clerk"
    assert await agent(await shop.enqueue("t", "hi", "r2", agent="blog/writer")) == "blog/writer"
    assert await agent(await shop.enqueue("u", "hi", "r3")) == "shop/"
    assert await agent(await clients["blog"].enqueue("t", "hi", "r4")) == "shop/clerk"
    assert await agent(await clients[""].enqueue("v", "hi", "r5")) is None
    assert [run.run_id for run in (await shop.runs(agent="clerk")).items] == ["r4", "r1"]
    assert [run.run_id for run in (await shop.runs(agent="blog/writer")).items] == ["r2"]
    assert len((await shop.runs()).items) == 5
    assert [thread.thread_id for thread in (await shop.threads(agent="clerk")).items] == ["t"]
    assert (await shop.create_thread("w")).thread.agent == "shop/"
    assert (await shop.create_thread("x", agent="clerk")).thread.agent == "shop/clerk"
    assert (await shop.update_thread("x", agent="writer")).agent == "shop/writer"
    assert (await shop.update_thread("x", agent=None)).agent == "shop/"
    assert (await shop.update_thread("x", title="one")).agent == "shop/"
    assert (await shop.usage(agent="clerk")).agent == "shop/clerk"


async def test_a_namespace_is_checked(clients: dict[str, Client], monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("a/b", "/", "\n", "x" * 256, ".."):
        with pytest.raises(InvalidInputError):
            Client(clients[""].backend, namespace=wrong)
        with pytest.raises(InvalidInputError):
            Client.connect("memory://", namespace=wrong)
    with pytest.raises(InvalidInputError, match="255"):
        await clients["shop"].enqueue("t", "hi", agent="x" * 255)
    monkeypatch.setenv("RUNYARD_NAMESPACE", "env")
    async with Client.connect("memory://") as client:
        assert client.namespace == "env"
    with await asyncio.to_thread(Client.sync, "memory://", namespace="shop") as blocking:
        assert blocking.client.namespace == "shop"


async def test_forks_probes_children_and_judges_are_of_the_namespace() -> None:
    """L1, L4: whatever names an agent without a namespace means one of the program's own namespace."""
    app = App(namespace="shop")

    @app.agent
    async def clerk(ctx: RunContext) -> None:
        await ctx.append(Message.assistant(f"{ctx.agent} of {ctx.thread_id}"))

    @app.agent
    async def judge(ctx: RunContext) -> None:
        ctx.result = 1

    @app.agent
    async def parent(ctx: RunContext) -> None:
        named = await ctx.run("named", "hi", agent="judge")
        usual = await ctx.run("usual", "hi")
        await ctx.append(Message.assistant(f"{named.value} {usual.text}"))

    async with Harness(app) as harness:
        shop = harness.client

        async def whole(call: Any) -> Any:
            return await asyncio.wait_for(call, BOUND)

        assert (await harness.prompt("t", "hi", "r1")).text == "shop/clerk of t"
        assert (await harness.prompt("p", "hi", agent="parent")).text == "1 shop/clerk of usual"
        assert (await shop.run("named", (await shop.runs("named")).items[0].run_id)).agent == "shop/judge"
        assert (await whole(shop.fork("t", "f1", agent="judge"))).agent == "shop/judge"
        assert (await whole(shop.fork("t", "f2", message="again", wait=True))).agent == "shop/clerk"
        assert (await whole(shop.fork_once("t", "and?"))).text == "shop/clerk of t"
        await shop.backend.threads.update_thread("t", agent=None)
        job = await shop.enqueue_fork("t", "f3", "job", after_run_id="r1", message="again", prompt_run_id="p3")
        await whole(job.result())
        assert (await shop.run("f3", "p3")).agent == "shop/clerk"
        picked = await whole(shop.fork_many("t", messages=["a", "b"], judge="judge"))
        assert picked.winner == 1
        named = await whole(shop.fork_many("t", messages=["a"], threads=True, agent="judge"))
        [candidate] = named.results
        assert (await shop.thread(candidate.thread_id)).agent == "shop/judge"
