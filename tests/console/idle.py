"""Consoles that nobody touches, without a browser: ``python tests/console/idle.py URL KEY THREAD COUNT``.

Each opens the streams and sends the requests of a page of IDLE, as ``test_figures.py`` has seen the real page do. Prints
``ready`` when all streams are open. Ends when its input ends.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

import httpx

IDLE_AFTER: Final = 60.0
"""Seconds without a touch after which a page is idle."""


class Idle(NamedTuple):
    """What an idle page does. ``polls``: paths of the API that it reads, with the seconds between two reads."""

    streams: int
    polls: dict[str, float]


INBOX: Final = {"/v1/requests": 30.0}
"""The number of pending requests, which each page shows."""
IDLE: Final = {
    "threads/{thread}": Idle(1, INBOX),
    "threads": Idle(0, {**INBOX, "/v1/threads": 25.0}),
    "runs": Idle(0, {**INBOX, "/v1/runs": 12.5}),
    "inbox": Idle(0, {"/v1/requests": 10.0}),
    "playground": Idle(0, INBOX),
    "operate/queues": Idle(0, {**INBOX, "/v1/queues": 12.5}),
}
"""Pages by their places. Requests to one path count together: the inbox reads its list each 15 seconds, and the number of
pending requests each 30."""


async def be(http: httpx.AsyncClient, page: Idle, thread: str, ready: asyncio.Event) -> None:
    """Be one console."""

    async def poll(path: str, seconds: float) -> None:
        await asyncio.sleep(random.uniform(0, seconds))
        while True:
            await http.get(path, params={"limit": 100})
            await asyncio.sleep(seconds)

    async def read() -> None:
        async with http.stream("GET", f"/v1/threads/{thread}/stream", timeout=None) as reply:
            reply.raise_for_status()
            ready.set()
            async for _ in reply.aiter_raw():
                pass

    if page.streams == 0:
        ready.set()
    await asyncio.gather(*(poll(*each) for each in page.polls.items()), *(read() for _ in range(page.streams)))


async def main(url: str, key: str, thread: str, count: int) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=count)
    async with AsyncExitStack() as stack:
        http = httpx.AsyncClient(base_url=url, limits=limits, timeout=30, headers={"Authorization": f"Bearer {key}"})
        await stack.enter_async_context(http)
        opened = [asyncio.Event() for _ in range(count)]
        kinds = itertools.cycle(IDLE.values())
        consoles = [asyncio.create_task(be(http, page, thread, ready)) for page, ready in zip(kinds, opened, strict=False)]
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        all_open = asyncio.gather(*(ready.wait() for ready in opened))
        await asyncio.wait([all_open, ended, *consoles], return_when=asyncio.FIRST_COMPLETED)
        print("ready", flush=True)
        await asyncio.wait([ended, *consoles], return_when=asyncio.FIRST_COMPLETED)
        for each in consoles:
            each.cancel()
        for outcome in await asyncio.gather(*consoles, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
