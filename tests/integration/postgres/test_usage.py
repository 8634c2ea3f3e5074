"""Totals of usage under leaders that count at the same time, transactions that commit late, and leaders that die."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial

import asyncpg
import pytest

from runyard.domain.usage_report import UsageReport
from runyard.models import Usage
from runyard.ports.stores import Backend
from runyard.ports.workers import Retention, WorkerInfo
from runyard.worker.reconciler import Reconciler
from runyard_backends.conformance.world import World, now
from runyard_backends.postgres.backend import connect

USED = Usage(requests=1, input_tokens=7, output_tokens=3, cost=0.1, seconds=0.5)
COUNT = "SELECT runyard.count_usage($1)"


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[Backend]:
    backend = await connect(postgres_url, max_pool_size=12)
    yield backend
    await backend.close()


@pytest.fixture
async def world(backend: Backend) -> World:
    return World(backend, lambda: None)  # type: ignore[arg-type, return-value]


async def report(world: World) -> UsageReport:
    today, one = now().date(), timedelta(days=1)
    return await world.backend.usage.report(today - one, today + one)


async def runs(world: World) -> int:
    return (await report(world)).total.runs


async def test_leaders_that_count_together_count_once(world: World) -> None:
    """While runs end; each pass reads a few entries and stops anywhere."""
    writers, each, dice = 6, 15, random.Random(5)
    over = asyncio.Event()

    async def end(writer: int) -> None:
        for n in range(each):
            await world.turn(f"{writer}-{n}", thread=f"t{writer}", usage=USED)

    async def count() -> None:
        while not over.is_set():
            await world.backend.usage.count(dice.randint(1, 9))

    leaders = [asyncio.create_task(count()) for _ in range(3)]
    await world.hire()
    await asyncio.gather(*(end(n) for n in range(writers)))
    over.set()
    await asyncio.gather(*leaders)
    await world.count()
    total = (await report(world)).total
    many = writers * each
    assert (total.runs, total.requests, total.input_tokens, total.output_tokens) == (many, many, 7 * many, 3 * many)
    assert (total.cost, total.seconds) == (0.1 * many, 0.5 * many)


async def test_a_second_leader_does_not_wait(postgres_url: str, world: World) -> None:
    await world.turn("r1", usage=USED)
    await world.backend.usage.count()
    first = await asyncpg.connect(postgres_url)
    async with first.transaction(), asyncio.timeout(30):
        await first.execute(COUNT, 100)
        await world.backend.usage.count()
        assert await runs(world) == 0
    await first.close()
    await world.count()
    assert await runs(world) == 1


async def test_a_leader_that_dies_in_the_middle_counted_nothing(postgres_url: str, world: World) -> None:
    await world.turn("r1", usage=USED)
    await world.turn("r2", usage=USED)
    await world.backend.usage.count()
    dying = await asyncpg.connect(postgres_url)
    await dying.execute("BEGIN")
    await dying.execute(COUNT, 1)
    dying.terminate()
    await world.count()
    assert await runs(world) == 2


async def test_usage_that_commits_late_is_counted(postgres_url: str, world: World) -> None:
    """Of a transaction that began before others and commits after they were looked at; until then nothing is said complete."""
    await world.count()
    attempt = await world.start("late", thread="late")
    slow = await asyncpg.connect(postgres_url)
    begun = now()
    async with slow.transaction():
        await slow.execute(
            "SELECT runyard.complete(ARRAY[($1, $2, $3, NULL, NULL, $4::jsonb, NULL, 1)::runyard.attempt_write])",
            attempt.thread_key,
            attempt.run_id,
            attempt.fence,
            USED.model_dump_json(),
        )
        await world.turn("soon", thread="soon", usage=USED)
        for _ in range(5):
            await world.backend.usage.count()
        until = (await report(world)).counted_until
        assert until is not None and until < begun
        await world.workers.prune(Retention(feed=timedelta(0)))
    await slow.close()
    await world.count()
    found = await report(world)
    assert found.counted_until is not None and found.counted_until > begun
    assert (found.total.runs, found.total.input_tokens) == (2, 14)


async def test_the_leader_counts(world: World) -> None:
    """Whoever leads; there is nothing else to start. Two may lead for a moment."""
    await world.turn("r1", usage=USED)
    for name in ("one", "two"):
        await world.workers.register(WorkerInfo(worker_id=name, queues=["default"]))
    reconcilers = [
        Reconciler(world.backend, partial(str, name), lambda _: None, Retention(), leading=lambda: True)
        for name in ("one", "two")
    ]
    async with asyncio.timeout(20):
        while not await runs(world):
            for each in reconcilers:
                await each.step()


async def test_a_damaged_entry_holds_nobody_up(postgres_url: str, world: World) -> None:
    connection = await asyncpg.connect(postgres_url)
    columns, values = "tenant, thread_id, run_id, type, agent, usage", "'', 't', 'r', 'run.failed', $1, $2::jsonb"
    for usage in ('"x"', '{"cost": "much", "requests": 3}', "[1]", None, '{"cost": 9e131071}', '{"cost": -1}'):
        for agent in ("a", "", None):
            await connection.execute(f"INSERT INTO runyard.outbox ({columns}) VALUES ({values})", agent, usage)
    await connection.close()
    await world.count()
    total = (await report(world)).total
    assert (total.runs, total.requests, total.cost) == (18, 9, 0)
