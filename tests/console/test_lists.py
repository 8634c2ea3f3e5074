"""Lists that somebody watches while their entries change and others come."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import Page, Route, expect

from tests.console.conftest import Site
from tests.support.fleet import until

pytestmark = pytest.mark.timeout(120)

TOP = "(row) => Math.round(row.getBoundingClientRect().top)"


async def test_what_is_in_sight_stays_current(site: Site) -> None:
    """Also behind the first page, and after more new entries than a page has. Rows in sight keep their places."""
    for n in range(25):
        await site.client.enqueue("t", f"say old {n}", f"r{n}", queue="idle")
    page = await site.person(viewport={"width": 1400, "height": 500})
    await small(page)
    await site.open(page, "runs")
    oldest = page.get_by_role("listitem").filter(has=page.get_by_label("Select run r0", exact=True))
    await page.get_by_label("Select run r24", exact=True).wait_for()
    await scroll_to(page, "r0")
    await page.get_by_label("Select run r0", exact=True).check()
    top = await oldest.evaluate(TOP)
    await site.client.cancel("t", "r0")
    for n in range(12):
        await site.client.enqueue("t", f"say new {n}", f"n{n}", queue="idle")
    await expect(oldest).to_contain_text("cancelled")
    await expect(page.get_by_text("1 run selected")).to_be_visible()
    assert abs(await oldest.evaluate(TOP) - top) <= 1
    await page.get_by_label("Select run r1", exact=True).check()
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await expect(page.get_by_role("dialog")).to_contain_text("Cancel 1 run?")
    await expect(page.get_by_role("dialog").get_by_role("listitem")).to_contain_text("say old 1")


REFUSAL = {"type": "about:blank", "code": "invalid_cursor", "title": "Bad Request", "status": 400, "detail": "an old cursor"}


async def small(page: Page) -> None:
    """Let each page of the runs have 10."""
    await page.route(
        re.compile("/v1/runs[?]limit=100"), lambda route: route.continue_(url=route.request.url.replace("=100", "=10"))
    )


async def scroll_to(page: Page, name: str) -> None:
    """Scroll the list of runs until it shows the run, and let it read what that takes."""
    box = page.get_by_role("list", name="Runs")
    row = page.get_by_label(f"Select run {name}", exact=True)

    async def shown() -> bool:
        await box.evaluate("(box) => { box.scrollTop += 300; }")
        return await row.count() > 0

    await until(shown)


async def test_a_list_whose_cursor_is_refused_begins_again(site: Site) -> None:
    """Without a word: as somebody scrolls, and as it reads again what is in sight. Refused again and again, it says so."""
    for n in range(25):
        await site.client.enqueue("t", f"say {n}", f"r{n}", queue="idle")
    page = await site.person(viewport={"width": 1400, "height": 500})
    await small(page)
    refused: list[str] = []
    most = 1

    async def refuse(route: Route) -> None:
        if len(refused) >= most:
            await route.fallback()
        else:
            refused.append(route.request.url)
            await route.fulfill(status=400, json=REFUSAL, content_type="application/problem+json")

    await page.route("**/v1/runs?*cursor=*", refuse)
    await site.open(page, "runs")
    await scroll_to(page, "r0")
    assert len(refused) == 1
    most = 2
    await page.get_by_label("Select run r24", exact=True).wait_for()
    await scroll_to(page, "r0")
    await expect(page.get_by_role("alert")).to_have_count(0)
    await expect(page.locator(".note.bad")).to_have_count(0)
    most = 10**6
    await page.reload()
    await page.get_by_label("Select run r24", exact=True).wait_for()
    await expect(page.locator(".note.bad").first).to_contain_text("an old cursor")
    assert len(refused) < 20


async def test_a_list_begins_again_once_for_a_page_that_is_always_refused(site: Site) -> None:
    """Although the pages before it are read. The entries stay, and the page says why there are no more."""
    for n in range(25):
        await site.client.enqueue("t", f"say {n}", f"r{n}", queue="idle")
    page = await site.person(viewport={"width": 1400, "height": 500})
    refused: list[str] = []
    third: str | None = None

    async def refuse(route: Route) -> None:
        nonlocal third
        [cursor] = parse_qs(urlsplit(route.request.url).query).get("cursor", [None])
        if cursor is not None and cursor == third:
            refused.append(cursor)
            await route.fulfill(status=400, json=REFUSAL, content_type="application/problem+json")
            return
        reply = await route.fetch(url=route.request.url.replace("limit=100", "limit=10"))
        if cursor is not None:
            third = third or (await reply.json())["next"]
        await route.fulfill(response=reply)

    await page.route("**/v1/runs?limit=100*", refuse)
    await site.open(page, "runs")
    await page.get_by_label("Select run r24", exact=True).wait_for()
    note = page.locator(".note.bad")

    async def told() -> bool:
        await page.get_by_role("list", name="Runs").evaluate("(box) => { box.scrollTop += 300; }")
        return await note.count() > 0

    await until(told)
    await expect(note.first).to_contain_text("an old cursor")
    assert len(refused) < 10
    await expect(page.get_by_label("Select run r5", exact=True)).to_be_visible()
