"""Two programs on one deployment: worker processes of both, and clients of both and of none."""

from __future__ import annotations

import asyncio

from runyard import Client
from tests.support.fleet import Fleet

APP = "tests.support.agents.named:app"
BOUND = 60.0


async def text(client: Client, thread_id: str, run_id: str) -> str:
    """Prompt a thread and return the answer."""
    return (await (await client.enqueue(thread_id, "who?", run_id)).result(BOUND)).text


async def test_each_program_answers_its_own_threads_only(fleet: Fleet) -> None:
    """L4: at once and under load, also on threads of the other program, and a thread from before the first worker."""
    names = ["shop", "blog"]
    clients = {name: Client(fleet.backend, namespace=name) for name in names}
    early = await clients["shop"].enqueue("early", "who?", "early")
    for name in names:
        await fleet.start(app=APP, namespace=name)
    assert (await early.result(BOUND)).text == "shop/clerk in early"
    work = [(name, f"{name}-{n}", f"r{n}") for n in range(30) for name in names]
    answers = await asyncio.gather(*(text(clients[name], *of) for name, *of in work))
    assert answers == [f"{name}/clerk in {run}" for name, _, run in work]
    assert await text(clients["blog"], "shop-1", "of blog") == "shop/clerk in of blog"
    assert await text(fleet.client, "blog-1", "of nobody") == "blog/clerk in of nobody"
    assert {run.agent for run in (await clients["shop"].runs(agent="clerk")).items} == {"shop/clerk"}
    other = await fleet.client.enqueue("other", "who?")
    assert (await other.run()).agent is None
    assert await other.explain() == "no live worker serves queue default"
    await fleet.start(app=APP)
    assert (await other.result(BOUND)).run.agent == "clerk"


async def test_a_limit_counts_runs_that_name_no_agent(fleet: Fleet) -> None:
    """L5: of a real worker, whose runs are all of its only agent."""
    await fleet.client.set_limit("running_per_agent", 1, subject="default")
    await fleet.client.set_limit("running_per_agent", 0, subject="clerk")
    await fleet.start(app=APP)
    run = await fleet.client.enqueue("t", "who?", "r")

    async def limited() -> bool:
        return await run.explain() == "waiting for a permit of agent clerk (limit 0)"

    async with asyncio.timeout(BOUND):
        while not await limited():  # noqa: ASYNC110 - the state is in a store
            await asyncio.sleep(0.05)
    await fleet.client.clear_limit("running_per_agent", subject="clerk")
    assert (await run.result(BOUND)).text == "clerk in r"
