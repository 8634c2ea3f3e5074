"""Each page passes axe without serious violations, dark and light, and everything can be reached by the keyboard."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.console.conftest import BOUND, SOURCES, Site
from tests.support.fleet import Fleet

pytestmark = pytest.mark.timeout(180)

expect.set_options(timeout=BOUND)

PAGES = (
    *("threads", "threads/t", "threads/t?run=r1", "inbox", "runs", "playground?thread=t&other=fork"),
    *("operate/queues", "operate/workers", "operate/limits", "operate/webhooks", "operate/doctor", "operate/settings"),
)


async def violations(page: Page) -> list[str]:
    await page.evaluate((SOURCES / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8"))
    found: dict[str, Any] = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:3]
    ]


@pytest.mark.parametrize("scheme", ["dark", "light"])
async def test_axe_finds_nothing_serious(site: Site, fleet: Fleet, scheme: str) -> None:
    await fleet.start()
    await (
        await site.client.enqueue("t", "say # Title\n\n`code` and [a link](https://example.org) | tool add 1 2", "r1")
    ).result(20)
    await site.client.fork("t", "fork", title="A fork")
    await site.client.regenerate("t")
    await site.client.enqueue("t", "approve refund 1", "ask")
    await (await site.client.enqueue("f", "fail", "f", max_attempts=1)).result(20)
    page = await site.person(color_scheme=scheme)
    found = {}
    for path in PAGES:
        await site.open(page, path)
        await expect(page.locator("[aria-busy=true]")).to_have_count(0)
        await page.get_by_role("heading", level=1).wait_for()
        found[path] = await violations(page)
    await page.evaluate("sessionStorage.clear()")
    await page.reload()
    await page.get_by_label("API key").wait_for()
    found["login"] = await violations(page)
    assert {path: each for path, each in found.items() if each} == {}


async def test_the_tree_is_walked_with_arrows(site: Site, fleet: Fleet) -> None:
    await fleet.start()
    await (await site.client.enqueue("t", "say one", "r1")).result(20)
    await site.client.fork("t", "fork", title="A fork")
    page = await site.person()
    await site.open(page, "threads/t")
    await expect(page.get_by_role("treeitem")).to_have_count(2)
    await page.keyboard.press("/")
    await page.keyboard.type("A fork")
    await page.keyboard.press("ArrowDown")
    for key in ("End", "Enter"):
        await page.keyboard.press(key)
    await expect(page.get_by_role("heading", level=1)).to_have_text("A fork")
    await page.keyboard.press("Escape")
    await page.keyboard.press("f")
    await expect(page.get_by_role("dialog")).to_contain_text("Fork here")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_nothing_is_wider_than_a_small_screen(site: Site, fleet: Fleet) -> None:
    await fleet.start()
    await (await site.client.enqueue("t", "say " + "x" * 400 + " | tool add 1 2", "r1")).result(20)
    await site.client.enqueue("t", "approve refund 1", "ask")
    page = await site.person(viewport={"width": 380, "height": 780})
    for path in PAGES:
        await site.open(page, path)
        await page.get_by_role("heading", level=1).wait_for()
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 380, path
