"""No text that a user or a model can set executes anything, and no page tries what its policy forbids.

``RUNYARD_TEST_PAYLOADS=200`` is the long form.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import pytest
from playwright.async_api import Page, TimeoutError, expect

from runyard import App, Client, Message, RunContext
from runyard.models import DocumentPart, JsonObject, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from runyard.ports.workers import BlockedLoop, WorkerInfo
from tests.console.conftest import Site, working
from tests.console.payloads import PAYLOADS

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

CHOSEN: Final = PAYLOADS[:: len(PAYLOADS) // int(os.environ.get("RUNYARD_TEST_PAYLOADS", "25"))]
PER_THREAD: Final = 10
WATCH: Final = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(event.violatedDirective + " " + event.sample));
for (const name of ["alert", "confirm", "prompt"]) window[name] = () => window.violations.push("executed " + name);
"""
OPEN_FOLDS: Final = """async () => {
  for (let turn = 0; turn < 3; turn++) {
    for (const each of document.querySelectorAll(".fold-head[aria-expanded=false]")) each.click();
    await new Promise(requestAnimationFrame);
  }
  for (const each of document.querySelectorAll("#main *")) for (const type of ["mouseover", "focus", "pointerenter", "toggle"])
    each.dispatchEvent(new Event(type));
}"""


SCROLL: Final = """async (box) => {
  const before = box.scrollTop;
  box.scrollBy(0, box.clientHeight);
  await new Promise(requestAnimationFrame);
  return box.scrollTop > before;
}"""


def line(text: str) -> str:
    """Return the text as an id: of printable characters, and short enough."""
    return "".join(each if each.isprintable() else " " for each in text)[:200]


def name(text: str) -> str:
    """Return the text as the name of an agent."""
    return line(text).replace("/", "\N{DIVISION SLASH}")


async def parrot(ctx: RunContext) -> None:
    """Say the prompt, or fail with it."""
    text = ctx.input.text if ctx.input else ""
    if len(text) % 2:
        raise ValueError(text)
    await ctx.append(Message.assistant(text, stop_reason="stop"))


async def echo(text: str) -> str:
    return text


