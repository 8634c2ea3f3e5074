"""One API process under many callers: streams that are cut off and come back, prompts that are told to wait."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import httpx

from tests.acceptance.test_http_server import BOUND, api
from tests.support.api_server import Frame, frames
from tests.support.fleet import Fleet

READERS, CUTS = 25, 3
PROMPTS, CLIENTS = 80, 16


async def read(http: httpx.AsyncClient, run: str, cuts: list[int]) -> list[Frame]:
    """What a reader sees that leaves after so many events, and comes back after the last one."""
    seen: list[Frame] = []
    for cut in [*cuts, None]:
        headers = {"Last-Event-ID": seen[-1].id or ""} if seen else {}
        async with http.stream("GET", f"/v1/threads/{run}/runs/{run}/stream", headers=headers) as reply:
            assert reply.status_code == 200
            async for frame in frames(reply):
                if not frame.comment:
                    seen.append(frame)
                if len(seen) == cut:
                    break
    return seen


async def test_readers_that_come_back_miss_nothing_and_see_nothing_twice(fleet: Fleet) -> None:
    """E1: many at once on one process, each cut off three times while its run speaks."""
    await fleet.start()
    words = [str(n) for n in range(20)]
    script = " | ".join(f"say {word} | sleep 0.02" for word in words)
    chance = random.Random(1)
    limits = httpx.Limits(max_connections=None)
    async with api(fleet, "--auth", "off") as (url, _), httpx.AsyncClient(base_url=url, timeout=BOUND, limits=limits) as http:
        runs = [f"r{n}" for n in range(READERS)]
        async with asyncio.timeout(BOUND):
            for run in runs:
                await fleet.client.enqueue(run, script, run)
            cuts = [sorted(chance.sample(range(1, 30), CUTS)) for _ in runs]
            seen = await asyncio.gather(*(read(http, run, cut) for run, cut in zip(runs, cuts, strict=True)))
            whole = await asyncio.gather(*(read(http, run, []) for run in runs))
    for mine, all_of_it in zip(seen, whole, strict=True):
        assert mine == all_of_it and "gap" not in [frame.type for frame in mine]
        places = [tuple(int(part) for part in (frame.id or "").split("-")) for frame in mine]
        assert all(before < after for before, after in pairwise(places))
        assert [frame.data["data"]["text"] for frame in mine if frame.type == "message.delta"] == words


async def test_prompts_that_are_told_to_wait_are_all_accepted_in_the_end(fleet: Fleet) -> None:
    """A2, R2, I1: every answer is 2xx, or 429 or 503 with the time to come again; whatever was accepted completes, once."""
    await fleet.start()
    waiting = iter(range(PROMPTS))
    accepted: list[str] = []
    refused: list[int] = []
    limited = {"RUNYARD_API_REQUESTS_PER_SECOND": "15", "RUNYARD_API_BURST": "5"}
    async with api(fleet, "--auth", "off", **limited) as (url, _), httpx.AsyncClient(base_url=url, timeout=BOUND) as http:

        async def client() -> None:
            for n in waiting:
                while True:
                    body = {"message": "say done", "run_id": f"r{n}"}
                    reply = await http.post(f"/v1/threads/t{n % 30}/runs", json=body)
                    if reply.status_code in (200, 202):
                        accepted.append(reply.json()["run_id"])
                        break
                    assert reply.status_code in (429, 503), reply.text
                    refused.append(reply.status_code)
                    await asyncio.sleep(float(reply.headers["Retry-After"]))

        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(client() for _ in range(CLIENTS)))
            results = [await fleet.client.handle(f"t{n % 30}", f"r{n}").result(BOUND) for n in range(PROMPTS)]
    assert refused and sorted(accepted) == sorted(f"r{n}" for n in range(PROMPTS))
    assert all(result.ok and result.run.attempt == 1 for result in results)
