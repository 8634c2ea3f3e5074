"""What a person does with a thread in the console: prompt, watch, fork, answer, cancel."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from playwright.async_api import Route, expect

from runyard.domain.states import RunStatus
from tests.console.conftest import Serve, Site, prompt
from tests.support.fleet import Fleet

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("workers")]


async def test_a_fork_and_its_source_continue(site: Site) -> None:
    for n in (1, 2):
        await site.say("t", f"say answer {n}", f"r{n}")
    page = await site.person("threads/t")
    first = page.get_by_label("assistant message").filter(has_text="answer 1")
    await first.hover()
    await first.get_by_role("button", name="Fork here").click()
    await page.get_by_role("dialog").get_by_label("First prompt").fill("say the fork goes on")
    await page.get_by_role("dialog").get_by_role("button", name="Fork").click()
    await expect(page.get_by_label("assistant message").filter(has_text="the fork goes on")).to_be_visible()
    await expect(page.get_by_label("Transcript")).not_to_contain_text("answer 2")
    [child] = (await site.client.lineage("t")).children
    await expect(page.get_by_role("treeitem")).to_have_count(2)
    await page.get_by_role("treeitem").first.click()
    await expect(page).to_have_url(re.compile("/threads/t($|\\?)"))
    await prompt(page, "say the source goes on")
    await expect(page.get_by_label("assistant message").filter(has_text="the source goes on")).to_be_visible()
    assert [m.text for m in (await site.client.messages("t")).items][-1] == "the source goes on"
    assert [m.text for m in (await site.client.messages(child.thread_id)).items][-1] == "the fork goes on"


async def test_edit_and_resend_makes_siblings(site: Site) -> None:
    await site.say("t", "say red", "r1")
    page = await site.person("threads/t")
    asked = page.get_by_label("user message")
    await asked.hover()
    await asked.get_by_role("button", name="Edit and resend").click()
    await page.get_by_role("dialog").get_by_label("Message").fill("say blue")
    await page.get_by_role("dialog").get_by_role("button", name="Send", exact=True).click()
    await expect(page.get_by_label("assistant message")).to_have_text(re.compile("blue"))
    siblings = page.get_by_role("navigation", name="Branches at this message")
    await expect(siblings).to_contain_text("2 of 2")
    await siblings.get_by_role("button", name="Branch before").click()
    await expect(page.get_by_label("assistant message")).to_have_text(re.compile("red"))
    await expect(siblings).to_contain_text("1 of 2")
    await page.keyboard.press("r")
    await page.get_by_role("dialog").get_by_role("button", name="Answer again").click()
    await expect(page.get_by_role("treeitem")).to_have_count(3)


async def test_an_approval_is_answered_with_edited_arguments(site: Site) -> None:
    await site.client.enqueue("t", "approve refund 10", "r")
    page = await site.person("inbox")
    await page.get_by_role("button", name="Edit arguments…").click()
    await page.get_by_label("Arguments of refund").fill('{"args": ["7"]}')
    await page.get_by_role("button", name="Approve with these").click()
    await expect(page.get_by_text("No request waits for an answer")).to_be_visible()
    result = await site.client.handle("t", "r").result(20)
    assert result.ok
    [request] = (await site.client.requests("t", pending=False)).items
    assert request.answer == {"approved": True, "arguments": {"args": ["7"]}}
    assert request.answered_by == "person"


async def test_the_takeover_of_a_run_is_seen(site: Site, workers: Fleet) -> None:
    await workers.start()  # one of them dies
    await site.say("t", "say hello", "r0")
    page = await site.person("threads/t")
    await prompt(page, "say before | crash | say after")
    await expect(page.get_by_text("The worker died.")).to_be_visible()
    await expect(page.get_by_label("assistant message").filter(has_text="after")).to_be_visible()
    await expect(page.locator(".bars .wf-attempt")).to_have_count(2)
    await expect(page.locator(".bars .wf-attempt.bad")).to_have_count(1)
    await expect(page.locator(".waterfall .legend")).to_contain_text(["queued", "running", "lost or failed"])
    await expect(page.get_by_label("Transcript").get_by_text("Taken over by")).to_be_visible()
    await page.get_by_role("tab", name="Attempts 2").click()
    await expect(page.locator(".attempts")).to_contain_text("lost")


async def test_a_retry_is_no_takeover(site: Site) -> None:
    await site.say("t", "say before | fail transient | say after", "r", max_attempts=2)
    page = await site.person("threads/t?run=r")
    transcript = page.get_by_label("Transcript")
    await expect(transcript.get_by_text(re.compile("Retried after .*: the first attempt failed"))).to_be_visible()
    await expect(transcript.get_by_text("Taken over")).to_have_count(0)
    history = page.locator(".history li")
    for words in ("attempt 1 started", "failed, to be retried", "attempt 2 started", "completed"):
        await expect(history.filter(has_text=words)).to_have_count(1)


async def test_each_kind_of_entry_has_a_lane_in_the_waterfall(site: Site) -> None:
    """Also kinds that the page does not know. Bars that overlap are below one another."""
    await site.say("t", "say before | tool add 1 2 | say after", "r")
    page = await site.person("threads")

    async def answer(route: Route) -> None:
        found = await (await route.fetch()).json()
        [attempt] = [each for each in found["entries"] if each["type"] == "attempt"]
        times = {name: attempt[name] for name in ("at", "started_at", "ended_at", "fence")}
        nothing = dict.fromkeys(("name", "status", "input", "output", "usage", "error"))
        kinds = ("sleep", "signal", "child", "blue_moon", "step", "tool", "tool", "model_request", "request")
        made = [{**nothing, **times, "type": kind, "id": f"{kind} {n}", "seconds": 1.0} for n, kind in enumerate(kinds)]
        made[-1] |= {"name": "approval", "ended_at": None, "status": "pending"}
        await route.fulfill(json={**found, "entries": [attempt, *made]})

    await page.route("**/timeline**", answer)
    await site.open(page, "threads/t?run=r")
    lanes = ("attempts", "model requests", "tools", "steps", "children", "sleeps", "signals", "blue moons", "HITL requests")
    await expect(page.locator(".bars-name")).to_have_text([*lanes])
    tools = page.locator(".bars-lane").nth(2).locator(".wf")
    assert len({await each.evaluate("bar => bar.style.top") for each in await tools.all()}) == 2
    await expect(page.get_by_role("button", name=re.compile("blue moon blue_moon 3"))).to_be_visible()


async def test_the_waterfall_explains_itself_without_a_pointer(site: Site) -> None:
    """By keys: Tab leads to the bars, arrows move between them. By touch: a tap explains a bar or a part of the legend."""
    await site.say("t", "say before | tool add 1 2 | say after", "r")
    page = await site.person("threads/t?run=r", has_touch=True)
    about = page.locator(".bars-about")
    await page.locator(".wf.wf-attempt").wait_for()
    await page.get_by_role("button", name="Waterfall").focus()
    while not await page.evaluate("document.activeElement.matches('.bars *')"):
        await page.keyboard.press("Tab")
    await expect(about).to_contain_text("attempts: the executions of the run by workers")
    await page.keyboard.press("ArrowRight")
    await expect(about).to_contain_text("queued, ")
    await page.keyboard.press("ArrowRight")
    await expect(about).to_contain_text("attempt 1 completed on ")
    await page.keyboard.press("End")
    await expect(about).to_contain_text("step ")
    await page.keyboard.press("Tab")
    assert not await page.evaluate("document.activeElement.matches('.bars *')")
    await page.locator(".wf.wf-attempt").tap()
    await expect(about).to_contain_text("attempt 1 completed on ")
    await page.locator(".waterfall-legend .legend").filter(has_text="running").tap()
    await expect(about).to_contain_text("running: a worker executed an attempt")


async def test_a_run_is_cancelled(site: Site) -> None:
    await site.client.enqueue("t", "say working | hang", "r")
    await site.running("t", "r", messages=2)
    page = await site.person("threads/t")
    await page.get_by_label("Inspector").get_by_role("button", name="Cancel").click()
    await expect(page.get_by_label("Inspector").get_by_text("cancelled").first).to_be_visible()
    assert (await site.client.run("t", "r")).status is RunStatus.CANCELLED
    await expect(page.get_by_label("assistant message")).to_have_count(0)  # the head is before the run
    await expect(page.get_by_label("Inspector").locator(".inspector-head")).to_contain_text("cancelled")


async def test_a_prompt_without_an_answer_is_shown_after_the_head(site: Site) -> None:
    """The messages of a run that fails are on a branch beside the head. The page says so, and leads to them."""
    await site.say("t", "say hello", "r0")
    page = await site.person("threads/t")
    await prompt(page, "say working | fail")
    beside = page.get_by_label("Transcript").locator(".run-beside")
    await expect(beside).to_contain_text("failed")
    await expect(page.get_by_label("assistant message")).to_have_count(1)
    await expect(page.get_by_label("Inspector").locator(".inspector-head")).to_contain_text("failed")
    await beside.get_by_role("button").click()
    await expect(page.get_by_label("assistant message").filter(has_text="working")).to_be_visible()
    await site.open(page, "threads/t")
    await prompt(page, "say again")
    await expect(page.get_by_label("assistant message").filter(has_text="again")).to_be_visible()
    await expect(beside).to_have_count(0)


async def test_two_browsers_on_two_api_processes_see_the_same(site: Site, serve: Serve) -> None:
    await site.say("t", "say hello", "r0")
    anna, bert = await site.person("threads/t"), await site.person("threads/t", url=await serve())
    await expect(bert.get_by_title("live")).to_be_visible()
    await prompt(anna, "ask Which colour?")
    await expect(bert.get_by_role("region", name="Request")).to_contain_text("Which colour?")
    await bert.get_by_label("Answer", exact=True).fill("blue")
    await bert.get_by_role("button", name="Answer", exact=True).click()
    await expect(anna.get_by_label("assistant message").last).to_contain_text("Which colour? blue")
    await expect(anna.get_by_role("region", name="Request")).to_have_count(0)


UNREAD_MESSAGES = """
window.broken = true;
const read = window.fetch;
window.fetch = (input, ...more) => {
  const lost = window.broken && String(input.url ?? input).includes("/v1/threads/t/messages?");
  return lost ? Promise.reject(new TypeError("lost")) : read(input, ...more);
};
"""
"""Lets each read of the messages fail while ``window.broken`` is true."""


async def test_a_lost_request_does_not_take_the_page(site: Site) -> None:
    """It says what failed in place of the messages, and reads them when somebody asks for it."""
    await site.client.store_message("t", "hello")
    page = await site.person("threads")
    await page.add_init_script(UNREAD_MESSAGES)
    await page.clock.install()
    await site.open(page, "threads/t")
    transcript = page.get_by_label("Transcript")
    await expect(transcript.get_by_role("alert")).to_be_visible()
    await expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
    await page.clock.pause_at(datetime.now() + timedelta(minutes=5))  # the page does not read again by itself
    again = transcript.get_by_role("button", name="Try again")
    await again.evaluate("button => { window.broken = false; button.click(); }")
    await expect(page.get_by_label("user message")).to_contain_text("hello")
    await expect(transcript.get_by_role("alert")).to_have_count(0)


async def test_a_link_leads_to_its_message_and_its_event(site: Site) -> None:
    await site.say("t", "say red", "r1")
    old = (await site.client.messages("t")).items[-1]
    await (await site.client.regenerate("t", old.id, "r2")).result(20)
    page = await site.person(f"threads/t?message={old.id}")
    await expect(page.locator(f"#m-{old.id}.selected")).to_be_visible()
    await expect(page.get_by_label("Inspector")).to_contain_text(old.id)
    run = await site.client.run("t", "r2")
    await site.open(page, f"threads/t?run=r2&event={run.event_id}")
    await expect(page.locator(".event-row.current")).to_contain_text("run.completed")


async def test_a_link_that_names_only_an_event_leads_to_its_run(site: Site) -> None:
    """Also to a run under way, which another one follows. If no run has the event, the page says so."""
    await site.say("t", "say red", "r1")
    await site.client.enqueue("t", "say working | hang", "r2")
    await site.running("t", "r2", messages=4)
    await site.client.enqueue("t", "say later", "r3")
    page = await site.person("threads/t?run=r2")
    await page.get_by_role("tab", name="Events").click()
    stored = page.locator(".event-row").filter(has_text="message.completed").first
    under_way = await stored.locator("code").inner_text()
    ended = (await site.client.run("t", "r1")).event_id
    for event, run, kind in ((ended, "r1", "run.completed"), (under_way, "r2", "message.completed")):
        await site.open(page, f"threads/t?event={event}")
        await expect(page).to_have_url(re.compile(f"run={run}"))
        await expect(page.locator(".event-row.current")).to_contain_text(kind)
    await site.open(page, "threads/t?event=999999999-1")
    await expect(page.get_by_role("status").filter(has_text="999999999-1")).to_contain_text("but not its run")


async def test_a_lost_answer_does_not_say_that_no_run_has_an_event(site: Site) -> None:
    await site.say("t", "say before | fail transient | say after", "r", max_attempts=2)
    first = (await site.client.attempts("t", "r")).items[0]
    page = await site.person("threads")
    pattern = "**/v1/threads/t/runs/r/attempts?*"
    await page.route(pattern, lambda route: route.abort())
    await site.open(page, f"threads/t?event={first.fence}-1")
    transcript = page.get_by_label("Transcript")
    await expect(transcript.get_by_role("alert")).to_contain_text("The run of the event could not be read")
    await expect(page.get_by_text("but not its run")).to_have_count(0)
    await page.unroute(pattern)
    await transcript.get_by_role("button", name="Try again").click()
    await expect(page).to_have_url(re.compile("run=r"))
