"""No text that a user or a model can set executes anything, and no page tries what its policy forbids.

``RUNYARD_TEST_PAYLOADS=200`` is the long form.
"""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import quote

import pytest
from playwright.async_api import Page, expect

from runyard import App, Client, Message, RunContext
from runyard.models import TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from tests.console.conftest import Site, working
from tests.console.payloads import PAYLOADS

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

CHOSEN: Final = PAYLOADS[:: len(PAYLOADS) // int(os.environ.get("RUNYARD_TEST_PAYLOADS", "50"))]
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


async def hostile(ctx: RunContext) -> None:
    """Say the prompt in every part of a message. Then fail with it, ask it, or end."""
    text = ctx.input.text if ctx.input else ""
    number = int(ctx.run_id.partition(":")[0])
    if not any(message.run_id == ctx.run_id and message.role == "assistant" for message in await ctx.history()):
        await ctx.stream_text(text)
        call = ToolCallPart(id=f"c{number}", name=line(text), arguments={text: [text]})
        await ctx.append(Message.assistant([ThinkingPart(text=text), TextPart(text=text), call], stop_reason="tool_calls"))
        await ctx.append(
            Message.tool(ToolResultPart(call_id=call.id, content=text, is_error=bool(number % 2), name=line(text)))
        )
    asks = number % PER_THREAD == PER_THREAD - 1
    if number % 3 == 0 and not asks:
        raise ValueError(text)
    if asks:
        schema = {
            "type": "object",
            "title": text,
            "description": text,
            "required": [text],
            "properties": {text: {"enum": [text]}},
        }
        await ctx.ask(text, schema)
    await ctx.append(Message.assistant(text, stop_reason="stop", metadata={text: text}))


async def fill(client: Client) -> None:
    """Store each payload as a prompt, ids, a title, tags, a label, a queue's name, and in the messages of a run."""
    handles = []
    for n, text in enumerate(CHOSEN):
        thread = f"h{n // PER_THREAD}"
        handles.append(await client.enqueue(thread, text, line(f"{n}:{text}"), agent="hostile", metadata={text: text}))
        await client.create_thread(line(f"{n}{text}"), title=text, tags={f"k{n}": text})
    for handle in handles:
        if int(handle.run_id.partition(":")[0]) % PER_THREAD != PER_THREAD - 1:
            await handle.result(60)


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
    async with working(site.operator, App({"hostile": hostile})):
        await fill(site.client)
        page = await site.person()
        left = await watched(page, site)
        for n in range(len(CHOSEN) // PER_THREAD):
            await site.client.set_label(f"h{n}", line(CHOSEN[n])[:60])
            await site.open(page, f"threads/h{n}")
            await page.get_by_label("Request").wait_for()
            while await page.get_by_role("button", name="Older messages").count():
                await page.get_by_role("button", name="Older messages").click()
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
    page = await site.person(operates=True, name=line(CHOSEN[0])[:100])
    left = await watched(page, site)
    for path in ("queues", "workers", "limits", "webhooks", "doctor"):
        await site.open(page, f"operate/{path}")
        await check_all(page)
    assert left == []
