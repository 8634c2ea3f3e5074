"""Measure the console: ``python -m tests.console.figures [RUNS]``. Prints a line for each figure.

First paint, frames and memory are those of a thread with LEAVES leaves and a path of MESSAGES messages. The last figure is the
time of ``POST …/runs`` beside idle consoles, as a share of the time without them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.async_api import Browser, Page, async_playwright

from runyard import Client
from runyard_backends.embedded import EmbeddedPostgres, EmbeddedRedis
from runyard_backends.postgres.migrate import migrate
from tests.console.test_large_threads import LEAVES, MESSAGES, fill, heap
from tests.support.fleet import free_port

CONSOLES: Final = 200
POLL_SECONDS: Final = 15.0
"""Seconds between two reads of an idle inbox."""
FIRST_MESSAGE: Final = """
new MutationObserver((_, watch) => {
  if (!document.querySelector("article.message")) return;
  requestAnimationFrame(() => setTimeout(() => (window.painted ??= performance.now())));
  watch.disconnect();
}).observe(document, {childList: true, subtree: true});
"""


async def paint(browser: Browser, url: str) -> float:
    """Return the milliseconds from the navigation to the first message in a page without cache."""
    page = await browser.new_page(viewport={"width": 1440, "height": 900})
    await page.add_init_script(FIRST_MESSAGE)
    await page.goto(url)
    await page.wait_for_function("window.painted")
    painted = float(await page.evaluate("window.painted"))
    await page.close()
    return painted


async def frames(page: Page) -> tuple[float, float]:
    """Return the frames per second while the transcript scrolls up, by the trace of the browser, and the memory in MiB."""
    session = await page.context.new_cdp_session(page)
    drawn: list[float] = []
    ended = asyncio.Event()
    session.on(
        "Tracing.dataCollected", lambda data: drawn.extend(e["ts"] for e in data["value"] if e.get("name") == "DrawFrame")
    )
    session.on("Tracing.tracingComplete", lambda _: ended.set())
    await session.send(
        "Tracing.start", {"transferMode": "ReportEvents", "traceConfig": {"includedCategories": ["devtools.timeline.frame"]}}
    )
    for _ in range(4):
        gesture: dict[str, Any] = {"x": 700, "y": 500, "yDistance": 4000, "speed": 3000, "gestureSourceType": "mouse"}
        await session.send("Input.synthesizeScrollGesture", gesture)
    await session.send("Tracing.end")
    await ended.wait()
    spans = sorted(b - a for a, b in itertools.pairwise(drawn) if b - a < 500_000)
    return 1e6 / statistics.mean(spans), (await heap(page))["JSHeapUsedSize"] / 2**20


async def idle(http: httpx.AsyncClient, stack: AsyncExitStack) -> None:
    """Be CONSOLES consoles that nobody touches: a stream each, and the reads of an inbox."""
    reply = await stack.enter_async_context(http.stream("GET", "/v1/threads/long/stream", timeout=None))
    task = asyncio.create_task(_drain(reply))
    stack.callback(task.cancel)

    async def poll() -> None:
        await asyncio.sleep(secrets.randbelow(1000) / 1000 * POLL_SECONDS)
        while True:
            await http.get("/v1/requests", params={"limit": 100})
            await asyncio.sleep(POLL_SECONDS)

    polling = asyncio.create_task(poll())
    stack.callback(polling.cancel)


async def _drain(reply: httpx.Response) -> None:
    async for _ in reply.aiter_raw():
        pass


async def accept(http: httpx.AsyncClient, runs: int) -> float:
    """Return the median milliseconds of a prompt."""
    taken = []
    for n in range(runs):
        began = time.perf_counter()
        (await http.post(f"/v1/threads/p{n}/runs", json={"message": "hello"})).raise_for_status()
        taken.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.01)
    return statistics.median(taken)


async def measure(postgres: str, redis: str, url: str, runs: int) -> dict[str, float]:
    found: dict[str, float] = {}
    async with Client.connect(postgres, redis=redis) as client:
        await fill(client)
        leaf = (await client.branches("long", labelled=True)).items[-1].message_id
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        place = f"{url}/console/threads/long"
        found["first message, ms"] = statistics.median([await paint(browser, place) for _ in range(5)])
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        await page.goto(f"{place}?leaf={leaf}")
        await page.locator("article.message").last.wait_for()
        found["frames per second"], found["memory, MiB"] = await frames(page)
        await browser.close()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as http, AsyncExitStack() as stack:
        before = await accept(http, runs)
        for _ in range(CONSOLES):
            await idle(http, stack)
        await asyncio.sleep(2)
        found["prompt, ms"], found["prompt beside idle consoles, ms"] = before, await accept(http, runs)
        found["ratio"] = found["prompt beside idle consoles, ms"] / before
    return found


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with EmbeddedPostgres(durable=False) as postgres, EmbeddedRedis() as redis:
        asyncio.run(migrate(postgres.url))
        port = free_port()
        command = [sys.executable, "-P", "-m", "runyard_api.cli", "api", "--auth", "off", "--port", str(port)]
        variables = {"RUNYARD_POSTGRES_URL": postgres.url, "RUNYARD_REDIS_URL": redis.url, "RUNYARD_LOG_LEVEL": "warning"}
        with subprocess.Popen(command, env={**os.environ, **variables}, cwd=Path(__file__).parents[2]) as process:
            try:
                while not _ready(f"http://127.0.0.1:{port}"):
                    time.sleep(0.1)
                found = asyncio.run(measure(postgres.url, redis.url, f"http://127.0.0.1:{port}", runs))
            finally:
                process.terminate()
    print(json.dumps({"leaves": LEAVES, "messages": MESSAGES, "consoles": CONSOLES, **found}, indent=1))


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    main()
