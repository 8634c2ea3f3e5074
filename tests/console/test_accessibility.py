"""Each page passes axe without serious violations, dark and light, and everything can be reached by the keyboard."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.console.conftest import SOURCES, Site

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("workers")]

PAGES = ("threads", "threads/t", "threads/t?run=r1", "inbox", "runs", "playground?thread=t&other=fork")
OPERATION = tuple(f"operate/{part}" for part in ("queues", "workers", "limits", "webhooks", "doctor"))


async def violations(page: Page) -> list[str]:
    """Return what axe finds on the page, dark and light."""
    await page.evaluate((SOURCES / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8"))
    found: list[str] = []
    for theme in ("dark", "light"):
        await page.evaluate("(theme) => { document.documentElement.dataset.theme = theme }", theme)
        told: dict[str, Any] = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found += [
            f"{theme} {each['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
            for each in told["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"][:3]
        ]
    return found


async def shown(site: Site, page: Page, path: str) -> None:
    await site.open(page, path)
    await expect(page.locator("[aria-busy=true]")).to_have_count(0)
    await page.get_by_role("heading", level=1).wait_for()


async def furnish(site: Site) -> None:
    """Make a thread with a branch, a fork, an approval, and a failed run."""
    await site.say("t", "say # Title\n\n`code` and [a link](https://example.org) | tool add 1 2", "r1")
    await site.client.fork("t", "fork", title="A fork")
    await site.client.regenerate("t")
    await site.client.enqueue("t", "approve refund 1", "ask")
    await site.say("f", "fail", "f", max_attempts=1)


async def test_axe_finds_nothing_serious(site: Site) -> None:
    await furnish(site)
    page, operating = await site.person(), await site.person(operates=True)
    found = {}
    for path in PAGES + OPERATION:
        visited = operating if path in OPERATION else page
        await shown(site, visited, path)
        found[path] = await violations(visited)
    visitor = await site.visitor()
    await site.open(visitor, "")
    await visitor.get_by_label("API key").wait_for()
    found["login"] = await violations(visitor)
    assert {path: each for path, each in found.items() if each} == {}


async def test_the_tree_is_walked_with_arrows(site: Site) -> None:
    await site.say("t", "say one", "r1")
    await site.client.fork("t", "fork", title="A fork")
    page = await site.person("threads/t")
    await expect(page.get_by_role("treeitem")).to_have_count(2)
    await page.keyboard.press("/")
    await page.keyboard.type("A fork")
    await page.keyboard.press("ArrowDown")
    for key in ("End", "Enter"):
        await page.keyboard.press(key)
    await expect(page.get_by_role("heading", level=1)).to_have_text("A fork")
    await expect(page.get_by_label("user message")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("f")
    await expect(page.get_by_role("dialog")).to_contain_text("Fork here")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_nothing_is_wider_than_a_small_screen(site: Site) -> None:
    await site.say("t", "say " + "x" * 400 + " | tool add 1 2", "r1")
    await site.client.fork("t", "fork", title="A fork")
    await site.client.enqueue("t", "approve refund 1", "ask")
    small = {"viewport": {"width": 380, "height": 780}}
    page, operating = await site.person(**small), await site.person(operates=True, **small)
    for path in PAGES + OPERATION:
        visited = operating if path in OPERATION else page
        await shown(site, visited, path)
        assert await visited.evaluate("document.documentElement.scrollWidth") <= 380, path
