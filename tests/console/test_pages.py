"""The other pages: many runs at once, scopes, operation, the playground, the login."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI
from playwright.async_api import Route, expect

from runyard.domain.requests import HitlRequest
from runyard.domain.size_limits import JsonObject
from runyard.domain.states import RunStatus
from runyard.execution.steps import ANSWER_SCHEMA
from runyard_api.http.app import asgi_app
from runyard_api.http.settings import ApiSettings
from tests.console.conftest import EVERYTHING, SECRET, Site, prompt
from tests.support.api_server import serving
from tests.support.fleet import until

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("workers")]

RERENDER = """async (field) => {
  field.focus();
  document.execCommand("insertText", false, "n");
  document.querySelector("[aria-label='Select all shown']").click();
  await new Promise(requestAnimationFrame);
  return field.value;
}"""
"""Type a letter and change another part of the page before the search for it begins. Returns what the field has then."""
ENTER_TWICE = """(field) => {
  const enter = {key: "Enter", bubbles: true, cancelable: true};
  for (let n = 0; n < 2; n++) field.dispatchEvent(new KeyboardEvent("keydown", enter));
}"""


async def test_failed_runs_are_redriven_together(site: Site) -> None:
    """The confirmation says how many. Runs that do not fit the filter stay as they are."""
    for n in range(3):
        await site.say(f"t{n}", "fail", f"r{n}", max_attempts=1)
    await site.say("u", "say fine", "fine")
    page = await site.person("runs?error=agent_error")
    await expect(page.get_by_role("listitem").filter(has_text="the script failed")).to_have_count(3)
    await page.get_by_role("button", name="Redrive all…").click()
    await expect(page.get_by_role("dialog")).to_contain_text("Redrive 3 runs?")
    await page.get_by_role("dialog").get_by_role("button", name="Redrive 3 runs").click()
    await expect(page.get_by_text("Redriven: 3 of 3")).to_be_visible()
    runs = (await site.client.runs()).items
    assert {run.run_id: run.attempt > 1 or run.status is RunStatus.QUEUED for run in runs} == {
        "r0": True, "r1": True, "r2": True, "fine": False,
    }  # fmt: skip


async def test_selected_runs_are_cancelled(site: Site) -> None:
    for n in range(3):
        await site.client.enqueue(f"t{n}", f"say {n}", f"r{n}", queue="idle")
    page = await site.person("runs")
    for n in (0, 2):
        await page.get_by_label(f"Select run r{n}").check()
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel 2 runs").click()
    await expect(page.get_by_text("Cancelled: 2 of 2")).to_be_visible()
    assert [(await site.client.run(f"t{n}", f"r{n}")).status for n in range(3)] == ["cancelled", "queued", "cancelled"]


async def test_runs_are_found_by_text_and_queue(site: Site) -> None:
    await site.client.enqueue("t1", "say Lisbon", "r1", queue="slow")
    await site.client.enqueue("t2", "say Porto", "r2")
    page = await site.person("runs")
    rows = page.get_by_role("listitem").filter(has=page.get_by_role("checkbox"))
    await expect(rows).to_have_count(2)
    await page.get_by_role("searchbox").fill("lisb")
    await expect(rows).to_have_count(1)
    await site.open(page, "runs?queue=slow")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("Lisbon")


async def test_a_search_says_that_it_stopped(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is examined further until somebody asks for it."""
    monkeypatch.setattr("runyard.client.runs.MAX_SEARCHED", 100)
    await site.client.enqueue("old", "a needle", "needle", queue="idle")
    for n in range(250):
        await site.client.enqueue("t", f"say {n}", f"r{n}", queue="idle")
    page = await site.person("runs?text=needle")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "cursor=" in request.url else None)
    await expect(page.get_by_text("None found so far")).to_be_visible()
    further = page.get_by_role("button", name="Search further")
    await expect(page.get_by_text("The search stopped here")).to_be_visible()
    assert asked == []
    await further.click()
    await expect(page.get_by_text("None found so far")).to_be_visible()
    await further.click()
    await expect(page.get_by_role("list", name="Runs").get_by_role("listitem")).to_contain_text("a needle")
    await expect(further).to_have_count(0)
    assert len(asked) == 2
    await site.open(page, "threads?text=nowhere")
    await expect(page.get_by_text("No thread matches the filter")).to_be_visible()


