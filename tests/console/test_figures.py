"""A short form of ``make console-figures``, and what idle pages do, which the long form imitates."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, Request, Response

from tests.console import figures
from tests.console.conftest import EVERYTHING, Servers, Site
from tests.console.idle import IDLE, IDLE_AFTER, Idle
from tests.support.long_form import LONG

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

WATCHED_SECONDS: Final = 120
STEP_SECONDS: Final = 2.5


class Clock:
    """The clock of a page. Time passes only while no request of the page waits for its answer."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._unanswered = set[Request]()
        page.on("request", self._asked)
        page.on("response", self._begun)
        page.on("requestfinished", self._answered)
        page.on("requestfailed", self._answered)

    def _asked(self, request: Request) -> None:
        self._unanswered.add(request)

    def _begun(self, response: Response) -> None:
        if urlsplit(response.url).path.endswith("/stream"):  # it stays open
            self._unanswered.discard(response.request)

    def _answered(self, request: Request) -> None:
        self._unanswered.discard(request)

    async def run(self, seconds: float) -> None:
        """Let time pass on the page."""
        for _ in range(round(seconds / STEP_SECONDS)):
            await self._page.clock.run_for(STEP_SECONDS * 1000)
            await self._settle()

    async def _settle(self) -> None:
        """Wait until all requests are answered. An answer may make the page ask again, before it evaluates an expression."""
        async with asyncio.timeout(30):
            quiet = 0
            while quiet < 2:
                await self._page.evaluate("0")
                quiet = 0 if self._unanswered else quiet + 1


@pytest.mark.parametrize("place", [*IDLE])
async def test_an_idle_page_asks_seldom(site: Site, place: str) -> None:
    await site.client.create_thread("t")
    await site.client.store_message("t", "hello")
    page = await site.person(operates=place.startswith("operate"))
    clock = Clock(page)
    await page.clock.install()
    await site.open(page, place.format(thread="t"))
    await page.get_by_role("heading", level=1).wait_for()
    await clock.run(IDLE_AFTER + 5)
    asked: Counter[str] = Counter()
    page.on("request", lambda request: asked.update([urlsplit(request.url).path]))
    await clock.run(WATCHED_SECONDS)
    expected: Idle = IDLE[place]
    assert asked.pop("/v1/threads/t/stream", 0) <= 1  # it stays open
    for path, seconds in expected.polls.items():
        assert 1 <= asked.pop(path, 0) <= WATCHED_SECONDS / seconds + 1, path
    assert asked == {}


if LONG:

    async def test_the_figures_can_be_measured(
        site: Site, servers: Servers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """With a small thread and few consoles. The bounds of times are those of a quiet machine."""
        monkeypatch.setattr(figures, "PAINTS", 1)
        _, key = await site.client.create_key("figures", scopes=EVERYTHING)
        with figures.served(servers.owner, servers.redis) as url:
            measured = figures.Deployment(url, site.client, key)
            found = {
                **await figures.look(measured, await figures.filled(site.client, leaves=20, messages=200)),
                **await figures.beside(measured, consoles=20, runs=20, rounds=1),
            }
        assert {*found} == {*figures.BOUNDS} and all(value > 0 for value in found.values())
        timed = {"first message", "frames per second", "longest frame", "ratio"}
        assert {*figures.broken(found)} <= timed, capsys.readouterr().out
