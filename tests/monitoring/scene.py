"""A live deployment under load, with a failure: two workers, the HTTP API, and a Prometheus that scrapes all three."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from runyard import Client, RunHandle
from runyard.domain.states import ENDED, RunStatus
from runyard.errors import ThreadNotFoundError
from tests.support.fleet import Fleet, free_port, until
from tests.support.prometheus import Prometheus

APP: Final = "tests.support.agents.metered:app"
AGENTS: Final = ("scripted", "writer", "reader", "priced", "thrifty")
RUNYARD: Final = (sys.executable, "-P", "-m", "runyard_api.cli")
BOUND: Final = 60.0
HELD: Final = 6
"""Runs under way when a worker is killed, at least one of them on it."""
HELD_SECONDS: Final = 5


@dataclass
class Scene:
    """A running deployment. ``client`` speaks to the HTTP API. ``ended``: the number of runs that have ended."""

    fleet: Fleet
    prometheus: Prometheus
    client: Client
    round: int = 0
    ended: int = 0

    async def play(self, runs: int) -> None:
        """Enqueue about ``runs`` runs over HTTP, and wait until they have ended. Ask, answer, fork, delay, and fail some."""
        self.round += 1
        names = [("writer", "reader", "priced", "scripted")[n % 4] for n in range(runs)]
        prompts = [(f"chat{self.round}-{n % 40}", f"say word {n}", name) for n, name in enumerate(names)]
        prompts += [(f"fails{self.round}", "fail", "scripted"), (f"thrifty{self.round}", "go on", "thrifty")]
        asks, waits = f"asks{self.round}", f"inbox{self.round}"
        prompts += [(asks, "color? | say thanks", "scripted"), (waits, "still there?", "scripted")]
        handles = await asyncio.gather(*(self.client.enqueue(thread, text, agent=agent) for thread, text, agent in prompts))
        await self.client.enqueue(f"late{self.round}", "say late", agent="scripted", delay=3600)
        await asyncio.gather(*(follow(handle) for handle in handles[:10]))
        await self.stopped(handles)
        await self.client.respond(asks, "blue")
        fork = await self.client.enqueue_fork(f"chat{self.round}-0", f"fork{self.round}")
        await self.stopped([handles[-2], fork])
        with suppress(ThreadNotFoundError):
            await self.client.thread("nobody")
        self.ended += len(prompts)  # without the run that waits, and with the fork

    async def stopped(self, handles: Sequence[RunHandle]) -> None:
        """Wait until the runs have ended or wait for a human."""
        runs = [(handle.thread_id, handle.id) for handle in handles]

        async def all_stopped() -> bool:
            await asyncio.sleep(0.1)
            statuses = await self.fleet.backend.runs.statuses(runs)
            return all(status in ENDED or status is RunStatus.SUSPENDED for status in statuses)

        await until(all_stopped, BOUND)

    async def kill_a_worker(self) -> int:
        """Kill a worker that executes runs, start another one, and return the number of runs that were taken over."""
        await self.scraped()  # what the worker has counted is lost with it
        self.round += 1
        script = f"say begun | tool add 1 2 | sleep {HELD_SECONDS} | say ended"
        handles = [await self.client.enqueue(f"held{self.round}-{n}", script, agent="scripted") for n in range(HELD)]
        victim = await self.fleet.holder(f"held{self.round}-0", handles[0].id, 3)
        os.kill(victim, signal.SIGKILL)
        self.fleet.processes.pop(victim)
        self.fleet.metrics.pop(victim)
        await self.fleet.start(app=APP)
        self.watch()
        await self.stopped(handles)
        self.ended += HELD
        found = [await self.fleet.client.run(handle.thread_id, handle.id) for handle in handles]
        assert {run.status for run in found} == {RunStatus.COMPLETED}
        return sum(run.crash_count for run in found)

    def watch(self) -> None:
        """Let Prometheus scrape the workers that live."""
        self.prometheus.watch([url.split("/")[2] for url in self.fleet.metrics.values()], job="runyard-worker")

    async def scraped(self, seconds: float = BOUND) -> None:
        """Wait until Prometheus has seen all ends of runs."""
        ends = "sum(max_over_time(runyard_runs_finished_total[10m]))"

        async def seen() -> bool:
            await asyncio.sleep(0.2)
            return await asyncio.to_thread(self.prometheus.value, ends) >= self.ended

        await until(seen, seconds)


async def follow(handle: RunHandle) -> None:
    """Read the stream of a run to its end."""
    async for _ in handle.stream():
        pass


@asynccontextmanager
async def deployment(fleet: Fleet, directory: Path) -> AsyncIterator[Scene]:
    """Start two workers, the API and Prometheus, each a process of its own."""
    await asyncio.gather(fleet.start(app=APP), fleet.start(app=APP))
    _, traffic = await fleet.client.create_key("traffic")
    _, scraper = await fleet.client.create_key("prometheus", scopes=("metrics",))
    async with _api(fleet) as port:
        (directory / "key").write_text(scraper)
        job = {
            "job_name": "runyard-api",
            "authorization": {"credentials_file": str(directory / "key")},
            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
        }
        with Prometheus(directory, [job]) as prometheus:
            async with Client.connect(f"http://127.0.0.1:{port}", api_key=traffic) as client:
                scene = Scene(fleet, prometheus, client)
                scene.watch()
                yield scene


@asynccontextmanager
async def _api(fleet: Fleet) -> AsyncIterator[int]:
    """Start ``runyard api``, wait until it is ready, and yield its port."""
    port = free_port()
    own = {name: value for name, value in os.environ.items() if not name.startswith("RUNYARD_")}
    servers = {"RUNYARD_POSTGRES_URL": fleet.postgres, "RUNYARD_REDIS_URL": fleet.redis}
    more = {"RUNYARD_API_TOKEN_SECRET": "s" * 32, "RUNYARD_LOG_LEVEL": "error"}
    process = await asyncio.create_subprocess_exec(*RUNYARD, "api", "--port", str(port), env={**own, **servers, **more})
    try:
        async with httpx.AsyncClient() as http:

            async def ready() -> bool:
                assert process.returncode is None
                try:
                    return (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(ready, BOUND)
        yield port
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
