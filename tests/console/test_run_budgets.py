"""The usage of a run against its budgets. A number that the console cannot know is not shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Locator, Route, expect
from pydantic_ai import Agent

from runyard import App, Budget
from runyard import serve as served
from runyard.domain.api_keys import Scope
from tests.console.conftest import Site, working
from tests.support.fleet import until
from tests.support.model_lab import Script, call

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("workers")]

PAINTED = "() => new Promise((painted) => requestAnimationFrame(() => requestAnimationFrame(painted)))"


@asynccontextmanager
async def thrifty(site: Site, budgets: list[Budget], *answers: Any, version: str = "0") -> AsyncIterator[None]:
    """A worker with an agent that gives ``answers`` within ``budgets``."""
    engine: Agent[Any, Any] = Agent(Script(list(answers)).model)

    @engine.tool_plain
    def add() -> int:
        return 1

    async with working(site.operator, App({"thrifty": served(engine, budget=budgets)}, version=version)):
        yield


async def shown(site: Site, place: str, *scopes: Scope, seconds: float | None = None) -> Locator:
    """The budgets in the inspector, after the page has read the agent. ``seconds``: the usage that the page is told."""
    page = await site.person("threads", *scopes)

    async def change(route: Route) -> None:
        run = await (await route.fetch()).json()
        await route.fulfill(json=run | {"usage": run["usage"] | {"seconds": seconds}})

    if seconds is not None:
        await page.route("**/v1/threads/t/runs/r", change)
    async with page.expect_response("**/v1/agents/thrifty") as answer:
        await site.open(page, place)
    await (await answer.value).finished()
    await page.evaluate(PAINTED)
    await page.get_by_label("Inspector").get_by_text("model request").wait_for()
    return page.get_by_label("Inspector").locator(".budget")


async def test_the_usage_of_a_run_is_shown_against_the_budgets_of_its_agent(site: Site) -> None:
    """Before a budget is reached. With a budget of the thread, the usage of the runs before counts."""
    budgets = [Budget(tokens=10_000, steps=20), Budget(steps=30, per="thread"), Budget(seconds=0.5)]
    async with thrifty(site, budgets, "a", "b"):
        for run in ("before", "r"):
            await site.say("t", "hello", run, agent="thrifty")
        used = (await site.client.run("t", "r")).usage
        tokens = f"{used.input_tokens + used.output_tokens:,} of 10,000 tokens"
        of_thread = "2 of 30 steps of the thread"
        budgets_of = await shown(site, "threads/t?run=r", seconds=0.4)
        await expect(budgets_of).to_have_text([tokens, "1 of 20 steps", of_thread, "0.4 of 0.5 seconds"])
        await expect(await shown(site, "threads/t?run=r", "read")).to_have_count(0)


async def test_a_limit_that_an_answer_may_have_raised_is_not_shown(site: Site) -> None:
    """While a run asks, the request has the limit. Another limit of the same name stays."""
    budgets = [Budget(steps=1, on_exceeded="ask"), Budget(steps=5)]
    async with thrifty(site, budgets, [call("add")], "b"):
        await site.client.enqueue("t", "hello", "r", agent="thrifty")

        async def asks() -> bool:
            return len((await site.client.requests()).items) == 1

        await until(asks)
        await expect(await shown(site, "threads/t?run=r")).to_have_text(["1 of 1 steps", "1 of 5 steps"])
        await site.client.respond("t", True)
        await site.client.handle("t", "r").result(20)
        await expect(await shown(site, "threads/t?run=r")).to_have_text(["2 of 5 steps"])


async def test_a_budget_of_the_thread_is_shown_where_its_usage_is_known(site: Site) -> None:
    """The usage of a thread lacks failed runs. A fork starts at zero."""
    async with thrifty(site, [Budget(steps=30, per="thread"), Budget(steps=20)], "a"):
        await site.say("t", "hello", "r", agent="thrifty")
        await site.client.fork("t", "fork", after_run_id="r")
        await expect(await shown(site, "threads/fork?run=r")).to_have_text(["1 of 20 steps"])
    async with thrifty(site, [Budget(steps=30, per="thread"), Budget(steps=20)], [call("add")], ValueError("x")):
        await site.say("u", "hello", "failed", agent="thrifty", max_attempts=1)
        await expect(await shown(site, "threads/u?run=failed")).to_have_text(["1 of 20 steps"])


async def test_budgets_of_another_version_are_not_shown(site: Site) -> None:
    async with thrifty(site, [Budget(steps=20)], "a", version="1"):
        await site.say("t", "hello", "r", agent="thrifty")
        await expect(await shown(site, "threads/t?run=r")).to_have_text(["1 of 20 steps"])
    async with thrifty(site, [Budget(steps=30)], version="2"):
        await expect(await shown(site, "threads/t?run=r")).to_have_count(0)


async def test_a_fan_out_has_no_budget(site: Site) -> None:
    """Each of its probes has budgets of its own."""
    async with thrifty(site, [Budget(steps=2)], "a", *"bcd"):
        await site.say("t", "hello", "r", agent="thrifty")
        await site.client.fork_many("t", "r", messages=list("bcd"), agent="thrifty", run_id="many", wait=60, threads=False)
        await expect(await shown(site, "threads/t?run=many")).to_have_count(0)
