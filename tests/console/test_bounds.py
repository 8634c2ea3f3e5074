"""What a page does not show, because it reads a limited number of items, it says."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pytest
from playwright.async_api import Error, Page, Route, expect

from runyard import Prompt
from tests.console.conftest import Site
from tests.console.test_lists import REFUSAL
from tests.console.test_paths import branch
from tests.support.fleet import until

pytestmark = pytest.mark.timeout(120)

RUNS: Final = 101


async def endless(route: Route) -> None:
    """Answer as the API, with a further page after each page."""
    parts = urlsplit(route.request.url)
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name != "cursor"])
    with suppress(Error):  # the page was left meanwhile
        found = await (await route.fetch(url=urlunsplit(parts._replace(query=query)))).json()
        await route.fulfill(json={**found, "next": "further"})


async def says(page: Page, *texts: str) -> None:
    for text in texts:
        await expect(page.locator(".bound").filter(has_text=text)).to_be_visible()


async def test_the_page_of_a_thread_leads_to_runs_that_it_does_not_know(site: Site) -> None:
    await site.client.enqueue_many([Prompt("t", f"say {n}", f"r{n}", queue="idle") for n in range(RUNS)])
    page = await site.person("threads/t")
    await says(page, "The page has read only the newest 100 runs of the thread.")
    await page.get_by_role("link", name="All runs").click()
    await expect(page).to_have_url(re.compile("/runs\\?thread=t$"))
    await expect(page.get_by_role("list", name="Runs")).to_be_visible()
    await site.client.enqueue("few", "say 1", "r", queue="idle")
    await site.open(page, "threads/few?run=r")
    await expect(page.get_by_label("Inspector")).to_contain_text("no live worker")
    await expect(page.locator(".bound")).to_have_count(0)


async def test_the_page_of_a_thread_says_what_it_leaves_out(site: Site) -> None:
    stored = await site.client.store_message("t", "hello")
    await site.client.fork("t", "fork", at_message_id=stored.id)
    await site.client.enqueue("t", "say 1", "r", queue="idle")
    page = await site.person()
    for lists in ("branches?*", "runs/r/attempts?*"):
        await page.route(f"**/v1/threads/t/{lists}", endless)
    await page.route("**/v1/threads?*parent_thread_id=t*", endless)
    await page.route("**/v1/requests?*", endless)

    async def lineage(route: Route) -> None:
        found = await (await route.fetch()).json()
        await route.fulfill(json={**found, "next_ancestor": "far", "next_children": "further"})

    await page.route("**/v1/threads/t/lineage?*", lineage)
    await site.open(page, "threads/t?run=r")
    await says(page, "branches of t are shown", "forks of t are shown", "The ancestors before far are not shown.")
    await says(page, "attempts are shown", "requests are shown")
    await expect(page.get_by_role("tab", name=re.compile("^Attempts .*\\+$"))).to_be_visible()


async def test_the_lists_of_operators_say_what_they_leave_out(site: Site) -> None:
    """Lists in pages, and answers with more items than a page shows."""
    page = await site.person(operates=True)
    await site.operator.enqueue("t", "say 1", "r", queue="idle")
    for name in ("queues", "webhooks"):
        await page.route(f"**/v1/{name}?*", endless)
    limits = [{"name": "queued_per_tenant", "subject": f"t{n}", "most": 1} for n in range(1001)]
    await page.route("**/v1/limits", lambda route: route.fulfill(json={"items": limits}))
    agents = [{"name": f"a{n}", "queues": [], "workers": 1, "versions": []} for n in range(1001)]
    await page.route("**/v1/agents", lambda route: route.fulfill(json={"items": agents}))
    for name in ("queues", "webhooks", "limits"):
        await site.open(page, f"operate/{name}")
        await says(page, f"{name} are shown")
    await site.open(page, "threads")
    await expect(page.get_by_label("Agent").get_by_role("option").last).to_have_text("only the first 1,000 agents")


async def test_prompts_without_an_answer_that_are_left_out_are_counted(site: Site) -> None:
    for n in range(5):
        run = f"r{n}"
        await site.client.enqueue("t", f"say {n}", run, queue="idle")
        await site.client.cancel("t", run)
    page = await site.person("threads/t")
    await expect(page.locator(".run-beside")).to_have_count(3)
    await expect(page.get_by_label("Transcript")).to_contain_text("2 earlier prompts ended without an answer.")


async def test_tags_that_have_no_place_are_counted(site: Site) -> None:
    await site.client.create_thread("t", tags={f"k{n}": "v" for n in range(6)})
    page = await site.person("threads")
    await expect(page.get_by_role("list", name="Threads")).to_contain_text("k3:v+2")
    await site.open(page, "threads/t")
    await expect(page.get_by_role("treeitem")).to_contain_text("k1:v+4")


@pytest.mark.usefixtures("workers")
async def test_the_requests_of_a_run_are_read_page_by_page(site: Site) -> None:
    """The API is asked for 50. The transcript shows these, and the inspector those that somebody asks for."""
    await site.client.enqueue("t", "approve refund 1", "r")

    async def asks() -> bool:
        return (await site.client.run("t", "r")).waiting_for == "answer"

    await until(asks)
    page = await site.person("threads")

    async def answer(route: Route) -> None:
        """Many copies of the request, in pages."""
        query = dict(parse_qsl(urlsplit(route.request.url).query))
        [request] = (await (await route.fetch(url=route.request.url.partition("&cursor")[0])).json())["items"]
        first = int(query.get("cursor", 0))
        ids = range(first, min(first + 50, 120))
        next_one = str(first + 50) if first + 50 < 120 else None
        await route.fulfill(json={"items": [{**request, "request_id": f"q{n}"} for n in ids], "next": next_one})

    await page.route("**/v1/requests?*thread_id=t*", answer)
    await site.open(page, "threads/t?run=r")
    inspector = page.get_by_label("Inspector")
    more = inspector.get_by_role("button", name="More requests")
    for shown in (50, 100, 120):
        await expect(inspector.get_by_text("waits for an approval")).to_have_count(shown)
        if shown < 120:
            await more.click()
    await expect(more).to_have_count(0)
    await expect(page.get_by_role("region", name="Request")).to_have_count(50)
    await says(page, "Only the first 50 requests are shown.")


@pytest.mark.usefixtures("workers")
async def test_the_requests_of_a_run_end_with_the_pages_that_are_read(site: Site) -> None:
    """Another place has the rest. Each page is read once, when somebody asks for it, and an event reads only the first one.

    Somebody who leaves the page during a reading sees no error.
    """
    await site.client.enqueue("t", "approve refund 1", "r")

    async def asks() -> bool:
        return (await site.client.run("t", "r")).waiting_for == "answer"

    await until(asks)
    [request] = [each.model_dump(mode="json") for each in (await site.client.requests()).items]
    page = await site.person("threads")
    read: list[str | None] = []
    going = asyncio.Event()

    async def answer(route: Route) -> None:
        cursor = dict(parse_qsl(urlsplit(route.request.url).query)).get("cursor")
        read.append(cursor)
        if cursor is not None:
            await going.wait()
        first = int(cursor or 0)
        with suppress(Error):  # the page was left meanwhile
            await route.fulfill(
                json={"items": [{**request, "request_id": f"q{n}"} for n in range(first, first + 50)], "next": str(first + 50)}
            )

    await page.route("**/v1/requests?*thread_id=t*", answer)
    await site.open(page, "threads/t?run=r")
    inspector = page.get_by_label("Inspector")
    more = inspector.get_by_role("button", name="More requests")
    async with page.expect_event("requestfailed", lambda each: "cursor=50" in each.url):
        async with page.expect_request(lambda each: "cursor=50" in each.url):
            await more.click()
        await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Runs").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    assert await page.locator(".note").count() == 0
    await page.go_back()
    going.set()
    read.clear()
    for n in range(1, 20):
        await expect(inspector.get_by_text("waits for an approval")).to_have_count(50 * n)
        await more.click()
    await says(inspector, "Only the first 1,000 requests are shown.")
    await expect(more).to_have_count(0)
    assert sorted(int(each) for each in read if each is not None) == [50 * n for n in range(1, 20)]
    read.clear()
    await site.client.enqueue("t", "say x", "x", queue="idle", parallel=True)
    await expect(page.locator(".run-beside")).to_contain_text("say x")
    assert set(read) == {None}
    await expect(inspector.get_by_text("waits for an approval")).to_have_count(1000)


async def test_older_messages_that_are_refused_again_and_again_are_missed_aloud(site: Site) -> None:
    """The path begins again once. Then it stays where somebody has scrolled, and says what it lacks."""
    await branch(site.client, "red", 80)
    page = await site.person("threads")
    refused: list[str] = []

    async def refuse(route: Route) -> None:
        refused.append(route.request.url)
        await route.fulfill(status=400, json=REFUSAL, content_type="application/problem+json")

    pattern = "**/v1/threads/t/messages?*cursor=*"
    await page.route(pattern, refuse)
    await site.open(page, "threads/t")
    transcript = page.get_by_label("Transcript")
    problem = transcript.get_by_role("alert")

    async def told() -> bool:
        await transcript.evaluate("(box) => { box.scrollTop = 0; }")
        return await problem.count() > 0

    await until(told)
    await transcript.evaluate("(box) => { box.scrollTop = 1; }")
    await expect(problem).to_contain_text("Older messages could not be read: an old cursor")
    await expect(problem).to_be_in_viewport()
    assert len(refused) == 2
    await page.unroute(pattern)
    await transcript.get_by_role("button", name="Older messages").click()
    await expect(page.get_by_text("red 0.")).to_be_visible()
    await expect(problem).to_have_count(0)


@pytest.mark.usefixtures("workers")
async def test_candidates_that_are_refused_begin_again(site: Site) -> None:
    """Once. Then the page says so, and keeps what was read."""
    await site.say("t", "say one", "r1")
    await site.client.fork_many("t", "r1", messages=["say a"], run_id="many", wait=20)
    page = await site.person("threads")
    read: list[str | None] = []

    async def answer(route: Route) -> None:
        """The candidate many times, in pages."""
        cursor = dict(parse_qsl(urlsplit(route.request.url).query)).get("cursor")
        read.append(cursor)
        if cursor is not None:
            await route.fulfill(status=400, json=REFUSAL, content_type="application/problem+json")
            return
        found = await (await route.fetch()).json()
        await route.fulfill(json={**found, "items": [{**found["items"][0], "number": n} for n in range(20)], "next": "old"})

    await page.route("**/v1/threads/t/runs/many/candidates?*", answer)
    await site.open(page, "threads/t")
    more = page.get_by_role("treeitem").filter(has_text="more candidates")
    await more.click()

    async def began_again() -> bool:
        return read == [None, "old", None]

    await until(began_again)
    assert await page.locator(".note").count() == 0
    await more.click()
    await expect(page.locator(".note.bad")).to_contain_text("an old cursor")
    await expect(more).to_have_count(1)
    assert read == [None, "old", None, "old"]
