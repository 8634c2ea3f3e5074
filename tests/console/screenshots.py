"""Take the pictures of the console for the documents: ``python -m tests.console.screenshots [folder] [name …]``.

They show a fresh ``runyard demo --console``.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from playwright.async_api import Page, Request, async_playwright

FOLDER: Final = Path(__file__).parents[2] / "docs" / "console"
QUIET_SECONDS: Final = 1.5
"""Seconds after the last request when a page is complete."""
MOST_SECONDS: Final = 20.0
"""Seconds after which a page is complete. The page of a live run asks again and again."""


class Shot(NamedTuple):
    """One picture. ``path``: the place in the console. ``click``: names of elements to click before the picture is taken."""

    path: str
    scheme: str = "dark"
    size: tuple[int, int] = (1440, 900)
    click: tuple[str, ...] = ()


SHOTS: Final = {
    "threads": Shot("threads"),
    "thread": Shot("threads/trip"),
    "waterfall": Shot("threads/trip-by-train?run=booking"),
    "takeover": Shot("threads/trip?run=bill", "light"),
    "fork": Shot("threads/trip-by-night", "light"),
    "inbox": Shot("inbox", "light"),
    "runs": Shot("runs"),
    "playground": Shot("playground?thread=trip-by-train&other=trip-by-night", "light"),
    "diff": Shot("playground?thread=trip&other=trip-by-train&view=diff"),
    "queues": Shot("operate/queues", "light"),
    "workers": Shot("operate/workers"),
    "doctor": Shot("operate/doctor", "light"),
    "small": Shot("threads/trip-by-night", "dark", (380, 780)),
}


@contextmanager
def demonstration() -> Iterator[str]:
    """Yield the URL of the console of a demonstration."""
    command = [sys.executable, "-P", "-m", "runyard_api.cli", "demo", "--console", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.search(r"the console: (\S+?);", line):
                    yield found[1]
                    break
        finally:
            process.terminate()


async def settled(page: Page, url: str) -> None:
    """Open a page, and wait until it has not asked the API for QUIET_SECONDS, at most MOST_SECONDS."""
    began = asked = time.monotonic()

    def note(_: Request) -> None:
        nonlocal asked
        asked = time.monotonic()

    page.on("request", note)
    page.on("requestfinished", note)
    await page.goto(url)
    await page.get_by_role("heading", level=1).wait_for()
    while time.monotonic() - asked < QUIET_SECONDS and time.monotonic() - began < MOST_SECONDS:
        await page.wait_for_timeout(100)


async def shoot(console: str, folder: Path, names: list[str]) -> None:
    """Take the pictures with these names, or all."""
    chromium = shutil.which("chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, shot in SHOTS.items():
            if names and name not in names:
                continue
            width, height = shot.size
            page = await browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if shot.scheme == "dark" else "light",
                reduced_motion="reduce",
            )
            page.on("console", lambda message, name=name: print(name, message.text))
            await settled(page, f"{console}/{shot.path}")
            for each in shot.click:
                await page.get_by_role("button", name=each).click()
            await page.screenshot(path=folder / f"{name}.png")
            await page.close()
        await browser.close()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    target.mkdir(exist_ok=True)
    if len(sys.argv) > 2 and sys.argv[2].startswith("http"):
        asyncio.run(shoot(sys.argv[2], target, sys.argv[3:]))
    else:
        with demonstration() as address:
            asyncio.run(shoot(address, target, sys.argv[2:]))
