"""Links to a message, a run or a branch lead to the path that has it, and stay with what the person chose."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Page, Route, expect

from runyard import Client, Message
from tests.console.conftest import Site, prompt

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("workers")]


async def branch(client: Client, name: str, messages: int, after: str | None = None) -> list[Message]:
    """Store messages on a branch, by default after the head."""
    if after is not None:
        await client.store_message("t", f"{name} begins", after)
    made = [Message.assistant(f"{name} {n}.") for n in range(messages)]
    await client.backend.checkpointer.append("t", made)
    await client.set_label("t", f"branch-{name}", made[-1].id)
    return made


async def scroll_down(page: Page) -> None:
    """Scroll to the end of the transcript: messages far from sight are not in the page."""
    await page.get_by_label("Transcript").evaluate("(box) => { box.scrollTop = box.scrollHeight }")


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
    await scroll_down(page)
    await expect(articles.last).to_contain_text("blue 149.")
    assert leaf_of(page) is None
    await page.get_by_label("Inspector").locator(f"a[href*='message={blue[8].id}']").click()
    await expect(page.locator(f"#m-{blue[8].id}.selected")).to_be_visible()
    await site.open(page, f"threads/t?message={red[9].id}")
    await expect(page.locator(f"#m-{red[9].id}.selected")).to_be_in_viewport()
    await scroll_down(page)
    await expect(articles.last).to_contain_text("red 149.")
    assert leaf_of(page) == red[-1].id
    await site.open(page, f"threads/t?leaf={red[9].id}")
    await expect(articles.last).to_contain_text("red 9.")
    await page.get_by_role("button", name="Show its end").click()
    await expect(page.get_by_text("The path goes on")).to_have_count(0)
    await scroll_down(page)
    await expect(articles.last).to_contain_text("red 149.")
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
        await route.continue_()

    await page.route(f"**/v1/threads/t/messages/{red[2].id}", hold)
    await site.open(page, f"threads/t?message={red[2].id}")
    await asked.wait()
    await expect(page.get_by_role("article").last).to_contain_text("blue 79.")
    await page.get_by_role("tree").get_by_text("branch-red").click()
    await expect(page.get_by_role("article").last).to_contain_text("red 79.")
    await page.get_by_role("tree").get_by_text("branch-blue").click()
    async with page.expect_response(f"**/messages/{red[2].id}"):
        chosen.set()
    await expect(page.get_by_role("article").last).to_contain_text("blue 79.")
    assert leaf_of(page) is None


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
