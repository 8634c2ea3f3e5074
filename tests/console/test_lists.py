"""Lists that somebody watches while their entries change and others come."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.console.conftest import Site

pytestmark = pytest.mark.timeout(120)

TOP = "(row) => Math.round(row.getBoundingClientRect().top)"


async def test_what_is_in_sight_stays_current(site: Site) -> None:
    """Also behind the first page, and after more new entries than a page has. Rows in sight keep their places."""
    for n in range(25):
        await site.client.enqueue("t", f"say old {n}", f"r{n}", queue="idle")
    page = await site.person(viewport={"width": 1400, "height": 500})
    await page.route("**/v1/runs?limit=100&**", lambda route: route.continue_(url=route.request.url.replace("=100", "=10")))
    await site.open(page, "runs")
    oldest = page.get_by_role("listitem").filter(has=page.get_by_label("Select run r0", exact=True))
    box = page.get_by_role("list", name="Runs")
    await page.get_by_label("Select run r24", exact=True).wait_for()
    while await oldest.count() == 0:
        await box.evaluate("(box) => { box.scrollTop += 300; }")
        await page.wait_for_timeout(100)
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
