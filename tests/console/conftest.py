"""The console in a headless Chromium, on a real API, real servers and real workers. Chromium is the machine's own.

The tests of a module share a browser and a deployment. Each test has a tenant of its own.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect
from redis.asyncio import Redis

from runyard import App, Client
from runyard.domain.api_keys import Scope
from runyard.domain.states import RunStatus
from runyard.worker.worker import Worker
from runyard_api.http.app import asgi_app
from runyard_api.http.settings import ApiSettings
from runyard_backends.embedded.servers import REDIS_VARIABLE
from tests.support.api_server import serving
from tests.support.fleet import Fleet, until

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ROOT / "api" / "console"
SECRET: Final = "0123456789abcdef" * 2
BOUND: Final = 30_000
"""Milliseconds that a page may take to show something."""
EVERYTHING: Final[tuple[Scope, ...]] = ("read", "write", "respond", "admin")
DISABLED: Final = (
    # The popups of the address bar: two pages for each window, half of the CPU time that a window takes.
    *("WebUIOmniboxAimPopup", "WebUIOmniboxPopup"),
    # Playwright disables these in an argument of its own. Chromium reads the last of two such arguments.
    *("AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades", "PaintHolding"),
    *("HttpsFirstBalancedModeAutoEnable", "LensOverlay", "MediaRouter", "ThirdPartyStoragePartitioning", "AimEnabled"),
    *("AvoidCorsURLLoaderRestartOnRedirect", "OptimizationHints", "NetworkTimeServiceQuerying", "PreconnectToSearch"),
)
"""Features of Chromium that no test needs."""
LOG_IN: Final = 'if (sessionStorage.getItem("runyard.key") === null) sessionStorage.setItem("runyard.key", "{key}");'

expect.set_options(timeout=BOUND)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run these tests in one process, each module in one event loop."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)
            item.add_marker(pytest.mark.xdist_group("console"))


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """Build the console, unless it is built."""
    runpy.run_path(str(SOURCES / "build.py"))["build"]()


def chromium() -> str:
    """Return the path of the machine's Chromium."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found is not None, "install chromium (Debian: apt-get install chromium)"
    return found


@asynccontextmanager
async def browsing(*arguments: str) -> AsyncIterator[Browser]:
    """A browser without profile. ``arguments``: more arguments of its program."""
    async with async_playwright() as playwright:
        disabled = f"--disable-features={','.join(DISABLED)}"
        arguments = ("--no-sandbox", "--disable-dev-shm-usage", disabled, *arguments)
        browser = await playwright.chromium.launch(executable_path=chromium(), args=arguments)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as found:
        yield found


class Servers(NamedTuple):
    """The servers of a module. ``owner`` is the URL of Postgres for its owner. ``app``: for the role of API and workers."""

    owner: str
    app: str
    redis: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(request: pytest.FixtureRequest, module_postgres_url: str, app_role: str) -> Servers:
    """A database with the current schema, and an emptied Redis database."""
    parts = urlsplit(module_postgres_url)
    app = urlunsplit(parts._replace(netloc=f"{app_role}:{app_role}@{parts.netloc.rpartition('@')[2]}"))
    redis: str = os.environ.get(REDIS_VARIABLE) or request.getfixturevalue("redis_server").url
    async with Redis.from_url(redis) as client:
        await client.flushdb()
    return Servers(module_postgres_url, app, redis)


