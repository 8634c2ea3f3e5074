"""Servers that go away under load, and a Redis that loses everything (O1 to O3)."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis

from runyard.client.run_handle import RunHandle
from runyard.domain.states import RunStatus
from runyard.errors import BackendUnavailableError
from runyard.models import Run, new_id
from runyard.worker.lost_jobs import MIN_HEAD_AGE
from runyard_backends.embedded import EmbeddedPostgres, EmbeddedRedis
from tests.support.fleet import SLACK, Fleet, until

OUTAGE = float(os.environ.get("RUNYARD_TEST_OUTAGE", "4"))
"""Seconds for which Redis is down."""
STALL = float(os.environ.get("RUNYARD_TEST_STALL", "5"))
"""Seconds for which Postgres does not answer; more than the death limit of a worker."""
EVERY = 0.05
"""Seconds between two prompts of the load."""
BACK = timedelta(seconds=5)
"""How long after an outage everything may take that came before or during it."""
LOST = 1000
"""Queued runs that Redis forgets."""


@dataclass
class Load:
    """A steady stream of prompts, each on a thread of its own, for as long as the block lasts. What a client cannot tell
    is repeated under the same id, as a web backend would."""

    fleet: Fleet
    handles: list[RunHandle] = field(default_factory=list)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._enqueue(new_id()))
                await asyncio.sleep(EVERY)

    async def _enqueue(self, name: str) -> None:
        while True:
            try:
                self.handles.append(await self.fleet.client.enqueue(name, "say a | sleep 0.05 | say b", name))
                return
            except BackendUnavailableError:
                await asyncio.sleep(0.2)

    async def results(self) -> list[Run]:
        """The runs, when all have ended."""
        return [result.run for result in await asyncio.gather(*(handle.result(60) for handle in self.handles))]


@asynccontextmanager
async def under_load(fleet: Fleet, workers: int = 2) -> AsyncIterator[Load]:
    """Workers and a load on them that was served for a while."""
    await asyncio.gather(*(fleet.start() for _ in range(workers)))
    load = Load(fleet)
    task = asyncio.create_task(load.run())

    async def served() -> bool:
        return len(load.handles) > 20 and await load.handles[20].status() is RunStatus.COMPLETED

    try:
        await until(served)
        yield load
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def none_died(fleet: Fleet, crashes_of: Sequence[Run]) -> None:
    """No process left, no worker was declared dead, nothing was taken over."""
    assert all(process.returncode is None for process in fleet.processes.values())
    workers = await fleet.backend.workers.workers()
    assert len(workers) == len(fleet.processes) and all(worker.dead_at is None for worker in workers)
    assert {(run.attempt, run.crash_count, run.error_count) for run in crashes_of} == {(1, 0, 0)}


def later_than(runs: Sequence[Run], moment: datetime) -> float:
    """By how many seconds the last of those runs ended after ``moment`` that were accepted before it."""
    return max((run.finished_at - moment).total_seconds() for run in runs if run.finished_at and run.accepted_at < moment)


def longest(runs: Sequence[Run]) -> float:
    """Return the most seconds from the accept to the end of one of these runs."""
    return max((run.finished_at - run.accepted_at).total_seconds() for run in runs if run.finished_at)


async def outlast(load: Load, outage: Callable[[], Awaitable[None]]) -> list[Run]:
    """Let the outage happen; afterwards everything has to be as before, soon. Returns the load's runs."""
    before = datetime.now(UTC)
    await outage()
    over = datetime.now(UTC)
    while datetime.now(UTC) < over + BACK + timedelta(seconds=2):  # noqa: ASYNC110 - the load goes on for so long
        await asyncio.sleep(0.1)
    runs = await load.results()
    assert {run.status for run in runs} == {RunStatus.COMPLETED}
    late = later_than(runs, over)
    after = [run for run in runs if run.accepted_at > over + BACK]
    usual, slowest = longest([run for run in runs if run.finished_at and run.finished_at < before]), longest(after)
    print(
        f"\nof {len(runs)} runs the last from before ended {late:.2f} s after; {len(after)} later ones took ≤ {slowest:.2f} s, "
        f"and those before it ≤ {usual:.2f} s"
    )
    assert late <= BACK.total_seconds() + usual + SLACK
    assert after and slowest <= 1 + 2 * usual + SLACK
    return runs


