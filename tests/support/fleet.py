"""Worker processes for tests, and their metrics. The fixture ``fleet`` makes a fleet. Tests start its workers."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from runyard import Client
from runyard.domain.states import RunStatus
from runyard.models import Run
from runyard.ports.refs import RunRef
from runyard.ports.stores import Backend
from runyard_backends.conformance.world import proved
from tests.support.forked import ForkedProcess

WorkerProcess: TypeAlias = ForkedProcess | asyncio.subprocess.Process

SCRIPTED = "runyard.testing.scripted_agent:app"
SLACK = float(os.environ.get("RUNYARD_TEST_SLACK", "2"))
"""Seconds by which an operation may exceed its bound on a machine under load. 0 tests the promise itself."""
SCHEDULING = {"job", "later", "due", "turns", "lock", "wait", "wake", "end_wait"}
"""The kinds of keys in Redis of jobs, of locks and of workers that wait for jobs."""
PROGRAM = """
import sys
from runyard_api.worker.process import run_worker
from runyard.app import load_app
from runyard.support.logging import configure
from runyard.support.settings import Settings
settings = Settings()
configure(settings.log_level, "json")
run_worker(load_app(sys.argv[1]), settings)
"""


@dataclass
class Fleet:
    """Worker processes on one Postgres and one Redis, and a client of both. ``environment``: variables for the workers."""

    postgres: str
    redis: str
    client: Client
    backend: Backend
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: dict[int, WorkerProcess] = field(default_factory=dict)
    metrics: dict[int, str] = field(default_factory=dict)

    async def start(self, grace: float = 10, app: str = SCRIPTED, **settings: object) -> int:
        """Start a worker, wait until it is registered, and return its pid. ``settings``: fields of the worker's Settings."""
        process = await self.spawn(app, grace=grace, **settings)

        async def registered() -> bool:
            assert process.returncode is None
            return any(f"-{process.pid}-" in worker.worker_id for worker in await self.backend.workers.workers())

        await until(registered, 30)
        return process.pid

    async def spawn(self, app: str, log: int | None = None, **settings: object) -> WorkerProcess:
        """Start a worker's process and return without waiting. ``log``: a file descriptor for its output, by default that of
        this process. With ``log``, the process imports runyard itself."""
        port = free_port()
        own = {"postgres_url": self.postgres, "redis_url": self.redis, "metrics_port": port, **settings}
        variables = {f"RUNYARD_{name.upper()}": str(value) for name, value in own.items()}
        environment = {**os.environ, **self.environment, **variables}
        process: WorkerProcess
        if log is None:
            process = await ForkedProcess.worker(app, environment)
        else:
            command = (sys.executable, "-c", PROGRAM, app)
            process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
        self.processes[process.pid] = process
        self.metrics[process.pid] = f"http://127.0.0.1:{port}/metrics"
        return process

    async def stop(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                await process.wait()

    async def holder(self, thread_id: str, run_id: str, messages: int = 1) -> int:
        """Wait until the run has this number of committed messages. Return the pid of its worker."""

        async def committed() -> bool:
            run = await self.client.run(thread_id, run_id)
            return run.status is RunStatus.RUNNING and len(await self.own(run)) >= messages

        await until(committed)
        run = await self.client.run(thread_id, run_id)
        assert run.worker_id is not None
        return int(run.worker_id.split("-")[-2])

    async def own(self, run: Run) -> list[str]:
        key = await self.backend.threads.thread_key(run.thread_id)
        assert key is not None
        events = await proved(self.backend.runs, RunRef(key, run.run_id))
        return [event.type for event in events if event.type == "message.completed"]

    async def metric(self, name: str, **labels: str) -> Mapping[int, float]:
        """Return the sum of a metric's samples with ``labels``, for each live worker."""
        alive = [pid for pid, process in self.processes.items() if process.returncode is None]
        texts = await asyncio.gather(*(asyncio.to_thread(scrape, self.metrics[pid]) for pid in alive))
        return {pid: total(text, name, labels) for pid, text in zip(alive, texts, strict=True)}

    async def nothing_scheduled(self) -> bool:
        """Return whether Redis has no key of SCHEDULING."""
        async with Redis.from_url(self.redis, decode_responses=True) as redis:
            keys = {key async for key in redis.scan_iter(count=1000)}
        return not {key.split(":")[2] for key in keys} & SCHEDULING

    async def no_slot_in_use(self) -> bool:
        """Return whether no live worker executes a run."""
        return not any((await self.metric("runyard_slots_in_use")).values())


def scrape(url: str, seconds: float = 10) -> str:
    """Return the answer of a worker's metrics endpoint."""
    with urllib.request.urlopen(url, timeout=seconds) as reply:
        text: str = reply.read().decode()
        return text


def total(text: str, name: str, labels: Mapping[str, str]) -> float:
    """Return the sum of a metric's samples with ``labels``."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples if sample.name == name]
    assert samples, f"no metric {name}"
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


FIRST_PORT = 10_000 + os.getpid() % 110 * 200
PORTS = itertools.cycle(range(FIRST_PORT, FIRST_PORT + 200))
"""Ports of this process: below those that a kernel chooses, and others than those of processes with neighbouring ids."""


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens. Nobody else is given it before a server takes it."""
    for port in PORTS:
        with suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            return port
    raise AssertionError


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    """Wait until the condition holds. ``seconds``: more than a slow machine needs."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - the state is in a store
            await asyncio.sleep(0.05)
