"""Workers and Redis are killed while an unmodified arq producer enqueues jobs. Each job has one run and a readable result.

``RUNYARD_TEST_ARQ_JOBS=1000`` is the long form. ``RUNYARD_TEST_SEED`` chooses the moments of the kills.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import msgpack
import pytest
from arq import create_pool
from arq.connections import ArqRedis, RedisSettings
from arq.jobs import Job
from redis.exceptions import RedisError

from runyard import Client
from runyard.domain.states import RunStatus
from runyard_backends.embedded.redis import EmbeddedRedis
from tests.support.fleet import Fleet

JOBS = int(os.environ.get("RUNYARD_TEST_ARQ_JOBS", "100"))
SEED = int(os.environ.get("RUNYARD_TEST_SEED", "7"))
THREADS = max(10, JOBS // 10)
WORKERS = 3
SECONDS_BETWEEN_JOBS = 0.03
DEATHS = ("runs.accept.after=crash+9", "runs.statuses.after=crash+3")
"""Failpoints. A worker dies after it accepted runs and before it recorded them in Redis, or before it wrote results."""

T = TypeVar("T")


class CarefulRedis(EmbeddedRedis):
    """A server that writes each change to its file before it answers. By default a server answers up to two seconds earlier
    while its disk is busy, and a kill loses the change."""

    def _settings(self) -> dict[str, object]:
        return super()._settings() | {"appendfsync": "always"}


@pytest.fixture
def redis() -> Iterator[EmbeddedRedis]:
    with CarefulRedis(appendonly=True) as server:
        yield server


async def persistent(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat ``call`` while Redis does not answer."""
    while True:
        try:
            return await call()
        except (RedisError, OSError):
            await asyncio.sleep(0.05)


async def produce(producer: ArqRedis) -> None:
    """Enqueue the jobs. Repeat a call whose answer was lost. One of the first jobs is deferred."""
    for n in range(JOBS):
        terms = {"_defer_by": 2.0} if n % 10 == 0 else {}
        await persistent(
            lambda n=n, terms=terms: producer.enqueue_job(  # type: ignore[misc]
                "prompt", f"t{n % THREADS}", f"sleep 0.02 | say {n}", _job_id=f"run-{n}", **terms
            )
        )
        await asyncio.sleep(SECONDS_BETWEEN_JOBS)


async def kill_workers(fleet: Fleet, moments: random.Random, producing: asyncio.Task[None]) -> None:
    """Kill one worker after the other while jobs are produced. Start another worker for each dead worker.

    A worker stays alive while it executes a run that the death of another worker has interrupted. On a slow machine such a run
    could be interrupted again and again without progress, and would be dead.
    """
    while not producing.done():
        await asyncio.wait((producing,), timeout=moments.uniform(0.4, 1.2))
        alive = {pid: process for pid, process in fleet.processes.items() if process.returncode is None}
        if len(alive) < WORKERS:
            await fleet.spawn("runyard.testing.scripted_agent:app", arq_queues="arq:queue", grace=1)
            continue
        running = (await fleet.client.runs(status=RunStatus.RUNNING, limit=1000)).items
        spared = {int(run.worker_id.split("-")[-2]) for run in running if run.crash_count and run.worker_id}
        if victims := [process for pid, process in alive.items() if pid not in spared]:
            moments.choice(victims).kill()


@pytest.mark.timeout(400)
async def test_each_job_is_one_run_whatever_dies(postgres_url: str, redis: EmbeddedRedis) -> None:
    """R2, R9: No job is lost. No run is executed twice. Each result is readable. Redis is killed twice and keeps its file."""
    moments = random.Random(SEED)
    settings = RedisSettings.from_dsn(redis.url)
    producer = await create_pool(settings, job_serializer=msgpack.packb, job_deserializer=msgpack.unpackb)
    async with Client.connect(postgres_url, redis=redis.url) as client:
        fleet = Fleet(postgres_url, redis.url, client, client.backend)
        try:
            for death in DEATHS:
                fleet.environment = {"RUNYARD_FAILPOINTS": death}
                await fleet.spawn("runyard.testing.scripted_agent:app", arq_queues="arq:queue", grace=1)
            fleet.environment = {}
            await fleet.spawn("runyard.testing.scripted_agent:app", arq_queues="arq:queue", grace=1)
            async with asyncio.TaskGroup() as group:
                producing = group.create_task(produce(producer))
                group.create_task(kill_workers(fleet, moments, producing))
                for _ in range(2):
                    await asyncio.sleep(JOBS * SECONDS_BETWEEN_JOBS * moments.uniform(0.2, 0.4))
                    await asyncio.to_thread(redis.kill)
                    await asyncio.sleep(moments.uniform(0.1, 0.5))
                    await asyncio.to_thread(redis.restart)
            died = [process.pid for process in fleet.processes.values() if process.returncode is not None]
            await fleet.start(arq_queues="arq:queue")
            for n in range(JOBS):
                job = Job(f"run-{n}", producer, _deserializer=msgpack.unpackb)
                value = await persistent(lambda job=job: job.result(poll_delay=0.05))  # type: ignore[misc]
                assert value == {
                    "thread_id": f"t{n % THREADS}",
                    "run_id": f"run-{n}",
                    "status": "completed",
                    "text": str(n),
                    "value": None,
                }
            for t in range(THREADS):
                mine = {f"run-{n}": ["user", "assistant"] for n in range(t, JOBS, THREADS)}
                runs = (await client.runs(f"t{t}", limit=1000)).items
                assert {run.run_id: run.status for run in runs} == dict.fromkeys(mine, RunStatus.COMPLETED)
                roles: dict[str | None, list[str]] = {}
                for message in (await client.messages(f"t{t}", limit=1000)).items:
                    roles.setdefault(message.run_id, []).append(message.role)
                assert roles == mine
            keys = [*await producer.keys("arq:*"), *await producer.keys("*arq_*")]
            assert sorted(keys) == sorted(f"arq:result:run-{n}".encode() for n in range(JOBS))
            print(f"{JOBS} jobs, {len(died)} workers died, seed {SEED}")
        finally:
            await fleet.stop()
            await producer.aclose()
