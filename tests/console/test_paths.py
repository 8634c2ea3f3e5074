"""Links to a message, a run or a branch lead to the path that has it, and stay with what the person chose."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Error, Page, Route, expect

from runyard import App, Client, Message, RunContext
from tests.console.conftest import Site, prompt, working
from tests.support.fleet import until

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("workers")]


async def branch(client: Client, name: str, messages: int, after: str | None = None) -> list[Message]:
    """Store messages on a branch, by default after the head."""
    if after is not None:
        await client.store_message("t", f"{name} begins", after)
    made = [Message.assistant(f"{name} {n}.") for n in range(messages)]
    await client.backend.checkpointer.append("t", made)
    await client.set_label("t", f"branch-{name}", made[-1].id)
    return made


async def ends_with(page: Page, text: str) -> None:
    """Scroll until the last message is shown: messages far from sight are not in the page."""

    async def shown() -> bool:
        await page.get_by_label("Transcript").evaluate("(box) => { box.scrollTop = box.scrollHeight }")
        return text in (await page.get_by_role("article").last.text_content() or "")

    await until(shown)


def leaf_of(page: Page) -> str | None:
    found = re.search("[?&]leaf=([^&]*)", page.url)
    return found and found[1]


async def test_a_link_leads_to_the_branch_that_has_its_message(site: Site) -> None:
    """The messages after it are shown, too. A path that ends before its branch says so, and leads to the end."""
    first = await site.client.store_message("t", "the first")
    red = await branch(site.client, "red", 150, first.id)
    blue = await branch(site.client, "blue", 150, first.id)
    page = await site.person(f"threads/t?message={blue[9].id}")
    articles = page.get_by_role("article")
    await expect(page.locator(f"#m-{blue[9].id}.selected")).to_be_in_viewport()
    await ends_with(page, "blue 149.")
    assert leaf_of(page) is None
    await page.get_by_label("Inspector").locator(f"a[href*='message={blue[8].id}']").click()
    await expect(page.locator(f"#m-{blue[8].id}.selected")).to_be_visible()
    await site.open(page, f"threads/t?message={red[9].id}")
    await expect(page.locator(f"#m-{red[9].id}.selected")).to_be_in_viewport()
    await ends_with(page, "red 149.")
    assert leaf_of(page) == red[-1].id
    await site.open(page, f"threads/t?leaf={red[9].id}")
    await expect(articles.last).to_contain_text("red 9.")
    await page.get_by_role("button", name="Show its end").click()
    await expect(page.get_by_text("The path continues")).to_have_count(0)
    await ends_with(page, "red 149.")
    assert leaf_of(page) == red[-1].id


async def test_a_slow_link_does_not_replace_a_branch_chosen_meanwhile(site: Site) -> None:
    first = await site.client.store_message("t", "the first")
    red = await branch(site.client, "red", 80, first.id)
    await branch(site.client, "blue", 80, first.id)
    page = await site.person()
    chosen, asked = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.set()
        await chosen.wait()
        with suppress(Error):  # the page does not wait for it any more
            await route.continue_()

    await page.route(f"**/v1/threads/t/messages/{red[2].id}", hold)
    await site.open(page, f"threads/t?message={red[2].id}")
    await asked.wait()
    await expect(page.get_by_role("article").last).to_contain_text("blue 79.")
    async with page.expect_event("requestfailed", lambda request: request.url.endswith(red[2].id)):
        await page.get_by_role("tree").get_by_text("branch-red").click()
    await expect(page.get_by_role("article").last).to_contain_text("red 79.")
    await page.get_by_role("tree").get_by_text("branch-blue").click()
    chosen.set()
    await expect(page.get_by_role("article").last).to_contain_text("blue 79.")
    assert leaf_of(page) is None


async def test_another_choice_ends_the_search_for_the_end_of_a_path(site: Site) -> None:
    """Nothing is read for it any more. A failed search says that it failed, and begins again when somebody asks for it."""
    first = await site.client.store_message("t", "the first")
    red = await branch(site.client, "red", 150, first.id)
    await branch(site.client, "blue", 80, first.id)
    page = await site.person(f"threads/t?leaf={red[2].id}")
    articles = page.get_by_role("article")
    await expect(articles.last).to_contain_text("red 2.")
    pattern = f"**/v1/threads/t/messages/{red[2].id}"
    await page.route(pattern, lambda route: route.abort())
    await page.get_by_role("button", name="Show its end").click()
    lost = page.get_by_label("Transcript").get_by_role("alert")
    await expect(lost).to_contain_text("The end of the path could not be read")
    await expect(page.get_by_text("too far away")).to_have_count(0)
    await page.unroute(pattern)
    asked, chosen = asyncio.Event(), asyncio.Event()
    read: list[str] = []

    async def hold(route: Route) -> None:
        read.append(route.request.url)
        asked.set()
        await chosen.wait()
        with suppress(Error):  # the page does not wait for it any more
            await route.continue_()

    later = f"**/v1/threads/t/messages?*leaf_id={red[-1].id}*"
    await page.route(later, hold)
    await page.get_by_role("button", name="Try again").click()
    await asked.wait()
    await expect(lost).to_have_count(0)
    async with page.expect_event("requestfailed", lambda request: red[-1].id in request.url):
        await page.get_by_role("tree").get_by_text("branch-blue").click()
    chosen.set()
    await expect(articles.last).to_contain_text("blue 79.")
    assert len(read) == 1
    await page.unroute(later)
    await site.open(page, f"threads/t?leaf={red[2].id}")
    await page.get_by_role("button", name="Show its end").click()
    await ends_with(page, "red 149.")


async def test_a_link_that_could_not_be_followed_is_followed_when_somebody_asks(site: Site) -> None:
    first = await site.client.store_message("t", "the first")
    red = await branch(site.client, "red", 80, first.id)
    await branch(site.client, "blue", 3, first.id)
    page = await site.person("threads")
    pattern = f"**/v1/threads/t/messages/{red[2].id}"
    await page.route(pattern, lambda route: route.abort())
    await site.open(page, f"threads/t?message={red[2].id}")
    transcript = page.get_by_label("Transcript")
    await expect(transcript.get_by_role("alert")).to_contain_text("The target of the link could not be read")
    await page.unroute(pattern)
    await transcript.get_by_role("button", name="Try again").click()
    await expect(page.locator(f"#m-{red[2].id}.selected")).to_be_in_viewport()


async def test_a_lost_reading_beside_the_path_does_not_drop_a_link(site: Site) -> None:
    """Nor does a lost reading of the path itself, as soon as somebody tries again."""
    first = await site.client.store_message("t", "the first")
    red = await branch(site.client, "red", 3, first.id)
    await branch(site.client, "blue", 3, first.id)
    page = await site.person("threads")
    selected = page.locator(f"#m-{red[1].id}.selected")
    for reading in ("requests?*thread_id=t*", "threads/t/branches?*", "threads/t/runs?*"):
        await page.route(f"**/v1/{reading}", lambda route: route.abort(), times=1)
        async with page.expect_event("requestfailed"):
            await site.open(page, f"threads/t?message={red[1].id}")
        await expect(selected).to_be_visible()
        await expect(page.get_by_role("article").last).to_contain_text("red 2.")
    pattern = "**/v1/threads/t/messages?*"
    await page.route(pattern, lambda route: route.abort())
    await site.open(page, f"threads/t?message={red[1].id}")
    await page.get_by_label("Transcript").get_by_role("alert").wait_for()
    await page.unroute(pattern)
    await page.get_by_role("button", name="Try again").click()
    await expect(selected).to_be_visible()


async def test_a_thread_that_was_left_says_nothing_of_the_next_link(site: Site) -> None:
    for thread in ("a", "b"):
        await site.say(thread, "say one", f"r{thread}")
    event = (await site.client.run("b", "rb")).event_id
    page = await site.person("threads")
    await page.route("**/v1/threads/a/**", lambda route: None)  # without an answer
    async with page.expect_request("**/v1/threads/a/messages?*"):
        await site.open(page, "threads/a")
    go = "(to) => { history.pushState(null, '', to); dispatchEvent(new PopStateEvent('popstate')); }"
    await page.evaluate(go, f"{site.url}/console/threads/b?event={event}")
    await expect(page).to_have_url(re.compile("run=rb"))
    assert await page.locator(".note").count() == 0


async def test_keys_act_on_the_selected_message_also_if_it_is_not_shown(site: Site) -> None:
    """The selected message is on a path that the page does not read."""
    made = await branch(site.client, "red", 3)
    page = await site.person("threads")
    await page.route("**/v1/threads/t/messages?**", lambda route: route.abort())
    await site.open(page, f"threads/t?message={made[0].id}")
    await expect(page.get_by_label("Transcript").get_by_role("alert")).to_be_visible()
    await page.keyboard.press("f")
    await page.get_by_role("dialog").get_by_role("button", name="Fork").click()
    await expect(page).not_to_have_url(re.compile("threads/t[?]"))
    [child] = (await site.client.lineage("t")).children
    assert [each.id for each in (await site.client.messages(child.thread_id)).items] == [made[0].id]


async def test_the_right_side_of_the_playground_keeps_its_paths_to_itself(site: Site) -> None:
    for thread in ("left", "right"):
        await site.say(thread, f"say {thread}", "r")
    asked = (await site.client.messages("right")).items[0]
    await (await site.client.regenerate("right", asked.id, "r2", message="say again")).result(20)
    await site.say("right", "say working | fail", "r3", max_attempts=1)
    page = await site.person("playground?thread=left&other=right")
    right = page.locator(".side-pane").nth(1)
    await expect(right.get_by_label("assistant message")).to_contain_text("again")
    await right.get_by_role("button", name="Branch before").click()
    await expect(right.get_by_label("assistant message")).to_contain_text("right")
    assert leaf_of(page) is None
    await expect(page.locator(".side-pane").first.get_by_label("assistant message")).to_contain_text("left")
    await page.go_back()
    await right.locator(".run-beside").get_by_role("button").click()
    await expect(page).to_have_url(re.compile("/threads/right[?]"))
    await expect(page.get_by_label("assistant message").filter(has_text="working")).to_be_visible()
    await prompt(page, "say on")
    await expect(page.get_by_label("assistant message").filter(has_text="on")).to_be_visible()


async def test_what_other_people_change_is_seen(site: Site) -> None:
    """Also what the stream does not tell: a stored message, a title, a fork, a deletion. An active page reads it again."""
    await site.client.store_message("t", "hello")
    page = await site.person("threads")
    await page.clock.install()
    await site.open(page, "threads/t")
    await expect(page.get_by_role("treeitem")).to_have_count(1)
    stored = await site.client.store_message("t", "stored by somebody")
    await site.client.update_thread("t", title="a new title")
    await site.client.fork("t", "t2", at_message_id=stored.id)
    await page.clock.run_for(11_000)
    await expect(page.get_by_role("article").last).to_contain_text("stored by somebody")
    await expect(page.get_by_role("heading", level=1)).to_have_text("a new title")
    await expect(page.get_by_role("treeitem")).to_have_count(2)
    await site.client.delete_thread("t2")
    await site.client.delete_thread("t")
    await page.clock.run_for(11_000)
    await expect(page.get_by_text("There is no thread t")).to_be_visible()


async def test_a_failed_reading_is_repeated(site: Site) -> None:
    """Without another event. A message that arrives during a reading stays, although that reading does not have it."""
    speak = asyncio.Event()
    added, held = asyncio.Event(), asyncio.Event()

    async def speaker(ctx: RunContext) -> None:
        await speak.wait()
        await ctx.append(Message.assistant("spoken"))
        await asyncio.sleep(60)

    async def answer(route: Route) -> None:
        if held.is_set():
            await route.abort()
            return
        held.set()
        reply = await route.fetch()
        await added.wait()
        await route.fulfill(response=reply)

    pattern = "**/v1/threads/t/messages?**"
    async with working(site.operator, App({"speaker": speaker})):
        await site.client.enqueue("t", "hello", "r", agent="speaker")
        others = [await site.client.enqueue("t", "other", f"other{n}", queue="idle", parallel=True) for n in range(2)]
        await site.running("t", "r", messages=1)
        page = await site.person("threads")
        read: list[str] = []
        page.on("requestfinished", lambda request: read.append(request.url) if "/messages?" in request.url else None)
        await site.open(page, "threads/t")
        await expect(page.get_by_label("user message")).to_contain_text("hello")
        await until(lambda: twice(read))
        await page.route(pattern, answer)
        await others[0].cancel()
        await held.wait()
        speak.set()
        spoken = page.get_by_label("assistant message", exact=True)
        await expect(spoken).to_have_text(re.compile("spoken"))
        async with page.expect_event("requestfailed", lambda request: "/messages?" in request.url):
            added.set()
            await others[1].cancel()
        async with page.expect_request(lambda request: "/messages?" in request.url, timeout=10_000):
            assert await spoken.count() == 1
        await site.client.handle("t", "r").cancel()


async def twice(read: list[str]) -> bool:
    """Whether a page was read as it opened, and again as its stream opened."""
    return len(read) >= 2


async def test_the_head_of_very_many_branches_is_in_the_tree(site: Site) -> None:
    """The page reads the oldest leaves, and the head is among the newest. It reads them at most once a second."""
    await site.client.store_message("t", "hello")
    page = await site.person("threads")
    asked: list[str] = []

    async def answer(route: Route) -> None:
        asked.append(route.request.url)
        leaf = {"depth": 1, "run_id": None, "run_status": None, "head": False, "trunk": False, "labels": []}
        made = [
            {
                **leaf,
                "message_id": f"m{len(asked)}-{n}",
                "created_at": "2026-01-01T00:00:00Z",
                "path": [{"segment": f"s{n}", "until_seq": None}],
            }
            for n in range(1000)
        ]
        await route.fulfill(json={"items": made, "next": "more"})

    await page.route("**/v1/threads/t/branches?**", answer)
    await site.open(page, "threads/t")
    await expect(page.locator(".tree-row.current")).to_be_visible()
    asked.clear()
    began = time.monotonic()
    for n in range(4):
        await site.client.enqueue("t", f"say {n}", f"r{n}", queue="idle")
        await expect(page.get_by_label("Transcript").get_by_text(f"say {n}")).to_be_visible()
    assert len(asked) <= 2 * (1 + time.monotonic() - began)  # two pages each
    await expect(page.locator(".tree-row.current")).to_be_visible()


async def test_runs_beyond_the_newest_are_read_when_somebody_looks(site: Site) -> None:
    await site.say("t", "say before | fail transient | say after", "old", max_attempts=2)
    await site.client.enqueue("t", "say waiting", "waiting", queue="idle", parallel=True)
    page = await site.person("threads")

    async def answer(route: Route) -> None:
        """The newest runs, without these, as if there were many."""
        found = await (await route.fetch()).json()
        if "status=" not in route.request.url:
            found = {"items": [], "next": "more"}
        await route.fulfill(json=found)

    await page.route("**/v1/threads/t/runs?**", answer)
    await site.open(page, "threads/t")
    transcript = page.get_by_label("Transcript")
    await expect(transcript.locator(".run-head")).to_contain_text("attempt 2")
    await expect(transcript.get_by_text(re.compile("Retried after"))).to_be_visible()
    await expect(transcript.locator(".run-beside").filter(has_text="say waiting")).to_contain_text("queued")
    await site.client.handle("t", "waiting").cancel()
    await expect(transcript.locator(".run-beside").filter(has_text="say waiting")).to_contain_text("cancelled", timeout=15_000)


async def newest_without(page: Page, thread: str) -> None:
    """Answer the newest runs of a thread as if they were others than those that it has."""

    async def answer(route: Route) -> None:
        if re.search("(status|before)=", route.request.url):
            await route.fallback()
        else:
            await route.fulfill(json={"items": [], "next": "more"})

    await page.route(f"**/v1/threads/{thread}/runs?**", answer)


async def test_runs_in_sight_are_read_in_pages(site: Site) -> None:
    """Those that no page has, as the runs of an ancestor, are read a few at a time. Attempts are read once."""
    await site.say("t", "say before | fail transient | say after", "r0", max_attempts=2)
    for n in range(1, 12):
        await site.say("t", f"say {n}", f"r{n}")
    fork = await site.client.fork("t", "fork")
    page = await site.person("threads")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path.removeprefix("/v1/threads/")))
    single = re.compile("/v1/threads/fork/runs/r[0-9]+$")
    for thread in ("t", fork.thread_id):
        await newest_without(page, thread)
    await site.open(page, "threads/t")
    heads = page.get_by_label("Transcript").locator(".run-head")
    await expect(heads.first).to_contain_text("attempt 2")
    await expect(page.get_by_text(re.compile("Retried after"))).to_be_visible()
    inspected = "t/runs/r11"
    assert {path for path in asked if re.fullmatch("t/runs/r[0-9]+", path)} == {inspected}
    full, released = asyncio.Event(), asyncio.Event()
    waiting: set[str] = set()

    async def hold(route: Route) -> None:
        waiting.add(route.request.url)
        if len(waiting) == 5:
            full.set()
        await released.wait()
        await route.continue_()

    await page.route(single, hold)
    await site.open(page, "threads/fork")
    await full.wait()
    for n in range(3):  # each is shown after another reading
        await site.client.enqueue("fork", f"say later {n}", f"later{n}", queue="idle")
        await expect(page.get_by_label("Transcript").get_by_text(f"say later {n}")).to_be_visible()
    assert len(waiting) == 5
    released.set()
    await expect(heads.first).to_contain_text("attempt 2")
    await expect(page.get_by_text(re.compile("Retried after"))).to_be_visible()
    await site.client.enqueue("fork", "say last", "last", queue="idle")
    await expect(page.get_by_label("Transcript").get_by_text("say last")).to_be_visible()
    assert asked.count("fork/runs/r0/attempts") == 1
