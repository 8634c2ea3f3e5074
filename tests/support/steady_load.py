"""A steady load for the time in which servers change: runs with one side effect each, and the count of what became of them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from runyard import Client
from runyard.domain.states import ENDED, RunStatus
from runyard.errors import BackendUnavailableError
from tests.support.agents.chaos import TRACE_VARIABLE, Plan
from tests.support.fleet import Fleet, until

APP: Final = "tests.support.agents.chaos_app:app"
RATE: Final = float(os.environ.get("RUNYARD_TEST_FAILOVER_RATE", "30"))
"""Runs that are enqueued per second."""
SECONDS: Final = float(os.environ.get("RUNYARD_TEST_FAILOVER_SECONDS", "1"))
"""Seconds of load before the servers change, and again afterwards."""
WORKERS: Final = 2
PLAN: Final = Plan(steps=1).text()
ENDS_WITHIN_SECONDS: Final = 60.0 + 4 * SECONDS
"""Seconds after the load within which all its runs must have ended, also on a machine that executes fewer runs than RATE."""


@dataclass
class SteadyLoad:
    """Enqueues runs on threads of their own and repeats each call until it is acknowledged. ``acknowledged``: the time of the
    acknowledgement of each run, in seconds of the monotonic clock. ``trace``: the file in which the agents note their
    effects."""

    client: Client
    trace: Path
    acknowledged: dict[str, float] = field(default_factory=dict)
    _over: bool = False
    _calls: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """Enqueue RATE runs per second until :meth:`ends`."""
        began, n = time.monotonic(), 0
        while not self._over:
            n += 1
            call = asyncio.create_task(self._enqueue(f"load-{n}"))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            await asyncio.sleep(began + n / RATE - time.monotonic())

    async def _enqueue(self, name: str) -> None:
        while True:
            try:
                await self.client.enqueue(name, PLAN, run_id=name)
                break
            except BackendUnavailableError:
                await asyncio.sleep(0.1)
        self.acknowledged[name] = time.monotonic()

    async def goes_on(self) -> None:
        """Wait until SECONDS of further load were acknowledged."""
        since = time.monotonic()

        async def enough() -> bool:
            return sum(at > since for at in self.acknowledged.values()) >= RATE * SECONDS

        await until(enough, SECONDS + ENDS_WITHIN_SECONDS)

    async def ends(self) -> None:
        """Stop the load. Wait until every call is acknowledged and every run has ended."""
        self._over = True
        await asyncio.gather(*self._calls)

        async def ended() -> bool:
            names = [*self.acknowledged]
            return all(status in ENDED for status in await self._statuses(names))

        await until(ended, ENDS_WITHIN_SECONDS)

    async def _statuses(self, names: list[str]) -> list[RunStatus | None]:
        return await self.client.backend.runs.statuses([(name, name) for name in names])

    async def check(self) -> None:
        """Check that no acknowledged run is lost or unsuccessful, and that no effect happened twice."""
        names = [*self.acknowledged]
        found = dict(zip(names, await self._statuses(names), strict=True))
        lost = {name: status for name, status in found.items() if status is not RunStatus.COMPLETED}
        assert not lost, lost
        notes = [json.loads(line) for line in self.trace.read_text().splitlines()]
        times = {note["run"]: note["at"] for note in notes if note["what"] == "effect"}
        effects = Counter(note["run"] for note in notes if note["what"] == "effect")
        twice = {name: count for name, count in effects.items() if count > 1}
        assert not twice, twice
        assert effects.keys() == set(names)
        print(f"{len(names)} runs accepted, 0 lost: {_pace(self.acknowledged.values())}")
        print(f"{effects.total()} effects, 0 twice: {_pace(times.values())}")


def _pace(moments: Iterable[float]) -> str:
    """Return the rate and the longest pause of what happened at these moments, in seconds."""
    ordered = sorted(moments)
    rate, pause = len(ordered) / (ordered[-1] - ordered[0]), max(later - earlier for earlier, later in pairwise(ordered))
    return f"{rate:.0f} per second, the longest pause {pause:.1f} s"


@asynccontextmanager
async def steady_load(postgres: str, redis: str, directory: Path) -> AsyncIterator[tuple[SteadyLoad, Fleet]]:
    """Start workers and the load. Its runs are being executed when the block begins. ``directory``: for the trace."""
    trace = directory / "trace"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client.connect(postgres, redis=redis, command_timeout=10, max_pool_size=20))
        fleet = Fleet(postgres, redis, client, client.backend, environment={TRACE_VARIABLE: str(trace)})
        stack.push_async_callback(fleet.stop)
        for _ in range(WORKERS):
            await fleet.start(app=APP)
        load = SteadyLoad(client, trace)
        running = asyncio.create_task(load.run())
        try:
            await load.goes_on()
            yield load, fleet
        finally:
            running.cancel()
