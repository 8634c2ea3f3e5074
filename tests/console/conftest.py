"""The console in a headless Chromium, on a real API, real servers and real workers. Chromium is the machine's own."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from runyard import Client
from runyard.domain.api_keys import Scope
from runyard_api.http.app import asgi_app
from runyard_api.http.settings import ApiSettings
from tests.support.api_server import serving

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ROOT / "api" / "console"
SECRET: Final = "0123456789abcdef" * 2
BOUND: Final = 30_000
"""Milliseconds that a page may take to show something."""
EVERYTHING: Final[tuple[Scope, ...]] = ("read", "write", "respond", "admin")


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """Build the console, unless it is built."""
    runpy.run_path(str(SOURCES / "build.py"))["build"]()


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the machine's Chromium."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found is not None, "install chromium (Debian: apt-get install chromium)"
    return found


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """A browser without profile."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        await browser.close()


@dataclass
class Site:
    """A served console. ``complaints``: what the pages wrote as errors, and the policy's violations."""

    url: str
    client: Client
    browser: Browser
    stack: AsyncExitStack
    complaints: list[str] = field(default_factory=list)

    async def person(self, *scopes: Scope, url: str | None = None, **options: Any) -> Page:
        """A page of a browser of its own, logged in with a key with ``scopes``, by default all."""
        _, key = await self.client.create_key("person", scopes=scopes or EVERYTHING)
        context: BrowserContext = await self.browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        context.set_default_timeout(BOUND)
        self.stack.push_async_callback(context.close)
        page = await context.new_page()
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        await page.goto(f"{url or self.url}/console")
        await page.get_by_label("API key").fill(key)
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("navigation", name="Pages").wait_for()
        return page

    def _hear(self, kind: str, text: str) -> None:
        """Keep what a page complains of. Chromium also reports each refused request and each lost connection."""
        if kind == "error" and "status of 40" not in text and "net::ERR_" not in text:
            self.complaints.append(text)

    async def open(self, page: Page, path: str) -> None:
        """Go to a place in the console by its link."""
        root = page.url.partition("/console")[0]
        await page.goto(f"{root}/console/{path}")


Serve = Callable[[], Awaitable[str]]


@pytest.fixture
async def serve(app_url: str, redis_url: str) -> AsyncIterator[Serve]:
    """Start another API process on the same servers, and return its URL."""
    settings = ApiSettings(_env_file=None, requests_per_second=1e6, burst=10**6, token_secret=SECRET)
    async with AsyncExitStack() as stack:

        async def start() -> str:
            app = asgi_app(postgres=app_url, redis=redis_url, auth="keys", settings=settings)
            return await stack.enter_async_context(serving(app))

        yield start


@pytest.fixture
async def site(serve: Serve, postgres_url: str, redis_url: str, browser: Browser) -> AsyncIterator[Site]:
    """The console on private servers. No page may write an error or violate the policy."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client.connect(postgres_url, redis=redis_url))
        site = Site(await serve(), client, browser, stack)
        yield site
    assert site.complaints == []