async def test_a_bulk_action_says_that_its_search_stopped(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repetition goes on where the search stopped."""
    monkeypatch.setattr("runyard.client.runs.MAX_SEARCHED", 1)
    await site.client.enqueue("old", "a needle", "old", queue="idle")
    for n in range(110):
        await site.client.enqueue("t", f"say {n}", f"r{n}", queue="idle")
    await site.client.enqueue("new", "a needle", "new", queue="idle")
    page = await site.person("runs?text=needle")
    await page.route("**/v1/runs?limit=200&**", lambda route: route.continue_(url=route.request.url.replace("=200", "=2")))
    cancel, dialog = page.get_by_role("button", name="Cancel all…"), page.get_by_role("dialog")
    await cancel.click()
    await expect(dialog).to_contain_text("Cancel 1 run?")
    await expect(dialog).to_contain_text("The search stopped before the oldest runs")
    await dialog.get_by_role("button", name="Cancel 1 run").click()
    await expect(page.get_by_text("Cancelled: 1 of 1")).to_be_visible()
    assert (await site.client.run("new", "new")).status is RunStatus.CANCELLED
    await cancel.click()
    await expect(dialog).to_contain_text("Cancel 1 run?")
    await expect(dialog).not_to_contain_text("The search stopped")
    await dialog.get_by_role("button", name="Cancel 1 run").click()
    await expect(dialog).to_have_count(0)
    assert (await site.client.run("old", "old")).status is RunStatus.CANCELLED


async def test_a_bulk_action_is_stopped(site: Site) -> None:
    for n in range(12):
        await site.client.enqueue(f"t{n}", "say hello", "r", queue="idle")
    page = await site.person("runs")
    held, released = 0, asyncio.Event()

    async def hold(route: Route) -> None:
        nonlocal held
        held += 1
        await released.wait()
        await route.continue_()

    async def all_held() -> bool:
        return held == 8

    await page.route("**/cancel", hold)
    await expect(page.get_by_role("listitem").filter(has_text="say hello")).to_have_count(12)
    await page.get_by_label("Select all shown").check()
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel 12 runs").click()
    await until(all_held)
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    released.set()
    await expect(page.get_by_text("Cancelled: 8 of 12")).to_be_visible()
    assert held == 8


async def test_the_field_of_the_text_keeps_its_letters(site: Site) -> None:
    await site.client.enqueue("t", "say hello", "r", queue="idle")
    page = await site.person("runs")
    await page.get_by_label("Select run r").wait_for()
    assert await page.get_by_role("searchbox").evaluate(RERENDER) == "n"


async def test_the_age_of_runs_counts_from_now(site: Site) -> None:
    page = await site.person()
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(request.url) if "since=" in request.url else None)
    await site.open(page, "runs?age=1h")

    async def two() -> bool:
        return len(asked) == 2

    await until(two)


async def test_a_list_keeps_what_new_entries_push_to_its_second_page(site: Site) -> None:
    for n in range(25):
        await site.client.create_thread(f"t{n}")
    page = await site.person(viewport={"width": 1400, "height": 2400})
    await page.route("**/v1/threads?limit=100&**", lambda route: route.continue_(url=route.request.url.replace("=100", "=10")))
    await site.open(page, "threads")
    rows = page.get_by_role("list", name="Threads").get_by_role("listitem")
    await expect(rows).to_have_count(25)
    for n in range(5):
        await site.client.create_thread(f"new{n}")
    await expect(rows.filter(has_text="new4")).to_be_visible()
    await expect(rows).to_have_count(30)


async def test_an_approval_shows_what_the_agent_gave(site: Site) -> None:
    """Each field of its payload, arguments of any kind, and what the deadline does. A large field is folded."""
    payload: JsonObject = {
        "question": "Pay?",
        "tool_call": {"name": "pay", "arguments": "everything to Ann"},
        "details": {"account": "DE 1234"},
        "record": "x" * 2000,
    }
    request = HitlRequest(kind="approval", payload=payload, timeout=3600, on_deadline={"answer": {"approved": True}})
    await site.client.create_thread("t")
    await site.client.backend.checkpointer.save_pending_request("t", request)
    page = await site.person("inbox")
    for path, place in (("inbox", page.locator(".request")), ("threads/t", page.get_by_role("region", name="Request"))):
        await site.open(page, path)
        await expect(place.get_by_label("Arguments", exact=True)).to_have_text("everything to Ann")
        await expect(place.get_by_label("details", exact=True)).to_contain_text("DE 1234")
        await expect(place.get_by_text("x" * 2000)).to_have_count(0)
        await place.get_by_role("button", name="record").click()
        await expect(place.get_by_text("x" * 2000)).to_be_visible()
        await expect(place.get_by_label("Answer at the deadline")).to_contain_text('"approved": true')


async def test_a_step_in_doubt_is_decided(site: Site) -> None:
    for thread in ("t1", "t2"):
        await site.client.create_thread(thread)
        payload: JsonObject = {"question": "Was the step done?", "step": "pay", "idempotency_key": thread}
        request = HitlRequest(kind="step", payload=payload, answer_schema=ANSWER_SCHEMA)
        await site.client.backend.checkpointer.save_pending_request(thread, request)
    page = await site.person("inbox")
    await expect(page.get_by_label("idempotency_key")).to_have_text("t1")
    await page.get_by_role("button", name="Repeat the step").click()
    await expect(page.get_by_label("idempotency_key")).to_have_text("t2")
    await page.get_by_role("button", name="The step was done…").click()
    await page.get_by_label("Result of the step").fill('{"receipt": 7}')
    await page.get_by_role("button", name="Record this result").click()
    await expect(page.get_by_text("No request waits for an answer")).to_be_visible()
    answers = {each.thread_id: each.answer for each in (await site.client.requests(pending=False)).items}
    assert answers == {"t1": {"action": "retry"}, "t2": {"action": "done", "result": {"receipt": 7}}}


async def test_a_text_that_is_no_json_is_not_sent(site: Site) -> None:
    """The form says why, and keeps the text. The value before it is not sent in its place."""
    schema: JsonObject = {"type": "array", "items": {"type": "integer"}}
    await site.client.create_thread("t")
    request = HitlRequest(payload={"question": "Which?"}, answer_schema=schema)
    await site.client.backend.checkpointer.save_pending_request("t", request)
    page = await site.person("inbox")
    field, send = page.get_by_label("Answer (JSON)"), page.get_by_role("button", name="Answer", exact=True)
    await field.fill("[1]")
    await field.fill("[1, 2")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    await send.click()
    await expect(page.locator(".request").get_by_role("alert")).to_contain_text("not JSON: ")
    await expect(field).to_have_value("[1, 2")
    assert sent == []
    await field.fill("[1, 2]")
    await expect(page.locator(".request").get_by_role("alert")).to_have_count(0)
    await send.click()
    await expect(page.get_by_text("No request waits for an answer")).to_be_visible()
    assert [each.answer for each in (await site.client.requests(pending=False)).items] == [[1, 2]]


async def test_a_prompt_is_sent_once(site: Site) -> None:
    """Even if somebody presses Enter twice, and sends it again because the answer was lost."""
    await site.client.create_thread("t")
    page = await site.person("threads/t")
    keys: list[str] = []

    async def lose(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        await route.fetch()
        await route.abort()

    await page.route("**/v1/threads/t/runs", lose)
    field = page.get_by_role("textbox", name="Prompt")
    await field.fill("say once")
    await field.evaluate(ENTER_TWICE)
    await expect(page.locator(".note.bad")).to_be_visible()
    assert len(keys) == 1
    await page.unroute("**/v1/threads/t/runs")
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(field).to_have_value("")
    assert len((await site.client.runs("t")).items) == 1


async def test_the_first_prompt_opens_the_new_thread(site: Site) -> None:
    """Nothing is asked before it."""
    page = await site.person("playground")
    await expect(page.get_by_text("The first prompt creates it.")).to_be_visible()
    await prompt(page, "say hello")
    await expect(page.get_by_label("assistant message", exact=True)).to_contain_text("hello")


async def test_what_a_key_may_not_do_is_not_shown(site: Site) -> None:
    await site.say("t", "say hello", "r")
    await site.client.enqueue("t", "approve refund 1", "q")
    reader = await site.person("", "read")
    links = reader.get_by_role("navigation", name="Pages").get_by_role("link")
    assert [text.split()[0] for text in await links.all_inner_texts()] == ["runyard", "Threads", "Inbox", "Runs"]
    await site.open(reader, "threads/t")
    await expect(reader.get_by_role("region", name="Request")).to_contain_text("does not have the scope")
    for name in ("Send", "Fork", "Cancel", "Approve"):
        await expect(reader.get_by_role("button", name=name)).to_have_count(0)
    await site.open(reader, "runs")
    await expect(reader.get_by_role("button", name="Redrive all…")).to_have_count(0)


async def test_a_queue_is_paused_and_resumed(site: Site) -> None:
    page = await site.person("operate", operates=True)
    await page.get_by_role("button", name="Pause").first.click()
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()
    paused = [each.queue for each in (await site.operator.queues()).items if each.paused_at is not None]
    assert len(paused) == 1
    await page.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    await page.get_by_role("tab", name="Workers").click()
    await expect(page.get_by_role("cell", name="live").first).to_be_visible()
    await page.get_by_role("button", name="Stacks").first.click()
    await expect(page.get_by_role("dialog")).to_contain_text("MainThread")
    await page.get_by_role("dialog").get_by_role("button", name="Close").click()
    await page.get_by_role("tab", name="Doctor").click()
    await expect(page.locator(".finding")).not_to_have_count(0)


async def test_two_threads_are_compared(site: Site) -> None:
    await site.say("one", "say start", "r")
    await site.client.fork("one", "two")
    await site.say("one", "say the red door", "r1")
    await site.say("two", "say the blue door", "r2")
    page = await site.person("playground?thread=one&other=two")
    await page.get_by_role("button", name="Diff").click()
    await expect(page.locator("mark.ours").last).to_have_text("red")
    await expect(page.locator("mark.theirs").last).to_have_text("blue")


async def test_the_playground_is_left_by_back(site: Site) -> None:
    """What somebody has typed stays while the differences are shown."""
    await site.client.create_thread("one")
    await site.client.create_thread("two")
    page = await site.person("playground?thread=one&other=two")
    field = page.get_by_role("textbox", name="Prompt").first
    await field.fill("a long thought")
    await page.get_by_role("button", name="Diff").click()
    await expect(field).to_be_hidden()
    await page.get_by_role("button", name="Diff").click()
    await expect(field).to_have_value("a long thought")
    pages = page.get_by_role("navigation", name="Pages")
    await pages.get_by_role("link", name="Inbox").click()
    await pages.get_by_role("link", name="Playground").click()
    await expect(page.get_by_text("The first prompt creates it.")).to_be_visible()
    await page.go_back()
    await expect(page.get_by_role("heading", name="Inbox")).to_be_visible()


async def test_the_fields_show_the_filters_that_apply(site: Site) -> None:
    """So does the confirmation of a bulk action."""
    await site.client.enqueue("t", "say hello", "r", queue="idle")
    page = await site.person("runs?queue=idle")
    await page.get_by_role("button", name="Cancel all…").click()
    await expect(page.get_by_role("dialog")).to_contain_text("All runs with queue idle.")
    await page.keyboard.press("Escape")
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Runs").click()
    await expect(page.get_by_label("Queue")).to_have_value("")


async def test_a_webhook_is_added_once(site: Site) -> None:
    """Even if the first answer was lost. Its secret is shown."""
    page = await site.person("operate/webhooks")
    keys: list[str] = []

    async def lose(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        made = await route.fetch()
        if len(keys) == 1:
            await route.abort()
        else:
            await route.fulfill(response=made, json={**await made.json(), "secret": "whsec_eA=="})

    await page.route("**/v1/webhooks", lambda route: lose(route) if route.request.method == "POST" else route.continue_())
    await page.get_by_role("button", name="Add…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("URL").fill("https://receiver.example/hook")
    await dialog.get_by_role("button", name="Add").click()
    await expect(dialog.get_by_role("alert")).to_be_visible()
    await dialog.get_by_role("button", name="Add").click()
    await expect(dialog.get_by_label("Secret")).to_have_text("whsec_eA==")
    assert len((await site.client.webhooks()).items) == 1


async def test_a_wrong_key_stays_in_its_field(site: Site) -> None:
    """Also in a browser that keeps nothing."""
    page = await site.visitor()
    for name in ("localStorage", "sessionStorage"):
        await page.add_init_script(f'Object.defineProperty(window, "{name}", {{ get() {{ throw new Error("blocked"); }} }});')
    await page.goto(f"{site.url}/console")
    field = page.get_by_label("API key")
    await field.fill("ry_wrong")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_contain_text("does not know this key")
    await expect(field).to_have_value("ry_wrong")
    _, key = await site.client.create_key("person", scopes=EVERYTHING)
    await field.fill(key)
    await page.get_by_role("button", name="Log in").click()
    await page.get_by_role("navigation", name="Pages").wait_for()


async def test_a_key_stays_in_its_tab(site: Site) -> None:
    _, key = await site.client.create_key("person", scopes=EVERYTHING)
    page = await site.visitor()
    await page.goto(f"{site.url}/console")
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Log in").click()
    await page.get_by_role("navigation", name="Pages").wait_for()
    await page.reload()
    await page.get_by_role("navigation", name="Pages").wait_for()
    other = await page.context.new_page()
    await other.goto(page.url)
    await expect(other.get_by_label("API key")).to_be_visible()
    assert "ry_" not in page.url
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("API key")).to_be_visible()


async def test_a_host_serves_the_console_below_a_prefix(site: Site) -> None:
    settings = ApiSettings(_env_file=None, token_secret=SECRET)
    host = FastAPI()
    mounted = asgi_app(site.client, auth="keys", settings=settings)
    host.mount("/agents/v2", mounted)
    host.state.service = mounted.state.service
    await site.client.create_thread("a/b?c", title="An odd id")
    async with serving(host) as url:
        page = await site.person(url=f"{url}/agents/v2")
        await page.get_by_role("link", name="An odd id").click()
        await expect(page.get_by_role("heading", name="An odd id")).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("heading", name="An odd id")).to_be_visible()
