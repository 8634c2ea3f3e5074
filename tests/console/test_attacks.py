"""Hostile links, hostile values in the browser's stores, and answers that are not those of the API, change nothing and freeze
nothing. The key leaves the page only in the header of requests to its own server."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

import pytest
from playwright.async_api import Page, Request, Route, expect

from runyard.models import new_id
from tests.console.conftest import EVERYTHING, LOG_IN, Site
from tests.console.payloads import PAYLOADS
from tests.console.test_hostile_texts import WATCH, check, watched
from tests.support.long_form import LONG

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("workers")]

VALUES: Final = (
    *("javascript:alert(1)", "//evil.example/x", "../../v1/threads", "..", ".", "%2e%2e%2f", "\\\\evil.example\\x", "a" * 4000),
    *("#x", "?x=1", "'] , [x='", ")*{}", "__proto__", "constructor", "toString", "\ud7ff\ue000", "\x7f", "null", "-1", " "),
    *PAYLOADS[:8],
)
TEMPLATES: Final = (
    *("javascript:alert('{trace_id}')", " javascript:alert(1)//", "JAVASCRIPT:alert(1)", "java\tscript:alert(1)"),
    *("data:text/html,{trace_id}", "vbscript:x", "blob:{trace_id}", "file:///{trace_id}", "{trace_id}", "//evil.example"),
)
NAMES: Final = ("leaf", "message", "run", "event", "request")
FROZEN_SECONDS: Final = 30.0
"""Seconds that the largest answer may take until the page shows it and reacts."""


async def sane(page: Page, site: Site) -> None:
    """Check that the page is still the console at its own server, and that nothing was executed."""
    await page.get_by_role("navigation", name="Pages").wait_for()
    assert page.url.startswith(f"{site.url}/console/")
    await check(page)


async def test_hostile_links_lead_nowhere_else(site: Site) -> None:
    await site.say("t", "say hello", "r")
    page = await site.person()
    left = await watched(page, site)
    values = VALUES if LONG else VALUES[::8]
    for value in values:
        found = quote(value, safe="")
        query = "&".join(f"{name}={found}" for name in NAMES)
        for path in (f"threads/t?{query}", f"inbox?request={found}", f"runs?thread={found}&text={found}&age={found}"):
            await site.open(page, path)
            await sane(page, site)
    for value in values:
        for path in (f"threads/{quote(value, safe='')}", f"operate/{quote(value, safe='')}", quote(value, safe="")):
            if value in ("..", ".") or "\n" in value:  # the browser resolves the dots; no id has a line break
                continue
            await site.open(page, path)
            await sane(page, site)
    assert left == []


async def test_a_link_to_a_missing_message_shows_the_end_of_its_thread(site: Site) -> None:
    await site.say("t", "say hello", "r")
    page = await site.person()
    for name in ("leaf", "message"):
        for id in (new_id(), "<b>no id</b>"):
            await site.open(page, f"threads/t?{name}={quote(id)}")
            await expect(page.get_by_label("assistant message")).to_contain_text("hello")
            await expect(page.get_by_text(f"The thread has no message {id}")).to_be_visible()


async def test_the_link_to_traces_is_a_web_address(site: Site) -> None:
    """Whatever the store of the browser has: another page of the origin may have written it."""
    await site.say("t", "say hello", "r")
    await site.client.enqueue("u", "say hello", "r")
    page = await site.person()
    context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def traced(route: Route) -> None:
        answer = await (await route.fetch()).json()
        await route.fulfill(json={**answer, "trace_context": context})

    await page.route("**/v1/threads/t/runs/r", traced)
    for template in TEMPLATES if LONG else TEMPLATES[::4]:
        await page.evaluate("(value) => localStorage.setItem('runyard.trace_url', value)", template)
        await site.open(page, "threads/t?run=r")
        await expect(page.get_by_role("button", name="set link")).to_be_visible()
        assert await page.locator(".field a").evaluate_all("links => links.map(a => a.href)") == []
    await page.get_by_role("button", name="set link").click()
    await page.get_by_role("dialog").get_by_label("URL").fill("javascript:alert('{trace_id}')")
    await page.get_by_role("dialog").get_by_role("button", name="Save").click()
    await expect(page.get_by_role("dialog")).to_contain_text("https://")
    await page.get_by_role("dialog").get_by_label("URL").fill("https://traces.example/{trace_id}?x=<b>")
    await page.get_by_role("dialog").get_by_role("button", name="Save").click()
    link = page.locator(".field a")
    assert await link.get_attribute("href") == "https://traces.example/0af7651916cd43dd8448eb211c80319c?x=%3Cb%3E"
    assert await link.get_attribute("rel") == "noopener noreferrer"


async def test_a_key_is_in_the_header_of_its_server_only(site: Site) -> None:
    """Not in a URL, a body, a referrer, a cookie, a title, or a store that outlives the tab."""
    await site.say("t", "say [elsewhere](https://evil.example/x) and hello", "r")
    _, key = await site.client.create_key("person", scopes=EVERYTHING)
    page = await site.visitor()
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    await page.add_init_script(WATCH)
    await page.goto(f"{site.url}/console/threads/t")
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Log in").click()
    for path in ("threads", "inbox", "runs", "playground", "operate", "threads/t?run=r"):
        await site.open(page, path)
        await page.get_by_role("heading", level=1).wait_for()
        assert key not in await page.content() and key not in page.url
    carried = 0
    for request in asked:
        headers = dict(request.headers)
        carried += key in headers.pop("authorization", "")
        assert request.url.startswith(site.url) or request.url.startswith("data:")
        assert key not in request.url and key not in (request.post_data or "") and key not in str(headers)
        assert not headers.get("referer")
    assert carried > 5
    kept = await page.evaluate("JSON.stringify([{...localStorage}, document.cookie, history.state, document.title, name])")
    assert key not in kept and "ry_" not in kept
    assert await page.evaluate("indexedDB.databases().then(found => found.length)") == 0
    link = page.get_by_role("link", name="elsewhere").first
    assert await link.get_attribute("rel") == "noopener noreferrer nofollow"
    await page.get_by_role("button", name="Log out").click()
    await page.get_by_label("API key").wait_for()
    assert await page.evaluate("sessionStorage.length") == 0


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


MILLION: Final = """
const real = fetch;
const one = (n) => ({thread_id: "thread " + n, tags: {}, usage: {input_tokens: 1, output_tokens: 1, cost: 0}});
const body = JSON.stringify({items: Array.from({length: 1e6}, (_, n) => one(n)), next: null});
const headers = {"content-type": "application/json"};
window.fetch = async (url, options) =>
  String(url).includes("/v1/threads?") ? new Response(body, {headers}) : real(url, options);
