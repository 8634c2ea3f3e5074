"""Who may see and do what: unknown, revoked and weak keys, forged rights, and the deployment behind a load balancer."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

import httpx
import pytest
from playwright.async_api import Page, Route, expect
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from runyard import App, Client
from runyard.domain.states import RunStatus
from runyard_api.http.app import asgi_app
from runyard_api.http.settings import ApiSettings
from tests.console.conftest import EVERYTHING, LOG_IN, SECRET, Servers, Site, prompt, working
from tests.console.test_streams import Typist
from tests.support.api_server import serving
from tests.support.fleet import until

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("workers")]

OF_THE_CONNECTION: Final = ("content-length", "transfer-encoding", "connection")
"""Headers that a proxy does not pass on."""


async def holding(site: Site, key: str, path: str = "threads/t") -> Page:
    """A page whose session storage has ``key``."""
    page = await site.visitor()
    await page.add_init_script(LOG_IN.format(key=key))
    await page.goto(f"{site.url}/console/{path}")
    return page


async def test_an_unknown_key_leads_to_the_login(site: Site) -> None:
    """Also the id of a key with another secret. Nothing but the caller is asked, and the key is forgotten."""
    await site.client.store_message("t", "a secret")
    _, key = await site.client.create_key("person", scopes=EVERYTHING)
    for forged in ("ry_forged", key[:-8] + secrets.token_hex(4), f"{key}x", "null", "undefined"):
        page = await site.visitor()
        asked: list[str] = []
        page.on("request", lambda request, asked=asked: asked.append(request.url) if "/v1/" in request.url else None)
        await page.add_init_script(LOG_IN.format(key=forged))
        await page.goto(f"{site.url}/console/threads/t")
        await expect(page.get_by_text("The API does not know this key.")).to_be_visible()
        await expect(page.get_by_label("API key")).to_be_visible()
        assert [url.removeprefix(site.url) for url in asked] == ["/v1/whoami"]
        assert await page.evaluate("sessionStorage.length") == 0
        await page.context.close()


async def test_the_end_of_a_key_ends_what_it_shows(site: Site) -> None:
    await site.client.store_message("t", "a secret")
    info, key = await site.client.create_key("person", scopes=EVERYTHING)
    page = await holding(site, key)
    await expect(page.get_by_label("user message")).to_contain_text("a secret")
    await site.client.revoke_key(info.key_id)

    async def refused() -> bool:
        answer = await page.request.get(f"{site.url}/v1/whoami", headers={"Authorization": f"Bearer {key}"})
        return answer.status == 401

    await until(refused)
    await page.reload()
    await expect(page.get_by_label("API key")).to_be_visible()
    assert "a secret" not in await page.content()


async def test_the_end_of_a_key_ends_an_open_page(site: Site) -> None:
    """Without a reload. Its dialog closes, too."""
    await site.client.enqueue("t", "say a secret", "r", queue="idle")
    info, key = await site.client.create_key("person", scopes=EVERYTHING)
    page = await holding(site, key, "runs")
    await page.get_by_label("Select run r").check()
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await site.client.revoke_key(info.key_id)
    await expect(page.get_by_label("API key")).to_be_visible()
    await expect(page.get_by_text("The key is no longer valid.")).to_be_visible()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert "a secret" not in await page.content()


async def test_each_scope_shows_what_it_allows(site: Site) -> None:
    """Without `write` nothing is prompted, without `respond` nothing is answered. An admin of a tenant sees the deployment, and
    only the tenant that operates the deployment changes it."""
    await site.client.enqueue("t", "approve refund 1", "q")
    writer = await site.person("threads/t", "read", "write")
    await expect(writer.get_by_role("region", name="Request")).to_contain_text("scope “respond”")
    await expect(writer.get_by_role("button", name="Send", exact=True)).to_be_visible()
    await expect(writer.get_by_role("button", name="Approve")).to_have_count(0)
    human = await site.person("threads/t", "read", "respond")
    await expect(human.get_by_role("button", name="Approve")).to_be_visible()
    for name in ("Send", "Fork", "Cancel", "Delete the thread", "Change the title", "Fork here"):
        await expect(human.get_by_role("button", name=name)).to_have_count(0)
    blind = await site.person("threads/t", "write")
    await expect(blind.get_by_text("scope “read”")).to_be_visible()
    admin = await site.person("operate", "admin")
    await expect(admin.get_by_role("tab")).to_have_text(["Queues", "Workers", "Webhooks"])
    await expect(admin.get_by_role("cell", name="default")).to_be_visible()
    await expect(admin.get_by_role("button", name="Pause")).to_have_count(0)


async def test_forged_rights_are_refused_by_the_api(site: Site) -> None:
    """A page that believes in more rights than its key has shows the refusal, and changes nothing."""
    await site.client.enqueue("t", "say hello", "r", queue="idle")
    page = await site.person("threads", "read")

    async def forge(route: Route) -> None:
        answer = await (await route.fetch()).json()
        await route.fulfill(json={**answer, "tenant": "", "scopes": [*EVERYTHING]})

    await page.route("**/v1/whoami", forge)
    await site.open(page, "runs")
    await page.get_by_label("Select run r").check()
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel 1 run").click()
    await expect(page.get_by_text(re.compile("Cancelled: 0 of 1. The first error: .*scope"))).to_be_visible()
    await site.open(page, "threads/t")
    await prompt(page, "let me in")
    await expect(page.get_by_role("status")).to_contain_text("scope")
    await site.open(page, "operate/queues")
    await expect(page.get_by_role("alert")).to_contain_text("scope")
    assert [run.status for run in (await site.client.runs()).items] == [RunStatus.QUEUED]


async def test_links_of_another_tenant_show_nothing(site: Site, servers: Servers) -> None:
    other = f"t-{secrets.token_hex(4)}"
    async with Client.connect(servers.owner, redis=servers.redis, tenant=other) as stranger:
        stored = await stranger.store_message("theirs", "a secret")
    page = await site.person()
    for query in ("", f"?message={stored.id}", f"?leaf={stored.id}", "?run=r&event=1-1"):
        await site.open(page, f"threads/theirs{query}")
        await expect(page.get_by_text("There is no thread theirs")).to_be_visible()
        assert "a secret" not in await page.content()


class Balancer:
    """A proxy that sends each request to the next of its servers, without the first segment of its path. Requests that a server
    does not answer go to the next one. ``served``: the number of requests that each server answered."""

    def __init__(self, http: httpx.AsyncClient, urls: list[str]) -> None:
        self.served = dict.fromkeys(urls, 0)
        self._http = http
        self._urls = urls
        self._turn = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for moment in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{moment}.complete"})
            return
        answer = await self._forward(Request(scope, receive))
        await answer(scope, receive, send)

    async def _forward(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode().removeprefix("/yard")
        query = f"?{request.url.query}" if request.url.query else ""
        headers = [(name, value) for name, value in request.headers.raw if name not in (b"host", b"accept-encoding")]
        body = await request.body()
        first = next(self._turn) % len(self._urls)
        for url in self._urls[first:] + self._urls[:first]:
            ask = self._http.build_request(request.method, f"{url}{path}{query}", headers=headers, content=body)
            try:
                answer = await self._http.send(ask, stream=True)
            except httpx.TransportError:
                continue
            self.served[url] += 1
            kept = {name: value for name, value in answer.headers.items() if name not in OF_THE_CONNECTION}
            return StreamingResponse(pieces(answer), answer.status_code, kept)
        return Response(status_code=502)


async def pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the body until it ends or its server dies."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    except httpx.TransportError:
        return


async def test_a_page_outlives_one_of_its_servers(site: Site, servers: Servers) -> None:
    """Two API processes behind a load balancer, below a prefix that only the balancer knows. One of them stops while an answer
    streams."""
    settings = ApiSettings(_env_file=None, requests_per_second=1e6, burst=10**6, token_secret=SECRET)
    typist = Typist()
    async with AsyncExitStack() as stack, working(site.operator, App({"typist": typist})):
        dying = await stack.enter_async_context(AsyncExitStack())
        apps = [asgi_app(postgres=servers.app, redis=servers.redis, auth="keys", settings=settings) for _ in range(2)]
        urls = [await each.enter_async_context(serving(app)) for each, app in zip((stack, dying), apps, strict=True)]
        http = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))
        balancer = Balancer(await stack.enter_async_context(http), urls)
        url = await stack.enter_async_context(serving(balancer))
        page = await site.person("playground?agent=typist", url=f"{url}/yard")
        await prompt(page, "one two three four")
        writing = page.get_by_label("assistant message, being written")
        await expect(writing).to_contain_text("one two three")
        assert all(balancer.served.values())
        await dying.aclose()
        typist.released.set()
        await expect(page.get_by_label("assistant message", exact=True)).to_contain_text("one two three four")
        await page.get_by_role("link", name="Threads").click()
        await page.get_by_role("list", name="Threads").get_by_role("link").click()
        await expect(page.get_by_label("assistant message", exact=True)).to_contain_text("one two three four")
        assert page.url.startswith(f"{url}/yard/console/threads/")
