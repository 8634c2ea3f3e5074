"""Each page passes axe without serious violations, dark and light, and everything can be reached by the keyboard."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.console.conftest import SOURCES, Site
from tests.console.test_paths import branch
from tests.support.fleet import until

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


async def test_what_the_tree_opens_has_the_focus(site: Site) -> None:
    """Also on a small screen, where the tree gives way to the transcript."""
    await site.say("t", "say one", "r1")
    await site.client.fork("t", "fork", title="A fork")
    for width in (1440, 380):
        page = await site.person("threads/t", viewport={"width": width, "height": 780})
        tree = page.get_by_role("tree", name="Branches and forks")
        for key, title in (("End", "A fork"), ("Home", "t")):
            if width == 380:
                await page.get_by_role("tab", name="Tree").click()
            await expect(page.get_by_role("treeitem")).to_have_count(2)
            await tree.focus()
            await page.keyboard.press(key)
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", level=1)).to_have_text(title)
            await expect(page.get_by_label("Transcript")).to_be_focused()


async def test_the_cursor_of_the_tree_stays_while_its_branch_grows(site: Site) -> None:
    await site.say("t", "say one", "r1")
    await site.client.fork("t", "fork", title="A fork")
    page = await site.person("threads/t")
    tree = page.get_by_role("tree", name="Branches and forks")
    fork = page.get_by_role("treeitem").filter(has_text="A fork")
    await expect(fork).to_contain_text("2")
    await tree.focus()
    await page.keyboard.press("End")
    await expect(fork).to_have_class(re.compile("cursor"))
    await site.say("fork", "say two", "r2")
    await expect(fork).to_contain_text("4", timeout=60_000)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("A fork")


async def test_the_cursor_of_the_tree_stays_on_its_branch_among_others(site: Site) -> None:
    first = await site.client.store_message("t", "the first")
    made = {name: await branch(site.client, name, 2, first.id) for name in ("red", "blue", "green")}
    page = await site.person("threads")
    await page.clock.install()
    await site.open(page, "threads/t")
    rows = page.get_by_role("treeitem")
    await expect(rows).to_have_count(3)
    names = await rows.all_inner_texts()
    [at] = [n for n, name in enumerate(names) if "branch-blue" in name]
    await page.get_by_role("tree").focus()
    await page.keyboard.press("Home")
    for _ in range(at):
        await page.keyboard.press("ArrowDown")
    await expect(rows.filter(has_text="branch-blue")).to_have_class(re.compile("cursor"))
    await site.client.store_message("t", "blue grows", made["blue"][-1].id)
    await page.clock.run_for(11_000)
    await expect(rows.filter(has_text="blue grows")).to_have_class(re.compile("cursor"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("article").last).to_contain_text("blue grows")


async def test_what_is_opened_twice_is_shown_twice_on_a_small_screen(site: Site) -> None:
    """A run by its head, and a fan-out by its row, after somebody went back to another part of the page. It has the focus."""
    await site.say("t", "say one", "r1")
    await site.client.fork_many("t", "r1", messages=["say a"], run_id="many", wait=20)
    page = await site.person("threads/t", viewport={"width": 380, "height": 780})
    for _ in range(2):
        await page.get_by_role("tab", name="Transcript").click()
        await page.locator(".run-link").click()
        await expect(page.get_by_role("tab", name="Inspector", selected=True)).to_be_visible()
    rows = page.get_by_role("treeitem")
    for _ in range(2):
        await page.get_by_role("tab", name="Tree").click()
        [at] = [n for n, name in enumerate(await rows.all_inner_texts()) if "fan-out" in name]
        for key in ("Home", *["ArrowDown"] * at, "Enter"):
            await page.get_by_role("tree").press(key)
        await expect(page.get_by_label("Inspector", exact=True)).to_be_focused()
        await expect(page.get_by_role("tab", name="Inspector", selected=True)).to_be_visible()


async def test_the_title_of_the_tab_says_the_page(site: Site) -> None:
    await site.say("t", "say one", "r1")
    await site.client.fork("t", "fork", title="A fork")
    page = await site.person("threads/fork")
    await expect(page).to_have_title("A fork · runyard")
    pages = page.get_by_role("navigation", name="Pages")
    await pages.get_by_role("link", name="Inbox").click()
    await expect(page).to_have_title("Inbox · runyard")
    await site.client.enqueue("t", "approve refund 1", "ask")
    await expect(page).to_have_title("Inbox (1) · runyard")
    for name in ("Threads", "Runs", "Playground", "Operate"):
        await pages.get_by_role("link", name=name).click()
        await expect(page).to_have_title(re.compile(f"{name}.* · runyard"))
    await page.get_by_role("button", name="Log out").click()
    await expect(page).to_have_title("Log in · runyard")


async def test_a_link_opens_its_part_of_a_small_page(site: Site) -> None:
    """The part that somebody chooses stays when data arrives."""
    await site.say("t", "say one", "r1")
    await site.client.enqueue("t", "approve refund 1", "ask")
    await until(lambda: asks(site))
    [request] = (await site.client.requests()).items
    event = (await site.client.run("t", "r1")).event_id
    message = (await site.client.messages("t")).items[0].id
    inspector, transcript = "Inspector", "Transcript"
    for width in (1080, 380):
        page = await site.person("threads", viewport={"width": width, "height": 780})
        for query, part in (
            ("run=r1", inspector),
            (f"request={request.request_id}", inspector),
            (f"event={event}", inspector),
            (f"message={message}", transcript),
        ):
            await site.open(page, f"threads/t?{query}")
            await expect(page.get_by_role("tab", name=part, selected=True)).to_be_visible()
            await expect(page.get_by_label(part, exact=True)).to_be_visible()
        await page.get_by_role("tab", name="Tree").click()
        await site.client.enqueue("t", "say more", f"more{width}", queue="idle", parallel=True)
        await expect(page.get_by_label("Transcript").get_by_text("say more")).to_have_count(1 if width == 1080 else 2)
        await expect(page.get_by_role("tab", name="Tree", selected=True)).to_be_visible()


async def asks(site: Site) -> bool:
    return len((await site.client.requests()).items) == 1


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
