"""``make console-figures``: measures the console. Ends with 1 if a bound is exceeded.

First paint, frames and memory are those of a thread with LEAVES leaves and a path of MESSAGES messages. The last figure is the
time of ``POST …/runs`` beside CONSOLES idle consoles, as a share of the time without them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.async_api import Browser, Page, async_playwright

from runyard import Client
from runyard_backends.embedded import EmbeddedPostgres, EmbeddedRedis
from runyard_backends.postgres.migrate import migrate
from tests.console import idle
from tests.console.conftest import EVERYTHING, LOG_IN, SECRET
from tests.console.test_large_threads import fill, heap
from tests.support.fleet import free_port

ROOT: Final = Path(__file__).parents[2]
LEAVES: Final = 500
MESSAGES: Final = 10_000
CONSOLES: Final = 200
RUNS: Final = 1500
ROUNDS: Final = 3
"""Pairs of measurements of RUNS prompts, without and with idle consoles."""
PAINTS: Final = 5
BOUNDS: Final = {
    "first message": ("ms", "at most", 1000.0),
    "pages of messages at first": ("", "at most", 4.0),
    "frames per second": ("", "at least", 50.0),
    "longest frame": ("ms", "at most", 250.0),
    "heap": ("MiB", "at most", 200.0),
    "heap, whole path read": ("MiB", "at most", 200.0),
    "prompt": ("ms", "", 0.0),
    "prompt beside idle consoles": ("ms", "", 0.0),
    "ratio": ("", "at most", 1.2),
}
SHOWN: Final = "Display::FrameDisplayed"
"""The event of the browser's trace for each frame that is on the screen."""
FIRST_MESSAGE: Final = """
window.painted = new Promise((done) =>
  new MutationObserver((_, watch) => {
    if (!document.querySelector("article.message")) return;
    requestAnimationFrame(() => setTimeout(() => done(performance.now())));
    watch.disconnect();
  }).observe(document, {childList: true, subtree: true}),
);
"""
SCROLL_UP: Final = "(box) => new Promise((done) => { box.scrollTop = 0; requestAnimationFrame(() => setTimeout(done, 10)); })"


@dataclass(frozen=True)
class Deployment:
    """A served API. ``client`` and ``key`` are of one tenant."""

    url: str
    client: Client
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    async def page(self, browser: Browser) -> Page:
        """A page without cache, with the key."""
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        await page.add_init_script(LOG_IN.format(key=self.key) + FIRST_MESSAGE)
        return page


async def paint(browser: Browser, site: Deployment, place: str) -> tuple[float, int]:
    """Return the milliseconds from the navigation to the first message, and the number of pages of messages read for it."""
    page = await site.page(browser)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/messages?" in request.url else None)
    await page.goto(f"{site.url}/console/{place}")
    painted = float(await page.evaluate("window.painted"))
    await page.close()
    return painted, len(asked)


async def frames(page: Page) -> tuple[float, float]:
    """Return the frames per second while the transcript scrolls up, and the longest time between two frames in milliseconds.

    Both are those of the browser's trace, from the first to the last frame of each movement.
    """
    session = await page.context.new_cdp_session(page)
    spans: list[float] = []
    for _ in range(4):
        drawn: list[float] = []
        ended = asyncio.Event()

        def collect(data: Any, drawn: list[float] = drawn) -> None:
            drawn.extend(each["ts"] for each in data["value"] if each.get("name") == SHOWN)

        def complete(_: Any, ended: asyncio.Event = ended) -> None:
            ended.set()

        session.on("Tracing.dataCollected", collect)
        session.on("Tracing.tracingComplete", complete)
        categories = {"includedCategories": ["viz"]}
        await session.send("Tracing.start", {"transferMode": "ReportEvents", "traceConfig": categories})
        gesture: dict[str, Any] = {"x": 700, "y": 500, "yDistance": 6000, "speed": 3000, "gestureSourceType": "mouse"}
        await session.send("Input.synthesizeScrollGesture", gesture)
        await session.send("Tracing.end")
        await ended.wait()
        session.remove_listener("Tracing.dataCollected", collect)
        session.remove_listener("Tracing.tracingComplete", complete)
        spans += [b - a for a, b in itertools.pairwise(sorted(drawn))]
    return 1e6 / statistics.mean(spans), max(spans) / 1000