"""
"""Makes each list of threads one of a million."""
HALF: Final = r"\ud800 half \udc00 \ud83d"
"""Lone surrogates, as JSON escapes them."""
THREAD: Final = json.dumps(
    {
        **dict.fromkeys(("thread_id", "title", "agent", "parent_thread_id", "created_at", "updated_at"), "HALF"),
        "tags": {"HALF": "HALF"},
        "usage": dict.fromkeys(("requests", "input_tokens", "output_tokens", "cost", "seconds"), 1e308),
        "extra": {},
        "config": {},
    }
).replace("HALF", HALF)
MISSHAPEN: Final = (
    *("null", "7", '"text"', "[]", "{}", "true", "not JSON", "", '{"items":null}', '{"items":7,"next":7}', '{"items":{}}'),
    *('{"items":[null,7,"x",[],{}]}', deep(100_000), f'{{"items":[{deep(50_000)}]}}', '{"items":[],"__proto__":{"next":1}}'),
)


def always(body: str) -> Callable[[Route], Awaitable[None]]:
    """Return what answers each request with ``body``."""

    async def answer(route: Route) -> None:
        await route.fulfill(status=200, content_type="application/json", body=body.encode())

    return answer


async def answering(page: Page, body: str) -> None:
    """Answer every read of the page with ``body``, except who the caller is."""

    async def answer(route: Route) -> None:
        if route.request.url.endswith("/v1/whoami") or route.request.method != "GET":
            await route.continue_()
        else:
            await route.fulfill(status=200, content_type="application/json", body=body.encode())

    await page.unroute_all()
    await page.route("**/v1/**", answer)


@pytest.mark.slow
@pytest.mark.timeout(500)
async def test_answers_of_another_shape_break_no_page(site: Site) -> None:
    """A page shows a problem, or what it can, and its navigation goes on working. In the short form, one page gets each
    answer."""
    page = await site.person(operates=True)
    complaints, site.complaints = site.complaints, []
    parts = [f"operate/{part}" for part in ("queues", "workers", "limits", "webhooks", "doctor")]
    places = [
        "threads",
        "threads/t?run=r",
        "threads/t?message=m",
        "inbox?request=q",
        "runs",
        "playground?thread=a&other=b&view=diff",
    ]
    turns = itertools.cycle(places + parts)
    for body in MISSHAPEN:
        await answering(page, body)
        for path in itertools.islice(turns, len(places + parts) if LONG else 1):
            await site.open(page, path)
            await reacts(page)
    assert [each for each in site.complaints if "policy" in each.lower() or "trusted" in each.lower()] == []
    site.complaints = complaints


async def reacts(page: Page) -> None:
    """Check that the page draws and takes a click within FROZEN_SECONDS."""
    began = time.monotonic()
    await page.get_by_role("navigation", name="Pages").wait_for()
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    await page.get_by_role("link", name="Inbox").click()
    await expect(page.get_by_role("link", name="Inbox")).to_have_attribute("aria-current", "page")
    assert time.monotonic() - began < FROZEN_SECONDS


async def test_a_million_entries_do_not_freeze_a_list(site: Site) -> None:
    page = await site.person()
    await page.add_init_script(MILLION)
    await site.open(page, "threads")
    first = page.get_by_role("list", name="Threads").get_by_role("listitem").first
    await expect(first).to_contain_text("thread 0")
    await reacts(page)
    await page.go_back()
    await expect(first).to_be_visible()
    assert await page.evaluate("document.querySelectorAll('*').length") < 6000


async def test_half_characters_are_shown_and_linked(site: Site) -> None:
    page = await site.person()
    await answering(page, f'{{"items":[{THREAD}],"next":null}}')
    await site.open(page, "threads")
    row = page.get_by_role("list", name="Threads").get_by_role("listitem")
    await expect(row).to_contain_text("half")
    await row.get_by_role("link").click()
    await expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    assert "%EF%BF%BD" in page.url


async def test_huge_and_deep_values_of_a_message_are_shown_in_pieces(site: Site) -> None:
    """Arguments of a hundred thousand levels, a text of ten million characters, a million parts."""
    await site.say("t", "say hello", "r")
    [first, *_] = (await site.client.messages("t")).items
    page = await site.person()
    message: dict[str, Any] = {**first.model_dump(mode="json"), "role": "assistant", "content": []}
    call = json.dumps({"type": "tool_call", "id": "c", "name": "n", "arguments": {"a": 0}}).replace("0", deep(100_000))
    part = json.dumps({"type": "text", "text": "x"})
    for content in (call, json.dumps({"type": "text", "text": "y" * 10**7}), ",".join([part] * 10**5)):
        body = json.dumps(message).replace('"content": []', f'"content": [{content}]')
        await page.unroute_all()
        await page.route(f"**/v1/threads/t/messages/{first.id}", always(body))
        await page.route("**/v1/threads/t/messages?*", always(f'{{"items":[{body}],"next":null}}'))
        await site.open(page, f"threads/t?message={first.id}")
        await expect(page.get_by_label("Inspector")).to_contain_text(first.id)
        for head in await page.locator("article .fold-head").all():
            await head.click()
        await reacts(page)
        assert await page.evaluate("document.querySelectorAll('*').length") < 6000


async def test_a_theme_that_is_none_is_not_taken(site: Site) -> None:
    page = await site.visitor()
    _, key = await site.client.create_key("person", scopes=EVERYTHING)
    await page.add_init_script(LOG_IN.format(key=key) + "localStorage.setItem('runyard.theme', '<script>')")
    await page.goto(f"{site.url}/console/")
    await page.get_by_role("navigation", name="Pages").wait_for()
    assert await page.evaluate("document.documentElement.dataset.theme") in ("dark", "light")
