"""The answers to requests: what a person reads and types is what the agent gets."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Page, Route, expect

from runyard import Message
from runyard.domain.messages import DocumentPart, Part, TextPart
from runyard.domain.requests import HitlRequest
from runyard.domain.size_limits import JsonObject
from tests.console.conftest import Site
from tests.support.fleet import until

pytestmark = pytest.mark.timeout(120)

LARGE = 12345678901234567891
"""An integer that a double rounds."""


async def asked(site: Site, kind: str, payload: JsonObject, schema: JsonObject | None = None) -> Page:
    """Store a pending request, and open the inbox."""
    await site.client.create_thread("t")
    request = HitlRequest.model_validate({"kind": kind, "payload": payload, "answer_schema": schema})
    await site.client.backend.checkpointer.save_pending_request("t", request)
    return await site.person("inbox")


async def answered(site: Site, page: Page) -> object:
    """Wait until the inbox is empty, and return the answer that is stored."""
    await expect(page.get_by_text("No request waits for an answer")).to_be_visible()
    [request] = (await site.client.requests(pending=False)).items
    return request.answer


async def test_an_approval_with_edits_keeps_each_digit(site: Site) -> None:
    call: JsonObject = {"name": "pay", "arguments": {"account": LARGE, "amount": 1.5, "note": "12345678901234567890n"}}
    page = await asked(site, "approval", {"question": "Pay?", "tool_call": call})
    await expect(page.get_by_label("Arguments", exact=True)).to_contain_text(f'"account": {LARGE},')
    await page.get_by_role("button", name="Edit arguments…").click()
    field = page.get_by_label("Arguments of pay")
    await field.fill((await field.input_value()).replace("1.5", "2.5"))
    await page.get_by_role("button", name="Approve with these").click()
    assert await answered(site, page) == {
        "approved": True,
        "arguments": {"account": LARGE, "amount": 2.5, "note": "12345678901234567890n"},
    }


async def test_a_form_sends_what_is_typed(site: Site) -> None:
    """Numbers keep their digits while somebody types. A field that is cleared, and is not required, is not sent."""
    text: JsonObject = {"type": "string"}
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "rate": {"type": "number"},
            "account": {"type": ["integer", "null"]},
            "note": text,
            "size": {"enum": ["small", "large"]},
        },
        "required": ["rate", "account"],
    }
    page = await asked(site, "question", {"question": "How much?"}, schema)
    rate = page.get_by_label("rate")
    await rate.fill("")
    await rate.press_sequentially("-0.05")
    await expect(rate).to_have_value("-0.05")
    await page.get_by_label("account").fill(str(LARGE))
    await page.get_by_label("note").fill("x")
    await page.get_by_label("note").fill("")
    await page.get_by_label("size").select_option("large")
    await page.get_by_label("size").select_option("–")
    await page.get_by_role("button", name="Answer").click()
    assert await answered(site, page) == {"rate": -0.05, "account": LARGE}


async def test_an_answer_is_sent_once(site: Site) -> None:
    """Not empty, not twice at once, and with the same key after a lost reply."""
    page = await asked(site, "question", {"question": "Who?"})
    keys: list[str] = []

    async def lose(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        await route.fetch()
        await route.abort()

    await page.route("**/respond", lose)
    button = page.get_by_role("button", name="Answer")
    field = page.get_by_label("Answer", exact=True)
    await expect(field).to_be_editable()
    await expect(button).to_be_disabled()
    await field.fill("Ann")
    await page.locator("form.answer-body").evaluate("form => { form.requestSubmit(); form.requestSubmit(); }")
    await expect(page.get_by_role("alert")).to_be_visible()
    assert len(keys) == 1
    await button.click()
    await expect(button).to_be_enabled()
    assert len(keys) == 2 and keys[0] == keys[1]


async def test_a_late_answer_leaves_the_next_form_alone(site: Site) -> None:
    for thread in ("t1", "t2"):
        await site.client.create_thread(thread)
        request = HitlRequest(kind="question", payload={"question": f"Who in {thread}?"})
        await site.client.backend.checkpointer.save_pending_request(thread, request)
    page = await site.person("inbox")
    released = asyncio.Event()

    async def hold(route: Route) -> None:
        await released.wait()
        await route.continue_()

    await page.route("**/respond", hold)
    await page.get_by_label("Answer", exact=True).fill("Ann")
    await page.get_by_role("button", name="Answer").click()
    await page.get_by_role("button", name="Who in t2?").click()
    await expect(page.get_by_role("heading", name="Who in t2?")).to_be_visible()
    await page.get_by_label("Answer", exact=True).fill("Bob")
    released.set()
    await expect(page.get_by_text("Answered")).to_be_visible()
    await expect(page.get_by_role("button", name="Who in t1?")).to_have_count(0)
    await expect(page.get_by_label("Answer", exact=True)).to_have_value("Bob")


async def test_what_was_typed_stays_after_the_answer_of_somebody_else(site: Site) -> None:
    """In the inbox. Nothing is said if nothing was typed."""
    page = await asked(site, "question", {"question": "Who?"})
    idle = await site.person("inbox")
    await page.get_by_label("Answer", exact=True).fill("Ann")
    await expect(idle.get_by_label("Answer", exact=True)).to_be_visible()
    await site.client.respond("t", "Bob", answered_by="bert")
    for each in (page, idle):
        await expect(each.get_by_text("Answered by bert, ")).to_be_visible()
    await expect(page.get_by_text("answered by bert while you typed")).to_be_visible()
    await expect(page.get_by_label("What you typed")).to_have_text("Ann")
    await expect(idle.get_by_label("What you typed")).to_have_count(0)
    await page.get_by_role("button", name="Discard what you typed").click()
    await expect(page.get_by_label("What you typed")).to_have_count(0)
    await expect(page.get_by_label("Answer", exact=True)).to_have_text("Bob")


@pytest.mark.usefixtures("workers")
async def test_a_failing_refresh_leaves_the_form_of_a_thread(site: Site) -> None:
    """In the transcript and in the inspector. Each says who answered, as soon as the page can read it."""
    await site.client.enqueue("t", "approve refund 1", "q")
    await until(lambda: waiting(site))
    [request] = (await site.client.requests()).items
    page = await site.person(f"threads/t?request={request.request_id}")
    places = [page.get_by_role("region", name="Request"), page.get_by_label("Inspector")]
    for place in places:
        await place.get_by_role("button", name="Deny…").click()
        await place.get_by_label("Reason").fill("too much")
    pattern = f"**/v1/requests/{request.request_id}"
    await page.route(pattern, lambda route: route.abort())
    await site.client.respond("t", True, answered_by="bert")
    await expect(places[1].get_by_role("alert")).to_be_visible()
    for place in places:
        await expect(place.get_by_label("Reason")).to_have_value("too much")
    await page.unroute(pattern)
    await places[1].get_by_role("button", name="Deny").click()
    for place in places:
        await expect(place.get_by_text("answered by bert while you typed")).to_be_visible()
        await expect(place.get_by_label("What you typed")).to_have_text("too much")


@pytest.mark.usefixtures("workers")
async def test_keys_that_follow_a_form_are_no_commands(site: Site) -> None:
    """Somebody else answers while a person types: what the person goes on to type does nothing. Discarding frees the keys."""
    await site.client.enqueue("t", "approve refund 1", "q")
    await until(lambda: waiting(site))
    page = await site.person("threads/t")
    posted: list[str] = []
    page.on("request", lambda request: posted.append(request.url) if request.method == "POST" else None)
    region = page.get_by_role("region", name="Request")
    await region.get_by_role("button", name="Deny…").click()
    await region.get_by_label("Reason").press_sequentially("too much fo")
    await site.client.respond("t", True, answered_by="bert")
    await expect(region.get_by_text("answered by bert while you typed")).to_be_visible()
    await page.keyboard.type("r us")
    await expect(region.get_by_label("What you typed")).to_have_text("too much fo")
    await region.get_by_role("button", name="Discard what you typed").click()
    await expect(page.get_by_label("Transcript")).to_be_focused()
    await page.keyboard.press("r")
    await expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
    await page.keyboard.press("Space")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert posted == []
    for thread in ("t1", "t2"):
        await site.client.create_thread(thread)
        request = HitlRequest(kind="question", payload={"question": f"Who in {thread}?"})
        await site.client.backend.checkpointer.save_pending_request(thread, request)
    await site.open(page, "inbox")
    field = page.get_by_label("Answer", exact=True)
    await expect(field).to_be_editable()
    await field.press_sequentially("a long tal")
    await site.client.respond("t1", "Bob", answered_by="bert")
    await expect(page.get_by_text("answered by bert while you typed")).to_be_visible()
    await page.keyboard.type("k")
    await expect(page.get_by_label("What you typed")).to_have_text("a long tal")
    await page.get_by_role("button", name="Discard what you typed").click()
    await page.keyboard.press("k")
    await expect(page.get_by_role("heading", name="Who in t2?")).to_be_visible()


@pytest.mark.usefixtures("workers")
async def test_the_form_of_a_cancelled_run_keeps_what_was_typed(site: Site) -> None:
    """In the transcript, which finds out by itself and then asks no more, and in the inspector, once somebody answers."""
    await site.client.enqueue("t", "approve refund 1", "q")
    await until(lambda: waiting(site))
    [request] = (await site.client.requests()).items
    page = await site.person("threads")
    await page.clock.install()
    await site.open(page, f"threads/t?request={request.request_id}")
    inline, inspector = page.get_by_role("region", name="Request"), page.get_by_label("Inspector")
    for place in (inline, inspector):
        await place.get_by_role("button", name="Deny…").click()
        await place.get_by_label("Reason").fill("too much")
    await site.client.cancel("t", "q")
    await expect(inline.get_by_text("no longer waits for an answer")).to_be_visible()
    read: list[str] = []
    page.on("request", lambda each: read.append(each.url) if each.url.endswith(request.request_id) else None)
    await page.clock.run_for(11_000)
    assert read == []
    await inspector.get_by_role("button", name="Deny").click()
    for place in (inspector, inline):
        await expect(place.get_by_text("no longer waits for an answer")).to_be_visible()
        await expect(place.get_by_label("What you typed")).to_have_text("too much")
        await place.get_by_role("button", name="Discard what you typed").click()
        await expect(page.get_by_label("What you typed")).to_have_count(1 if place is inspector else 0)


async def waiting(site: Site) -> bool:
    return len((await site.client.requests()).items) == 1


@pytest.mark.usefixtures("workers")
async def test_an_edited_prompt_keeps_its_other_parts(site: Site) -> None:
    content: list[Part] = [TextPart(text="say see"), DocumentPart(data="eA==", media_type="text/plain", name="a.txt")]
    await site.client.create_thread("t")
    await site.client.store_message("t", Message(role="user", content=content))
    page = await site.person("threads/t")
    message = page.get_by_label("user message")
    await message.hover()
    await message.get_by_role("button", name="Edit and resend").click()
    await page.get_by_role("dialog").get_by_label("Message").fill("say seen")
    await page.get_by_role("dialog").get_by_role("button", name="Send").click()
    await expect(page.get_by_label("user message")).to_contain_text("say seen")
    await expect(page.get_by_label("user message")).to_contain_text("a.txt")
