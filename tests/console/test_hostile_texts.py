"""No text that a user or a model can set executes anything, and no page tries what its policy forbids.

A page shows many payloads at once: each text of a run, a thread, a message or a request has one, and many of them are in a list
or on a path. The inspector shows one run or message at a time: the short form selects some of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import pytest
from playwright.async_api import Page, TimeoutError, expect

from runyard import App, Client, Message, Prompt, RunContext, RunHandle
from runyard.models import DocumentPart, HitlRequest, JsonObject, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from runyard.ports.workers import BlockedLoop, WorkerInfo
from tests.console.conftest import Site, working
from tests.console.payloads import PAYLOADS
from tests.support.long_form import LONG

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

PER_RUN: Final = 5
"""Payloads in the messages of one run."""
PER_THREAD: Final = 10
"""Runs of one thread whose messages have payloads."""
FIELDS: Final = 40
"""Payloads in the fields of one request."""
EVERY: Final = 1 if LONG else 5
"""The inspector shows each so many messages and runs of a thread."""
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
  window.touched ??= new WeakSet();
  for (const each of document.querySelectorAll("#main *")) {
    if (window.touched.has(each)) continue;
    window.touched.add(each);
    for (const type of ["mouseover", "focus", "pointerenter", "toggle"]) each.dispatchEvent(new Event(type));
  }
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


def schema_of(texts: Sequence[str]) -> JsonObject:
    """Return a schema of an answer that has the texts wherever a schema has text: a field for each, of each kind in turn."""
    kinds = [kinds_of(text)[n % len(kinds_of(text))] for n, text in enumerate(texts)]
    named = {f"{n}{text}": {"title": text, "description": text, **kinds[n]} for n, text in enumerate(texts)}
    named |= {text: kinds[n] for n, text in enumerate(texts[:20])}
    definitions = {line(text): {"title": text, "description": text} for text in texts}
    return {"type": "object", "title": texts[0], "required": [*named], "properties": named, "$defs": definitions}


def kinds_of(text: str) -> list[JsonObject]:
    """Return the kinds of fields, with the text in their values."""
    return [
        *({"type": each} for each in ("string", "boolean", "number", "array")),
        {"enum": [text, {text: text}]},
        {"type": "string", "default": text},
        {"type": "object", "properties": {text: {"const": text}}, "required": [text]},
        {"$ref": f"#/$defs/{line(text)}"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
    ]


async def hostile(ctx: RunContext) -> None:
    """Say some payloads in every part of a message. Then fail with them, ask them, let them be approved, or end.

    The messages of a run that fails are not on the path, so each run also says the payloads of the run before it.
    """
    number = int(ctx.run_id)
    texts = PAYLOADS[number * PER_RUN : (number + 1) * PER_RUN]
    text = texts[number % PER_RUN]
    so_far = PAYLOADS[(number // PER_THREAD) * PER_THREAD * PER_RUN : (number + 1) * PER_RUN]
    if not any(message.run_id == ctx.run_id and message.role == "assistant" for message in await ctx.history()):
        await ctx.stream_text(text)
        calls = [ToolCallPart(id=f"c{number}-{n}", name=line(each), arguments={each: [each]}) for n, each in enumerate(texts)]
        await ctx.step(echo, text, key=line(text))
        said = (*texts, *PAYLOADS[(number - 1) * PER_RUN : number * PER_RUN])
        parts = [
            *(ThinkingPart(text=each) for each in said),
            *(TextPart(text=each) for each in said),
            *(DocumentPart(url=each, name=each, media_type=each) for each in said),
            *calls,
        ]
        more = {"usage": Usage(requests=1), "provider_details": {"model": {"model": text}}, "metadata": {text: text}}
        await ctx.append(Message.assistant(parts, stop_reason="tool_calls", **more))
        for call, each in zip(calls, texts, strict=True):
            result = ToolResultPart(call_id=call.id, content=each, is_error=bool(number % 2), name=line(each))
            await ctx.append(Message.tool(result))
    asks = number % PER_THREAD == PER_THREAD - 1
    if number % 3 == 0 and not asks:
        raise ValueError("\n".join(texts))
    if asks and number % (2 * PER_THREAD) == PER_THREAD - 1:
        await ctx.ask(text, schema_of(so_far))
    if asks:
        asked = ToolCallPart(id=f"a{number}", name=line(text), arguments={text: [text]})
        await ctx.append(Message.assistant([asked], stop_reason="tool_calls"))
        await ctx.approve(asked, text, details={each: each for each in so_far})
    await ctx.append(Message.assistant(text, stop_reason="stop", metadata={text: text}))


async def fill(client: Client) -> None:
    """Store each payload as a prompt, ids, a title, tags, the name of an agent, in the messages of a run, as a question, and as
    a candidate of a fan-out."""
    waiting = [
        Prompt(f"w{n // FIELDS}", text, line(f"{n}:{text}"), queue="idle", agent=name(text), metadata={text: text})
        for n, text in enumerate(PAYLOADS)
    ]
    count = len(PAYLOADS) // PER_RUN
    agents = ("hostile", name(PAYLOADS[0]))
    executed = [Prompt(f"h{n // PER_THREAD}", PAYLOADS[n], f"{n}", agent=agents[n % 2]) for n in range(count)]
    handles = await client.enqueue_many([*executed, *waiting])
    await asyncio.gather(*(name_and_ask(client, n) for n in range(len(PAYLOADS))))
    for n, handle in enumerate(handles[:count]):
        assert isinstance(handle, RunHandle)
        if n % PER_THREAD != PER_THREAD - 1:
            await handle.result(120)
    await client.fork_many("h0", "1", messages=list(PAYLOADS[:20]), agent="parrot", run_id="many", wait=120)


async def name_and_ask(client: Client, number: int) -> None:
    """Make a thread that a payload names, with a pending request in which the payload is each text. Each so many payloads, the
    request has all payloads before it, too, as fields."""
    text = PAYLOADS[number]
    thread = line(f"{number}{text}")
    await client.create_thread(thread, title=text, tags={f"k{number}": text, line(text)[:60]: text}, agent=name(text))
    payload: JsonObject = {"question": text, "tool_call": {"name": text, "arguments": {text: text}}, text: text}
    if number % FIELDS == FIELDS - 1:
        payload |= {each: each for each in PAYLOADS[number - FIELDS + 1 : number]}
    request = HitlRequest(kind="approval", payload=payload, timeout=3600, on_deadline={"answer": {text: text}})
    await client.backend.checkpointer.save_pending_request(thread, request)


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


async def check_requests(page: Page, site: Site) -> None:
    """Check the requests that have many payloads. The list of the inbox has the questions of all."""
    for number in range(FIELDS - 1, len(PAYLOADS), FIELDS):
        [request] = (await site.client.requests(line(f"{number}{PAYLOADS[number]}"))).items
        await site.open(page, f"inbox?request={request.request_id}")
        await page.locator(".request").wait_for()
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
    agents = {"hostile": hostile, "parrot": parrot, name(PAYLOADS[0]): hostile}
    async with working(site.operator, App(agents, version=line(PAYLOADS[0])[:60])):
        await fill(site.client)
        page = await site.person()
        left = await watched(page, site)
        for n in range(len(PAYLOADS) // PER_RUN // PER_THREAD):
            for text in PAYLOADS[n::4]:
                await site.client.set_label(f"h{n}", line(text)[:60])
            await site.open(page, f"threads/h{n}")
            await page.get_by_role("region", name="Request").wait_for()
            older = page.get_by_role("button", name="Older messages")
            while await older.count():
                await check(page)
                with suppress(TimeoutError):  # the button was removed before the click
                    await older.click(timeout=2000)
            await check(page)
        for n in range(len(PAYLOADS) // FIELDS):
            await site.open(page, f"threads/w{n}")
            await expect(page.locator(".run-beside")).to_have_count(FIELDS)
            await check(page)
        await check_requests(page, site)
        asked = [each for n in range(4) for each in (await site.client.requests(f"h{n}")).items]
        assert {each.kind for each in asked} == {"question", "approval"}
        for each in asked:
            await site.open(page, f"threads/{each.thread_id}?request={each.request_id}")
            await page.locator(".request").wait_for()
            await check(page)
        for message in (await site.client.messages("h1")).items[::EVERY]:
            await site.open(page, f"threads/h1?message={message.id}")
            await page.get_by_label("Message as JSON").wait_for()
            await check(page)
        for run in (await site.client.runs("h0")).items[::EVERY]:
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
    for n, text in enumerate(PAYLOADS[::8]):
        await site.client.enqueue(f"parked{n}", text, "r", queue=line(text))
        await site.client.subscribe_webhook(f"https://hooks.example/?{quote(text)}")
        await site.operator.set_limit("queued_per_tenant", 1000, subject=line(text))
        worker = line(f"{n}{text}")
        registered = WorkerInfo(worker_id=worker, queues=[line(text)], agents={name(text): line(text)}, app_version=line(text))
        await site.operator.backend.workers.register(registered)
        await site.operator.backend.workers.report_block(worker, BlockedLoop(seconds=1.0, place=text, stack=text))
        await site.operator.backend.workers.report_redis(worker, text)
    page = await site.person(operates=True, name=line(PAYLOADS[0])[:100])
    left = await watched(page, site)
    for path in ("queues", "workers", "limits", "webhooks", "doctor"):
        await site.open(page, f"operate/{path}")
        await check_all(page)
    assert left == []