@pytest.mark.timeout(300 + 2 * OUTAGE)
async def test_redis_is_down(fleet: Fleet, redis_server: EmbeddedRedis) -> None:
    """I1: what runs completes meanwhile; what is accepted meanwhile is late, not lost; nobody exits."""
    async with under_load(fleet) as load:
        running = await fleet.client.enqueue("running", f"say half | sleep {OUTAGE / 2} | say end")
        await fleet.holder("running", running.id)

        async def outage() -> None:
            await asyncio.to_thread(redis_server.kill)
            await asyncio.sleep(OUTAGE)
            run = await running.run()
            await asyncio.to_thread(redis_server.restart)
            assert run.status is RunStatus.COMPLETED

        runs = await outlast(load, outage)
        await none_died(fleet, runs)


async def test_postgres_restarts(fleet: Fleet, postgres_server: EmbeddedPostgres) -> None:
    """I1: claims stop, fenced writes are repeated within a bound, nothing is lost."""
    async with under_load(fleet) as load:
        running = await fleet.client.enqueue("running", "say half | sleep 1 | say end")
        await fleet.holder("running", running.id)
        runs = await outlast(load, lambda: asyncio.to_thread(postgres_server.restart))
        assert (await running.result(30)).ok
        await none_died(fleet, runs)


@pytest.mark.timeout(300 + 2 * STALL)
async def test_postgres_stalls(fleet: Fleet, postgres_server: EmbeddedPostgres) -> None:
    """W1, O2: a store that does not answer says nothing about workers; none is declared dead, nothing taken over."""
    async with under_load(fleet) as load:

        async def outage() -> None:
            postgres_server.pause()
            await asyncio.sleep(STALL)
            postgres_server.resume()

        await none_died(fleet, await outlast(load, outage))


async def test_redis_loses_everything(fleet: Fleet, redis_url: str) -> None:
    """I1, O3: FLUSHALL with 1,000 queued, 100 running and 100 suspended runs. None is lost, none runs twice."""
    await fleet.start()
    suspended = [await fleet.client.enqueue(f"s{n}", "color?") for n in range(100)]
    for handle in suspended:
        assert (await handle.result(20)).status is RunStatus.SUSPENDED

    async def drain(turn: int, flush: bool) -> tuple[float, float, list[RunHandle]]:
        """Seconds to the first start and to the last end of LOST runs that were queued."""
        await fleet.backend.queues.pause("default")
        queued = await asyncio.gather(*(fleet.client.enqueue(f"q{turn}-{n}", "say x") for n in range(LOST)))
        accepted_at = (await queued[-1].run()).accepted_at

        async def settled() -> bool:
            return datetime.now(UTC) - accepted_at > MIN_HEAD_AGE

        await until(settled)
        async with Redis.from_url(redis_url) as redis:
            if flush:
                await redis.flushall()
        began = datetime.now(UTC)
        await fleet.backend.queues.resume("default")
        runs = [result.run for result in await asyncio.gather(*(handle.result(60) for handle in queued))]
        assert {run.status for run in runs} == {RunStatus.COMPLETED}
        starts, ends = [run.started_at for run in runs if run.started_at], [run.finished_at for run in runs if run.finished_at]
        return (min(starts) - began).total_seconds(), (max(ends) - began).total_seconds(), list(queued)

    _, usual, _ = await drain(0, flush=False)
    running = [await fleet.client.enqueue(f"r{n}", "say half | sleep 5 | say end") for n in range(100)]

    async def all_run() -> bool:
        return all([await handle.status() is RunStatus.RUNNING for handle in running])

    await until(all_run)
    first, last, queued = await drain(1, flush=True)
    print(f"\nfirst start after {first:.2f} s, {LOST} runs after {last:.2f} s, without a flush after {usual:.2f} s")
    assert first <= 3 + SLACK
    assert last <= usual + 10
    for handle in suspended:
        await fleet.client.respond(handle.thread_id, "blue")
    results = await asyncio.gather(*(handle.result(60) for handle in (*running, *suspended, *queued)))
    assert {result.status for result in results} == {RunStatus.COMPLETED}
    assert {result.run.attempt for result in results[: len(running)]} == {1}
    assert {result.run.crash_count for result in results} == {0}