Serve = Callable[[], Awaitable[str]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serve(servers: Servers) -> AsyncIterator[Serve]:
    """Start an API process more on the same servers, and return its URL."""
    settings = ApiSettings(_env_file=None, requests_per_second=1e6, burst=10**6, token_secret=SECRET)
    async with AsyncExitStack() as stack:

        async def start() -> str:
            app = asgi_app(postgres=servers.app, redis=servers.redis, auth="keys", settings=settings)
            return await stack.enter_async_context(serving(app))

        yield start


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(serve: Serve) -> str:
    """The URL of the API of this module's tests."""
    return await serve()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operator(servers: Servers) -> AsyncIterator[Client]:
    """A client of the tenant that operates the deployment."""
    async with Client.connect(servers.owner, redis=servers.redis) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers(servers: Servers, operator: Client) -> AsyncIterator[Fleet]:
    """Two worker processes with the scripted agent."""
    fleet = Fleet(servers.owner, servers.redis, operator, operator.backend)
    try:
        await asyncio.gather(fleet.start(), fleet.start())
        yield fleet
    finally:
        await fleet.stop()


@asynccontextmanager
async def working(client: Client, app: App) -> AsyncIterator[None]:
    """A worker of ``app`` in this process."""
    worker = Worker(app, client.backend, grace=1)
    running = asyncio.create_task(worker.run())
    await worker.started.wait()
    try:
        yield
    finally:
        worker.stop()
        await running


async def prompt(page: Page, text: str) -> None:
    """Type a prompt, and send it."""
    await page.get_by_role("textbox", name="Prompt").fill(text)
    await page.get_by_role("button", name="Send", exact=True).click()


@dataclass
class Site:
    """A served console, and a client of the test's tenant. ``operator``: a client of the tenant that operates the deployment.

    ``complaints``: what the pages wrote as errors, and the policy's violations.
    """

    url: str
    client: Client
    operator: Client
    browser: Browser
    stack: AsyncExitStack
    complaints: list[str] = field(default_factory=list)

    async def person(
        self,
        path: str = "",
        *scopes: Scope,
        url: str | None = None,
        operates: bool = False,
        name: str = "person",
        **options: Any,
    ) -> Page:
        """A page of a browser of its own, at a place of the console, with a key with ``scopes``, by default all.

        ``operates``: the key belongs to the tenant that operates the deployment. ``name``: the name of the key.
        """
        _, key = await (self.operator if operates else self.client).create_key(name, scopes=scopes or EVERYTHING)
        page = await self.visitor(**options)
        await page.add_init_script(LOG_IN.format(key=key))
        await page.goto(f"{url or self.url}/console/{path}")
        await page.get_by_role("navigation", name="Pages").wait_for()
        return page

    async def visitor(self, **options: Any) -> Page:
        """A page of a browser of its own, without a key."""
        context: BrowserContext = await self.browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        context.set_default_timeout(BOUND)
        self.stack.push_async_callback(context.close)
        page = await context.new_page()
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return page

    def _hear(self, kind: str, text: str) -> None:
        """Keep what a page complains of. Chromium also reports each refused request and each lost connection."""
        if kind == "error" and "status of 4" not in text and "net::ERR_" not in text:
            self.complaints.append(text)

    async def open(self, page: Page, path: str) -> None:
        """Go to a place in the console by its link."""
        root = page.url.partition("/console")[0] if "/console" in page.url else self.url
        await page.goto(f"{root}/console/{path}")

    async def say(self, thread: str, prompt: str, run: str, **options: Any) -> None:
        """Prompt, and wait until the run has stopped."""
        await (await self.client.enqueue(thread, prompt, run, **options)).result(20)

    async def running(self, thread: str, run: str, messages: int) -> None:
        """Wait until the run is running, and the thread has this number of messages."""

        async def stored() -> bool:
            found = await self.client.run(thread, run)
            return found.status is RunStatus.RUNNING and len((await self.client.messages(thread)).items) >= messages

        await until(stored)


@pytest_asyncio.fixture(loop_scope="module")
async def site(url: str, servers: Servers, operator: Client, browser: Browser) -> AsyncIterator[Site]:
    """The console for a tenant of this test. No page may write an error or violate the policy."""
    async with AsyncExitStack() as stack:
        connecting = Client.connect(servers.owner, redis=servers.redis, tenant=f"t-{secrets.token_hex(4)}")
        site = Site(url, await stack.enter_async_context(connecting), operator, browser, stack)
        yield site
    assert site.complaints == []
