"""The other pages: many runs at once, scopes, operation, the playground, the login."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from playwright.async_api import expect

from runyard.domain.states import RunStatus
from runyard_api.http.app import asgi_app
from runyard_api.http.settings import ApiSettings
from tests.console.conftest import EVERYTHING, SECRET, Site
from tests.support.api_server import serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("workers")]


async def test_failed_runs_are_redriven_together(site: Site) -> None:
    """The confirmation says how many. Runs that do not fit the filter stay as they are."""
    for n in range(3):
        await site.say(f"t{n}", "fail", f"r{n}", max_attempts=1)
    await site.say("u", "say fine", "fine")
    page = await site.person("runs?error=agent_error")
    await expect(page.get_by_role("listitem").filter(has_text="the script failed")).to_have_count(3)
    await page.get_by_role("button", name="Redrive all…").click()
    await expect(page.get_by_role("dialog")).to_contain_text("Redrive 3 runs?")
    await page.get_by_role("dialog").get_by_role("button", name="Redrive 3 runs").click()
    await expect(page.get_by_text("Redriven: 3 of 3")).to_be_visible()
    runs = (await site.client.runs()).items
    assert {run.run_id: run.attempt > 1 or run.status is RunStatus.QUEUED for run in runs} == {
        "r0": True, "r1": True, "r2": True, "fine": False,
    }  # fmt: skip


async def test_selected_runs_are_cancelled(site: Site) -> None:
    for n in range(3):
        await site.client.enqueue(f"t{n}", f"say {n}", f"r{n}", queue="idle")
    page = await site.person("runs")
    for n in (0, 2):
        await page.get_by_label(f"Select run r{n}").check()
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel 2 runs").click()
    await expect(page.get_by_text("Cancelled: 2 of 2")).to_be_visible()
    assert [(await site.client.run(f"t{n}", f"r{n}")).status for n in range(3)] == ["cancelled", "queued", "cancelled"]


async def test_runs_are_found_by_text_and_queue(site: Site) -> None:
    await site.client.enqueue("t1", "say Lisbon", "r1", queue="slow")
    await site.client.enqueue("t2", "say Porto", "r2")
    page = await site.person("runs")
    rows = page.get_by_role("listitem").filter(has=page.get_by_role("checkbox"))
    await expect(rows).to_have_count(2)
    await page.get_by_role("searchbox").fill("lisb")
    await expect(rows).to_have_count(1)
    await site.open(page, "runs?queue=slow")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("Lisbon")


async def test_what_a_key_may_not_do_is_not_shown(site: Site) -> None:
    await site.say("t", "say hello", "r")
    await site.client.enqueue("t", "approve refund 1", "q")
    reader = await site.person("", "read")
    links = reader.get_by_role("navigation", name="Pages").get_by_role("link")
    assert [text.split()[0] for text in await links.all_inner_texts()] == ["runyard", "Threads", "Inbox", "Runs"]
    await site.open(reader, "threads/t")
    await expect(reader.get_by_label("Request")).to_contain_text("This key may not answer")
    for name in ("Send", "Fork", "Cancel", "Approve"):
        await expect(reader.get_by_role("button", name=name)).to_have_count(0)
    await site.open(reader, "runs")
    await expect(reader.get_by_role("button", name="Redrive all…")).to_have_count(0)


async def test_a_queue_is_paused_and_resumed(site: Site) -> None:
    page = await site.person("operate", operates=True)
    await page.get_by_role("button", name="Pause").first.click()
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()
    paused = [each.queue for each in (await site.operator.queues()).items if each.paused_at is not None]
    assert len(paused) == 1
    await page.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    await page.get_by_role("tab", name="Workers").click()
    await expect(page.get_by_role("cell", name="live").first).to_be_visible()
    await page.get_by_role("button", name="Stacks").first.click()
    await expect(page.get_by_role("dialog")).to_contain_text("MainThread")
    await page.get_by_role("dialog").get_by_role("button", name="Close").click()
    await page.get_by_role("tab", name="Doctor").click()
    await expect(page.locator(".finding")).not_to_have_count(0)


async def test_two_threads_are_compared(site: Site) -> None:
    await site.say("one", "say start", "r")
    await site.client.fork("one", "two")
    await site.say("one", "say the red door", "r1")
    await site.say("two", "say the blue door", "r2")
    page = await site.person("playground?thread=one&other=two")
    await page.get_by_role("button", name="Diff").click()
    await expect(page.locator("mark.ours").last).to_have_text("red")
    await expect(page.locator("mark.theirs").last).to_have_text("blue")


async def test_a_key_stays_in_its_tab(site: Site) -> None:
    _, key = await site.client.create_key("person", scopes=EVERYTHING)
    page = await site.visitor()
    await page.goto(f"{site.url}/console")
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Log in").click()
    await page.get_by_role("navigation", name="Pages").wait_for()
    await page.reload()
    await page.get_by_role("navigation", name="Pages").wait_for()
    other = await page.context.new_page()
    await other.goto(page.url)
    await expect(other.get_by_label("API key")).to_be_visible()
    assert "ry_" not in page.url
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("API key")).to_be_visible()


async def test_a_host_serves_the_console_below_a_prefix(site: Site) -> None:
    settings = ApiSettings(_env_file=None, token_secret=SECRET)
    host = FastAPI()
    mounted = asgi_app(site.client, auth="keys", settings=settings)
    host.mount("/agents/v2", mounted)
    host.state.service = mounted.state.service
    await site.client.create_thread("a/b?c", title="An odd id")
    async with serving(host) as url:
        page = await site.person(url=f"{url}/agents/v2")
        await page.get_by_role("link", name="An odd id").click()
        await expect(page.get_by_role("heading", name="An odd id")).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("heading", name="An odd id")).to_be_visible()
