"""The page of a thread follows its stream: live words, lost connections, and what is no event."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from playwright.async_api import Route, expect

from runyard import App, Message, RunContext
from runyard.domain.states import RunStatus
from tests.console.conftest import Site, prompt, working

pytestmark = pytest.mark.timeout(120)


class Typist:
    """An agent that says the words of its prompt one after the other, and the last word when ``released`` is set."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def __call__(self, ctx: RunContext) -> None:
        text = ctx.input.text if ctx.input else ""
        *words, last = text.split()
        for word in words:
            await ctx.stream_text(f"{word} ")
        await self.released.wait()
        await ctx.stream_text(last)
        await ctx.append(Message.assistant(text, stop_reason="stop"))


async def test_a_prompt_streams_its_answer(site: Site) -> None:
    """A page that opens while the answer is written shows its first words, too."""
    typist = Typist()
    async with working(site.operator, App({"typist": typist})):
        page = await site.person("playground?agent=typist")
        await prompt(page, "one two three four")
        writing = page.get_by_label("assistant message, being written")
        await expect(writing).to_contain_text("one two three")
        [run] = (await site.client.runs()).items
        assert run.status is RunStatus.RUNNING
        late = await site.person(f"threads/{run.thread_id}")
        await expect(late.get_by_label("assistant message, being written")).to_contain_text("one two three")
        typist.released.set()
        for each in (page, late):
            await expect(each.get_by_label("assistant message", exact=True)).to_contain_text("one two three four")
            await expect(each.get_by_label("assistant message, being written")).to_have_count(0)


async def test_many_running_runs_leave_connections_for_requests(site: Site) -> None:
    """Browsers have six connections per server."""
    typist = Typist()
    async with working(site.operator, App({"typist": typist})):
        for n in range(8):
            await site.client.enqueue("t", "one two", f"r{n}", agent="typist", parallel=True)
        for n in range(8):
            await site.running("t", f"r{n}", messages=0)
        page = await site.person("threads/t?run=r0")
        await expect(page.get_by_title("live")).to_be_visible()
        await page.get_by_label("Inspector").get_by_role("button", name="Cancel").click()
        await expect(page.get_by_label("Inspector").get_by_text("cancelled").first).to_be_visible()
        typist.released.set()


def frame(data: object, id: str = "") -> str:
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"id: {id}\n" if id else "") + f"data: {text}\n\n"


def event(type: str, data: Any, thread: str = "t", run: str = "r") -> dict[str, Any]:
    return {"id": "7-1", "type": type, "thread_id": thread, "run_id": run, "data": data}


FOREIGN = (
    *("not JSON", "null", "[]", "7", "{}", {"type": "message.delta"}, event("message.delta", None)),
    event("message.delta", {"message_id": "m", "text": "of another thread"}, thread="other"),
    event("message.completed", {"message": None}),
    event("message.completed", {"message": {"id": "m", "content": "no parts"}}),
    event("message.delta", {"message_id": "__proto__", "text": "", "tool_call": {"id": "constructor"}}, run="__proto__"),
    event("tool.started", {"call_id": "__proto__", "name": "__proto__"}, run="constructor"),
)


async def test_what_is_no_event_of_the_thread_changes_nothing(site: Site) -> None:
    """The page reads all of it, shows what comes after it, and goes on after its last id."""
    await site.client.store_message("t", "hello")
    page = await site.person("threads")
    body = "".join(frame(each, f"x{n}") for n, each in enumerate(FOREIGN)) + frame(event("gap", {}), "last")
    asked: list[str | None] = []
    again = asyncio.Event()

    async def answer(route: Route) -> None:
        asked.append(await route.request.header_value("last-event-id"))
        await route.fulfill(status=200, content_type="text/event-stream", body=body if len(asked) == 1 else ": \n\n")
        if len(asked) > 1:
            again.set()

    await page.route("**/v1/threads/t/stream", answer)
    await site.open(page, "threads/t")
    await expect(page.get_by_text("Events were lost here.")).to_be_visible()
    await expect(page.get_by_label("user message")).to_contain_text("hello")
    await expect(page.get_by_label("Transcript")).not_to_contain_text("of another thread")
    await asyncio.wait_for(again.wait(), 30)
    assert asked[:2] == [None, "last"]


async def test_a_lost_event_leaves_no_message_being_written(site: Site) -> None:
    """The page reads the messages again after any gap, also one that names no thread."""
    typist = Typist()
    typist.released.set()
    async with working(site.operator, App({"typist": typist})):
        await site.say("t", "one two", "r", agent="typist")
    stored = (await site.client.messages("t")).items[-1]
    page = await site.person("threads")
    lost = event("message.delta", {"message_id": stored.id, "text": "one"}, run="r")
    body = frame(lost, "1") + frame({**event("gap", {}, thread="", run=""), "id": None})
    bodies = [body]

    async def answer(route: Route) -> None:
        if bodies:
            await route.fulfill(status=200, content_type="text/event-stream", body=bodies.pop())
        else:
            await route.fulfill(status=204)

    await page.route("**/v1/threads/t/stream", answer)
    await site.open(page, "threads/t")
    await expect(page.get_by_text("Events were lost here.")).to_be_visible()
    await expect(page.get_by_label("assistant message", exact=True)).to_contain_text("one two")
    await expect(page.get_by_label("assistant message, being written")).to_have_count(0)


async def test_the_events_of_a_run_continue_after_the_stream_of_a_stopped_process(site: Site) -> None:
    """The stream of a run ends with the last event of the run, or without it if the API process stops."""
    await site.client.enqueue("t", "hello", "r")
    page = await site.person("threads")

    async def answer(route: Route) -> None:
        last = await route.request.header_value("last-event-id")
        id, type = ("1-1", "run.started") if last is None else ("1-2", "run.completed")
        body = frame({**event(type, {}, run="r"), "id": id}, id)
        await route.fulfill(status=200, content_type="text/event-stream", body=body)

    await page.route("**/v1/threads/t/runs/r/stream", answer)
    await site.open(page, "threads/t?run=r&event=1-2")
    await expect(page.locator(".event-row")).to_contain_text(["run.started", "run.completed"])


async def test_a_page_that_was_left_asks_nothing(site: Site) -> None:
    """Although it was left during a reading, and something had asked for another one."""
    await site.client.store_message("t", "hello")
    page = await site.person("threads/t")
    await expect(page.get_by_label("user message")).to_contain_text("hello")
    await expect(page.get_by_title("live")).to_be_visible()
    await page.clock.install()
    await page.route("**/v1/threads/t/messages?**", lambda route: None)  # without an answer
    async with page.expect_request(lambda request: "/messages?" in request.url):
        await prompt(page, "say 1")
    await prompt(page, "say 2")
    await expect(page.get_by_role("textbox", name="Prompt")).to_have_value("")
    await page.clock.run_for(1000)
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Threads").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Threads")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.clock.run_for(60_000)
    assert [each for each in asked if "/v1/threads/t/" in each] == []