def schema_of(text: str) -> JsonObject:
    """Return a schema of an answer, with a field of each kind, that has the text wherever a schema has text."""
    words = {"title": text, "description": text}
    kinds: list[JsonObject] = [
        *({"type": each} for each in ("string", "boolean", "number", "array")),
        {"enum": [text, {text: text}]},
        {"type": "string", "default": text},
        {"type": "object", "properties": {text: {"const": text}}, "required": [text]},
        {"$ref": f"#/$defs/{line(text)}"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
    ]
    properties: JsonObject = {f"{n}{text}": {**words, **each} for n, each in enumerate(kinds)}
    return {"type": "object", **words, "required": [*properties], "properties": properties, "$defs": {line(text): words}}


async def hostile(ctx: RunContext) -> None:
    """Say the prompt in every part of a message. Then fail with it, ask it, let it be approved, or end."""
    text = ctx.input.text if ctx.input else ""
    number = int(ctx.run_id.partition(":")[0])
    if not any(message.run_id == ctx.run_id and message.role == "assistant" for message in await ctx.history()):
        await ctx.stream_text(text)
        call = ToolCallPart(id=f"c{number}", name=line(text), arguments={text: [text]})
        await ctx.step(echo, text, key=line(text))
        parts = [ThinkingPart(text=text), TextPart(text=text), DocumentPart(url=text, name=text, media_type=text), call]
        more = {"usage": Usage(requests=1), "provider_details": {"model": {"model": text}}, "metadata": {text: text}}
        await ctx.append(Message.assistant(parts, stop_reason="tool_calls", **more))
        await ctx.append(
            Message.tool(ToolResultPart(call_id=call.id, content=text, is_error=bool(number % 2), name=line(text)))
        )
    asks = number % PER_THREAD == PER_THREAD - 1
    if number % 3 == 0 and not asks:
        raise ValueError(text)
    if asks and number % (2 * PER_THREAD) == PER_THREAD - 1:
        await ctx.ask(text, schema_of(text))
    if asks:
        asked = ToolCallPart(id=f"a{number}", name=line(text), arguments={text: [text]})
        await ctx.append(Message.assistant([asked], stop_reason="tool_calls"))
        await ctx.approve(asked, text, details={text: text})
    await ctx.append(Message.assistant(text, stop_reason="stop", metadata={text: text}))


async def fill(client: Client) -> None:
    """Store each payload as a prompt, ids, a title, tags, a label, the name of an agent, in the messages of a run, and as a
    candidate of a fan-out."""
    handles = []
    for n, text in enumerate(CHOSEN):
        thread = f"h{n // PER_THREAD}"
        agent = "hostile" if n % 2 else name(CHOSEN[0])
        handles.append(await client.enqueue(thread, text, line(f"{n}:{text}"), agent=agent, metadata={text: text}))
        tags = {f"k{n}": text, line(text)[:60]: text}
        await client.create_thread(line(f"{n}{text}"), title=text, tags=tags, agent=name(text))
    for handle in handles:
        if int(handle.run_id.partition(":")[0]) % PER_THREAD != PER_THREAD - 1:
            await handle.result(60)
    await client.fork_many("h0", line(f"1:{CHOSEN[1]}"), messages=list(CHOSEN[:10]), agent="parrot", run_id="many", wait=60)


async def check(page: Page) -> None:
    await page.evaluate(OPEN_FOLDS)
    assert await page.evaluate("window.violations") == []


async def check_all(page: Page) -> None:
    """Check what the page shows, and each part of its list."""
    await page.get_by_role("heading", level=1).wait_for()
    await check(page)
    if not await page.locator(".virtual").count():
        return
    await page.locator(".virtual [role=listitem]").first.wait_for()
    while await page.locator(".virtual").evaluate(SCROLL):
        await check(page)


async def watched(page: Page, site: Site) -> list[str]:
    """Watch a page. Return the list of what it opens, shows or asks elsewhere."""
    left: list[str] = []
    page.on("dialog", lambda dialog: left.append(dialog.message))
    page.on("request", lambda request: left.append(request.url) if not request.url.startswith((site.url, "data:")) else None)
    page.on("popup", lambda popup: left.append(popup.url))
    await page.add_init_script(WATCH)
    return left


async def test_stored_payloads_execute_nothing(site: Site) -> None:
    agents = {"hostile": hostile, "parrot": parrot, name(CHOSEN[0]): hostile}
    async with working(site.operator, App(agents, version=line(CHOSEN[0])[:60])):
        await fill(site.client)
        page = await site.person()
        left = await watched(page, site)
        for n in range(len(CHOSEN) // PER_THREAD):
            await site.client.set_label(f"h{n}", line(CHOSEN[n])[:60])
            await site.open(page, f"threads/h{n}")
            await page.get_by_role("region", name="Request").wait_for()
            older = page.get_by_role("button", name="Older messages")
            while await older.count():
                with suppress(TimeoutError):  # the button was removed before the click
                    await older.click(timeout=2000)
            await check(page)
        asked = (await site.client.requests()).items
        assert {each.kind for each in asked} == {"question", "approval"}
        for each in asked:
            for path in (f"inbox?request={each.request_id}", f"threads/{each.thread_id}?request={each.request_id}"):
                await site.open(page, path)
                await page.locator(".request").wait_for()
                await check(page)
        for message in (await site.client.messages("h1")).items[:6]:
            await site.open(page, f"threads/h1?message={message.id}")
            await page.get_by_label("Message as JSON").wait_for()
            await check(page)
        for run in (await site.client.runs("h0")).items[:4]:
            await site.open(page, f"threads/h0?run={quote(run.run_id, safe='')}")
            for tab in ("State", "Attempts", "Events", "JSON"):
                await page.get_by_role("tab", name=tab).click()
                await check(page)
        for path in ("threads", "inbox", "runs", "runs?status=failed", "playground?thread=h0&other=h1&view=diff"):
            await site.open(page, path)
            await check_all(page)
        await site.open(page, "threads/%3Cimg src=x onerror=alert(1)%3E?message=%3Cscript%3E")
        await expect(page.get_by_text("There is no thread")).to_be_visible()
        await check(page)
        assert left == []


async def test_what_tenants_name_executes_nothing_for_an_operator(site: Site) -> None:
    for n, text in enumerate(CHOSEN[:10]):
        await site.client.enqueue(f"parked{n}", text, "r", queue=line(text))
        await site.client.subscribe_webhook(f"https://hooks.example/?{quote(text)}")
        await site.operator.set_limit("queued_per_tenant", 1000, subject=line(text))
        worker = line(f"{n}{text}")
        registered = WorkerInfo(worker_id=worker, queues=[line(text)], agents={name(text): line(text)}, app_version=line(text))
        await site.operator.backend.workers.register(registered)
        await site.operator.backend.workers.report_block(worker, BlockedLoop(seconds=1.0, place=text, stack=text))
        await site.operator.backend.workers.report_redis(worker, text)
    page = await site.person(operates=True, name=line(CHOSEN[0])[:100])
    left = await watched(page, site)
    for path in ("queues", "workers", "limits", "webhooks", "doctor"):
        await site.open(page, f"operate/{path}")
        await check_all(page)
    assert left == []
