"""One tenant sends what is expensive to take; another one's runs begin as before, and no process falls silent (A2).

``RUNYARD_TEST_ATTACKS=20`` goes through the attacks so many times.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from statistics import quantiles
from typing import Final, TypeAlias

import httpx
import pytest

from runyard import Client
from runyard.domain.api_keys import Scope
from runyard.domain.states import ENDED
from tests.acceptance.test_http_server import api
from tests.http import shapes
from tests.support.fleet import SLACK, Fleet, until

ROUNDS: Final = int(os.environ.get("RUNYARD_TEST_ATTACKS", "1"))
PAUSE: Final = 0.1
"""Seconds between two requests of an attacker who sends one at a time: sending them takes as much of the machine as reading."""
AT_ONCE: Final = 4
"""Requests that the attacker has open who sends as much as may be."""
PROMPTS: Final = 100
MOST_MEMORY: Final = 400 * 2**20
SILENT: Final = 0.5
"""Seconds for which ``/livez`` may be silent, and another tenant's prompt may wait, beside as much as may be sent; a machine
under load may add SLACK."""

JSON: Final = {"Content-Type": "application/json"}
ALL: Final[tuple[Scope, ...]] = ("read", "write", "respond")


Attack: TypeAlias = tuple[str, str, str, bytes]
"""Which key sends what: scope, method, URL and body."""


def refused() -> list[Attack]:
    """What was once taken apart before it was refused."""
    made = [
        ("write", "chains", "the body"),
        ("write", "chains", "a prompt"),
        ("write", "chains", "a tool's result"),
        ("respond", "chains", "an answer"),
        ("respond", "chains", "an answer to nothing"),
        ("write", "lists of one", "metadata"),
        ("write", "empty objects", "extra"),
        ("read", "chains", "a prompt"),
        ("read", "chains", "a stream token"),
        ("read", "runs of 299 digits in text", "a stream token"),
        ("write", "runs of 299 digits in text", "a title"),
        ("write", "integers of 290 digits", "a tool's result"),
        ("read", "integers of 290 digits", "a stream token"),
    ]
    return [(scope, *shapes.PLACES[place][:2], shapes.body(shape, place, shapes.LARGEST)) for scope, shape, place in made]


def taken() -> list[Attack]:
    """As many values, as much text as may be."""
    sent: list[Attack] = []
    for n in range(4):
        _, url, _ = shapes.PLACES["a tool's result"]
        sent.append(("write", "POST", url.replace("/t/", f"/values-{n}/"), shapes.body("chains", "a tool's result", 48_000)))
        image = b'{"message": {"content": [{"type": "image", "media_type": "image/png", "data": "%b"}]}}' % (b"A" * (6 * 2**20))
        sent.append(("write", "POST", url.replace("/t/", f"/bytes-{n}/"), image))
    return sent


class Pulse:
    """Asks ``/livez`` all the time."""

    def __init__(self, url: str) -> None:
        self.longest = 0.0
        self._url = url

    async def run(self) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=120) as http:
            while True:
                asked = time.monotonic()
                try:
                    assert (await http.get("/livez")).status_code == 200
                finally:
                    self.longest = max(self.longest, time.monotonic() - asked)
                await asyncio.sleep(0.02)


async def pick_up(http: httpx.AsyncClient, client: Client, prefix: str, while_: Callable[[], bool]) -> list[float]:
    """Seconds from accept to start of prompts one after the other, by the store's clock; PROMPTS at least."""
    waits: list[float] = []
    while len(waits) < PROMPTS or while_():
        name = f"{prefix}-{len(waits)}"
        reply = await http.post(f"/v1/threads/{name}/runs", json={"message": "say hello", "run_id": name})
        assert reply.status_code == 202, reply.text

        async def begun(name: str = name) -> bool:
            return (await client.run(name, name)).started_at is not None

        await until(begun, 300)
        run = await client.run(name, name)
        assert run.started_at is not None
        waits.append((run.started_at - run.accepted_at).total_seconds())
    return waits


def p99(waits: Sequence[float]) -> float:
    return quantiles(waits, n=100)[98]


def memory(pid: int) -> int:
    """The most that the process had in memory, in bytes."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


async def attack(clients: dict[str, httpx.AsyncClient], sent: Sequence[Attack], *, at_once: int, pause: float) -> list[int]:
    """Send it all; the answers' statuses."""
    turn = asyncio.Semaphore(at_once)

    async def one(scope: str, method: str, url: str, body: bytes) -> int:
        async with turn:
            reply = await clients[scope].request(method, url, content=body, headers=JSON)
            await asyncio.sleep(pause)
            return reply.status_code

    return [*await asyncio.gather(*(one(*each) for each in sent))]


@pytest.mark.timeout(300 + 60 * ROUNDS)
async def test_an_attacker_delays_nobody_else(fleet: Fleet) -> None:
    workers = [await fleet.start(slots=10) for _ in range(2)]
    registered = {worker.worker_id for worker in await fleet.backend.workers.workers()}
    alpha, beta = (Client(fleet.backend.for_tenant(tenant)) for tenant in ("alpha", "beta"))
    keys: dict[str, str] = {scope: (await alpha.create_key(scope, scopes=(scope,)))[1] for scope in ALL}
    _, own = await beta.create_key("beta", scopes=ALL)
    async with api(fleet) as (url, process), AsyncExitStack() as stack:

        async def caller(key: str) -> httpx.AsyncClient:
            headers = {"Authorization": f"Bearer {key}"}
            return await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=headers, timeout=300))

        clients = {scope: await caller(key) for scope, key in keys.items()}
        http = await caller(own)
        await clients["write"].post("/v1/threads", json={"thread_id": "t"})
        await pick_up(http, beta, "warm", lambda: False)
        before = await pick_up(http, beta, "before", lambda: False)

        pulse = Pulse(url)
        beating = asyncio.create_task(pulse.run())
        attacking = asyncio.create_task(attack(clients, refused() * ROUNDS, at_once=1, pause=PAUSE))
        beside = await pick_up(http, beta, "beside", lambda: not attacking.done())
        flooding = asyncio.create_task(attack(clients, [*refused(), *taken()] * ROUNDS, at_once=AT_ONCE, pause=0))
        flooded = await pick_up(http, beta, "flooded", lambda: not flooding.done())
        statuses = [*await attacking, *await flooding]

        async def worked_off() -> bool:
            return all(run.status in ENDED for run in (await alpha.runs(limit=1000)).items)

        await until(worked_off, 120)
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating
        used = {pid: memory(pid) for pid in (process.pid, *workers)}

    print(f"\npick-up p99 {p99(before):.4f} → {p99(beside):.4f} beside an attacker, {p99(flooded):.4f} in a flood")
    print(
        f"at most {max(flooded):.4f}, silent {pulse.longest:.3f} s, {Counter(statuses)}, {[n >> 20 for n in used.values()]} MB"
    )
    assert max(statuses) < 500 and {202, 403, 422} <= set(statuses), statuses
    assert p99(beside) <= 2 * p99(before) + SLACK
    assert max(flooded) <= SILENT + SLACK
    assert pulse.longest <= SILENT + SLACK
    alive = {worker.worker_id for worker in await fleet.backend.workers.workers() if worker.dead_at is None}
    assert registered <= alive
    assert max(used.values()) <= MOST_MEMORY, used
