"""A family of many leaves and a path of many messages: pages are read as far as somebody looks, and the page stays small."""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, expect

from runyard import Client, Message
from tests.console.conftest import Site

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

LEAVES: Final = int(os.environ.get("RUNYARD_TEST_CONSOLE_LEAVES", "500"))
MESSAGES: Final = int(os.environ.get("RUNYARD_TEST_CONSOLE_MESSAGES", "10000"))
HEAP_BYTES: Final = 200 * 2**20
ELEMENTS: Final = 6000
"""Most elements of the page, however far somebody has scrolled."""


async def fill(client: Client) -> None:
    """A path of MESSAGES messages, the last one labelled, and LEAVES leaves that begin at its first messages."""
    first: list[Message] = []
    for start in range(0, MESSAGES, 500):
        made = [
            (Message.user if n % 2 == 0 else Message.assistant)(f"message {n} " + "with some *words* in `it`. " * 5)
            for n in range(start, start + 500)
        ]
        await client.backend.checkpointer.append("long", made)
        first = first or made
    await client.set_label("long", "longest", made[-1].id)
    for n in range(LEAVES - 1):
        await client.store_message("long", f"branch {n}", first[n % 100].id)


async def heap(page: Page) -> dict[str, float]:
    session = await page.context.new_cdp_session(page)
    await session.send("HeapProfiler.collectGarbage")
    await session.send("Performance.enable")
    found: dict[str, Any] = await session.send("Performance.getMetrics")
    return {each["name"]: each["value"] for each in found["metrics"]}


async def test_a_long_path_is_read_as_far_as_somebody_scrolls(site: Site) -> None:
    await fill(site.client)
    last = next(leaf for leaf in (await site.client.branches("long", labelled=True)).items if "longest" in leaf.labels)
    page = await site.person()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path) if "/v1/" in request.url else None)
    await site.open(page, f"threads/long?leaf={last.message_id}")
    await expect(page.get_by_role("article").last).to_contain_text(f"message {MESSAGES - 1} ")
    await expect(page.get_by_role("tree").get_by_text("longest")).to_be_visible()
    assert sum(path.endswith("/messages") for path in asked) <= 4
    assert await page.evaluate("document.querySelectorAll('*').length") < ELEMENTS
    log = page.get_by_label("Transcript")
    while not await page.get_by_text("message 0 ", exact=False).count():
        await log.evaluate(
            "(box) => new Promise((done) => { box.scrollTop = 0; requestAnimationFrame(() => setTimeout(done, 30)); })"
        )
    assert await page.evaluate("document.querySelectorAll('*').length") < ELEMENTS
    metrics = await heap(page)
    print({name: metrics[name] for name in ("JSHeapUsedSize", "Nodes", "LayoutCount")})
    assert metrics["JSHeapUsedSize"] < HEAP_BYTES
    tree = page.get_by_role("tree")
    await tree.evaluate("(box) => { box.scrollTop = box.scrollHeight }")
    await expect(page.get_by_role("treeitem").last).to_be_visible()
    assert await page.get_by_role("treeitem").count() < 80