async def look(site: Deployment, leaf: str) -> dict[str, float]:
    """Return the figures of the large thread, of which ``leaf`` is the last message."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        place = f"threads/long?leaf={leaf}"
        painted = [await paint(browser, site, place) for _ in range(PAINTS)]
        page = await site.page(browser)
        await page.goto(f"{site.url}/console/{place}")
        await page.locator("article.message").last.wait_for()
        await page.wait_for_timeout(1000)
        rate, longest = await frames(page)
        used = (await heap(page))["JSHeapUsedSize"]
        log = page.get_by_label("Transcript")
        while not await page.get_by_text("message 0 ", exact=False).count():
            await log.evaluate(SCROLL_UP)
        whole = (await heap(page))["JSHeapUsedSize"]
        await browser.close()
    return {
        "first message": statistics.median(each for each, _ in painted),
        "pages of messages at first": max(pages for _, pages in painted),
        "frames per second": rate,
        "longest frame": longest,
        "heap": used / 2**20,
        "heap, whole path read": whole / 2**20,
    }


async def accept(http: httpx.AsyncClient, runs: int) -> list[float]:
    """Return the milliseconds of prompts, each on a thread of its own."""
    taken = []
    for n in range(runs):
        began = time.perf_counter()
        (await http.post(f"/v1/threads/p{n}/runs", json={"message": "hello"})).raise_for_status()
        taken.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.002)
    return taken


@contextmanager
def idle_consoles(site: Deployment, count: int) -> Iterator[None]:
    """Be ``count`` idle consoles, in another process."""
    command = [sys.executable, "-P", idle.__file__, site.url, site.key, "long", str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n", "the consoles did not open"
        yield
        assert process.poll() is None, "the consoles ended"
        process.stdin.close()
    assert process.returncode == 0, "a console failed"


async def beside(site: Deployment, consoles: int, runs: int, rounds: int) -> dict[str, float]:
    """Return the medians of prompts without and with idle consoles, and their ratio."""
    alone: list[float] = []
    together: list[float] = []
    async with httpx.AsyncClient(base_url=site.url, timeout=30, headers=site.headers) as http:
        await accept(http, min(runs, 100))
        for _ in range(rounds):
            alone += await accept(http, runs)
            with idle_consoles(site, consoles):
                together += await accept(http, runs)
    before, after = statistics.median(alone), statistics.median(together)
    return {"prompt": before, "prompt beside idle consoles": after, "ratio": after / before}


async def filled(client: Client, leaves: int, messages: int) -> str:
    """Make the large thread, and return its last message."""
    await fill(client, leaves, messages)
    found = (await client.branches("long", labelled=True)).items
    return next(leaf.message_id for leaf in found if leaf.labels)


async def measure(postgres: str, redis: str, url: str) -> dict[str, float]:
    async with Client.connect(postgres, redis=redis) as client:
        _, key = await client.create_key("figures", scopes=EVERYTHING)
        site = Deployment(url, client, key)
        return {**await look(site, await filled(client, LEAVES, MESSAGES)), **await beside(site, CONSOLES, RUNS, ROUNDS)}


@contextmanager
def served(postgres: str, redis: str) -> Iterator[str]:
    """Serve the API in another process, without limits that a measurement could meet. Yield its URL."""
    port = free_port()
    command = [sys.executable, "-P", "-m", "runyard_api.cli", "api", "--port", str(port)]
    bounds = {"REQUESTS_PER_SECOND": "1e6", "BURST": "1000000", "STREAMS_PER_KEY": "1000", "TOKEN_SECRET": SECRET}
    variables = {"RUNYARD_POSTGRES_URL": postgres, "RUNYARD_REDIS_URL": redis, "RUNYARD_LOG_LEVEL": "warning"}
    variables |= {f"RUNYARD_API_{name}": value for name, value in bounds.items()}
    with subprocess.Popen(command, env={**os.environ, **variables}, cwd=ROOT) as process:
        try:
            while not _ready(f"http://127.0.0.1:{port}"):
                assert process.poll() is None
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def broken(found: dict[str, float]) -> list[str]:
    """Print the figures with their bounds. Return the names of those that exceed their bound."""
    exceeded = []
    for name, value in found.items():
        unit, side, bound = BOUNDS[name]
        good = side == "" or (value <= bound if side == "at most" else value >= bound)
        print(f"{'ok  ' if good else 'FAIL'} {name}: {value:.2f} {unit}{f', {side} {bound:g}' if side else ''}", flush=True)
        exceeded += [] if good else [name]
    return exceeded


def main() -> None:
    print(f"{LEAVES} leaves, {MESSAGES} messages, {CONSOLES} consoles, load average {os.getloadavg()[0]:.2f}", flush=True)
    with EmbeddedPostgres(durable=False) as postgres, EmbeddedRedis() as redis:
        asyncio.run(migrate(postgres.url))
        with served(postgres.url, redis.url) as url:
            found = asyncio.run(measure(postgres.url, redis.url, url))
    print(f"load average {os.getloadavg()[0]:.2f}")
    sys.exit(1 if broken(found) else 0)


if __name__ == "__main__":
    main()
