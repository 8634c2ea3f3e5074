"""A family of many leaves and a path of many messages: pages are read as far as somebody looks, and the page stays small."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, Route, expect

from runyard import Client, Message
from runyard.domain.messages import ToolCallPart, ToolResultPart
from tests.console.conftest import Site

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

LEAVES: Final = int(os.environ.get("RUNYARD_TEST_CONSOLE_LEAVES", "200"))
MESSAGES: Final = int(os.environ.get("RUNYARD_TEST_CONSOLE_MESSAGES", "1000"))
HEAP_BYTES: Final = 200 * 2**20
ELEMENTS: Final = 6000
"""Most elements of the page, however far somebody has scrolled."""


async def fill(client: Client, leaves: int, messages: int) -> None:
    """A path of ``messages`` messages, the last one labelled, and ``leaves`` leaves that begin at its first messages."""
    first: list[Message] = []
    for start in range(0, messages, 500):
        made = [
            (Message.user if n % 2 == 0 else Message.assistant)(f"message {n} " + "with some *words* in `it`. " * 5)
            for n in range(start, min(start + 500, messages))
        ]
        await client.backend.checkpointer.append("long", made)
        first = first or made
    await client.set_label("long", "longest", made[-1].id)
    for n in range(leaves - 1):
        await client.store_message("long", f"branch {n}", first[n % 100].id)


async def heap(page: Page) -> dict[str, float]:
    session = await page.context.new_cdp_session(page)
    await session.send("HeapProfiler.collectGarbage")
    await session.send("Performance.enable")
    found: dict[str, Any] = await session.send("Performance.getMetrics")
    return {each["name"]: each["value"] for each in found["metrics"]}


async def scroll_up(page: Page) -> None:
    """Scroll to the first message that the page has, and let it draw what it then reads."""
    await page.get_by_label("Transcript").evaluate(
        "(box) => new Promise((done) => { box.scrollTop = 0; requestAnimationFrame(() => setTimeout(done, 30)); })"
    )


async def test_a_long_path_is_read_as_far_as_somebody_scrolls(site: Site) -> None:
    await fill(site.client, LEAVES, MESSAGES)
    last = next(leaf for leaf in (await site.client.branches("long", labelled=True)).items if "longest" in leaf.labels)
    page = await site.person()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path) if "/v1/" in request.url else None)
    await site.open(page, f"threads/long?leaf={last.message_id}")
    await expect(page.get_by_role("article").last).to_contain_text(f"message {MESSAGES - 1} ")
    await expect(page.get_by_role("tree").get_by_text("longest")).to_be_visible()
    assert sum(path.endswith("/messages") for path in asked) <= 4
    assert await page.evaluate("document.querySelectorAll('*').length") < ELEMENTS
    while not await page.get_by_text("message 0 ", exact=False).count():
        await scroll_up(page)
    assert await page.evaluate("document.querySelectorAll('*').length") < ELEMENTS
    metrics = await heap(page)
    print({name: metrics[name] for name in ("JSHeapUsedSize", "Nodes", "LayoutCount")})
    assert metrics["JSHeapUsedSize"] < HEAP_BYTES
    tree = page.get_by_role("tree")
    await tree.evaluate("(box) => { box.scrollTop = box.scrollHeight }")
    await expect(page.get_by_role("treeitem").last).to_be_visible()
    assert await page.get_by_role("treeitem").count() < 80


async def test_after_a_switch_of_branches_the_page_shows_the_messages_of_one(site: Site) -> None:
    """Also if somebody had scrolled up, and if the older messages of the first branch were still to come."""
    append = site.client.backend.checkpointer.append
    first = await site.client.store_message("t", "the first")
    ends: dict[str, Message] = {}
    for name in ("red", "blue"):
        await site.client.store_message("t", f"{name} begins", first.id)
        made = [Message.assistant(f"{name} {n}") for n in range(150)]
        await append("t", made)
        ends[name] = made[-1]
        await site.client.set_label("t", f"branch-{name}", made[-1].id)
    switched = asyncio.Event()
    switched.set()

    async def answer(route: Route) -> None:
        if "cursor=" in route.request.url:
            await switched.wait()
        await route.continue_()

    page = await site.person()
    await page.route("**/v1/threads/t/messages?**", answer)
    await site.open(page, f"threads/t?leaf={ends['red'].id}")
    articles = page.get_by_role("article")
    await expect(articles.last).to_contain_text("red 149")
    async with page.expect_response(lambda response: "cursor=" in response.url) as older:
        while not older.is_done():  # the page may still scroll to the end itself
            await scroll_up(page)
    switched.clear()
    await page.get_by_role("tree").get_by_text("branch-blue").click()
    await expect(articles.last).to_contain_text("blue 149")
    switched.set()
    path = [each.id for each in (await site.client.messages("t", ends["blue"].id)).items]
    assert len(path) == 152
    shown = [""]
    while shown[0] != path[0]:
        await scroll_up(page)
        shown = await articles.evaluate_all("(all) => all.map((each) => each.id.slice(2))")
        start = path.index(shown[0])
        assert shown == path[start : start + len(shown)]


async def test_a_result_of_another_page_is_shown_with_its_call(site: Site) -> None:
    """The newest page begins with the result of a call of the page before it."""
    messages = [Message.user("call")]
    for n in range(40):
        messages += [
            Message.assistant([ToolCallPart(id=f"c{n}", name=f"tool_{n}_")]),
            Message.tool(ToolResultPart(call_id=f"c{n}", name=f"tool_{n}_", content=f"result {n}.")),
        ]
    messages.append(Message.assistant("done"))
    await site.client.backend.checkpointer.append("t", messages)
    page = await site.person("threads/t")
    await expect(page.get_by_role("article").last).to_contain_text("done")
    while not await page.get_by_text("tool_0_").count():
        await scroll_up(page)
    await expect(page.locator(".tool").filter(has_text="tool_10_")).to_have_text(re.compile("result 10\\."))
    await expect(page.locator(".tool.open")).to_have_count(0)
