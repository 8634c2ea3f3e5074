"""The number by which workers are scaled: a slot per run that runs or could run, and not 0 while something has a deadline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from runyard import Client
from runyard.models import HitlRequest
from runyard_backends.conformance.children import start_child
from runyard_backends.conformance.waits import park, signal, sleep
from runyard_backends.conformance.world import World
from runyard_backends.postgres.backend import connect
from tests.integration.postgres.test_reconciler_reads import LANES, blocks
from tests.support import chart

SLEEPS = """
INSERT INTO runyard.waits (thread_key, run_id, wait_id, kind, due_at)
SELECT l.thread_key, l.run_id, 'nap', 'sleep', now() + interval '1 day'
FROM runyard.live_runs l WHERE l.status = 'suspended' AND l.queue = 'default'
"""


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
async def world(postgres_url: str) -> AsyncIterator[World]:
    backend = await connect(postgres_url)
    yield World(backend, connect)
    await backend.close()


async def demand(connection: asyncpg.Connection, *queues: str) -> int:
    found: int = await connection.fetchval("SELECT runyard.worker_demand($1)", list(queues) or None)
    return found


async def test_each_lane_needs_a_slot_if_its_first_run_runs_or_waits_for_a_worker(
    world: World, connection: asyncpg.Connection
) -> None:
    """R1: a longer lane needs no second slot. A lane whose first run waits for a human, or for a retry, needs none."""
    assert await demand(connection) == 0
    await world.start("runs", thread="running")
    await world.accept("waits", thread="waiting")
    for n in range(3):
        await world.accept(f"behind{n}", thread="running")
        await world.accept(f"behind{n}", thread="waiting")
    await world.suspended("asks", thread="asks")
    await world.accept("behind", thread="asks")
    await world.runs.release(await world.start("retried", thread="retried"), delay=3600)
    await world.accept("late", thread="late", delay=3600)
    await world.accept("elsewhere", thread="gpu", queue="gpu")
    assert (await demand(connection), await demand(connection, "default"), await demand(connection, "gpu")) == (3, 2, 1)
    assert await demand(connection, "default", "gpu") == 3
    await world.backend.queues.pause("gpu")
    assert (await demand(connection), await demand(connection, "gpu")) == (2, 0)


async def has_a_delayed_run(world: World, url: str) -> None:
    await world.accept("late", delay=3600)


async def has_a_run_of_a_hosts_transaction(world: World, url: str) -> None:
    host = await asyncpg.connect(url)
    await host.execute("SELECT runyard.accept('t', 'hi')")
    await host.close()


async def has_a_retry(world: World, url: str) -> None:
    await world.runs.release(await world.start("r"), delay=3600)


async def has_an_expiring_run_behind_a_question(world: World, url: str) -> None:
    await world.suspended("r")
    async with Client.connect(url) as client:
        await client.enqueue("t", "hi", expires_in=3600)


async def has_a_question_with_a_deadline(world: World, url: str) -> None:
    await world.suspended("r", timeout=3600)


async def has_a_sleeper(world: World, url: str) -> None:
    await park(world, await world.start("r"), sleep(timeout=3600))


async def has_a_child_to_cancel(world: World, url: str) -> None:
    """The child asks a human. Only a worker passes the cancel of its parent on to it."""
    attempt = await world.start("r")
    await start_child(world, attempt)
    await world.ask(await world.take("c1", thread="child"), HitlRequest())
    await world.runs.cancel("t", "r")
    await world.runs.release(attempt)


@pytest.mark.parametrize(
    "happen",
    [
        has_a_delayed_run,
        has_a_run_of_a_hosts_transaction,
        has_a_retry,
        has_an_expiring_run_behind_a_question,
        has_a_question_with_a_deadline,
        has_a_sleeper,
        has_a_child_to_cancel,
    ],
)
async def test_one_worker_stays_while_something_has_a_deadline(
    world: World, connection: asyncpg.Connection, postgres_url: str, happen: Callable[[World, str], Awaitable[None]]
) -> None:
    await happen(world, postgres_url)
    assert (await demand(connection), await demand(connection, "default"), await demand(connection, "gpu")) == (1, 1, 0)


async def test_nothing_is_needed_while_only_humans_can_act(world: World, connection: asyncpg.Connection) -> None:
    await world.suspended("asks")
    await world.accept("behind")
    await world.turn("done", thread="done")
    assert await demand(connection) == 0


async def test_webhooks_and_removals_need_a_worker_of_any_queue(
    world: World, connection: asyncpg.Connection, postgres_url: str
) -> None:
    async with Client.connect(postgres_url) as client:
        await client.subscribe_webhook("https://hooks.example/x")
        assert await demand(connection) == 0
        await world.turn("done")
        assert (await demand(connection), await demand(connection, "default")) == (1, 0)
        await connection.execute("DELETE FROM runyard.outbox")
        assert await demand(connection) == 0
        await connection.execute(
            "INSERT INTO runyard.removals (thread_key, tenant, thread_id, erase) VALUES (1, '', 't', true)"
        )
        assert (await demand(connection), await demand(connection, "default")) == (1, 0)


async def test_the_queries_of_the_chart_run_with_the_right_to_call_one_function(
    world: World, connection: asyncpg.Connection
) -> None:
    await world.accept("r", queue="gpu")
    await connection.execute("DROP ROLE IF EXISTS scaler_test")
    await connection.execute("CREATE ROLE scaler_test")
    try:
        await connection.execute("GRANT USAGE ON SCHEMA runyard TO scaler_test")
        await connection.execute("GRANT EXECUTE ON FUNCTION runyard.worker_demand TO scaler_test")
        await connection.execute("SET ROLE scaler_test")
        found = {
            name: await connection.fetchval(scaled["spec"]["triggers"][0]["metadata"]["query"])
            for name, scaled in chart.of_kind(chart.rendered("everything"), "ScaledObject").items()
        }
        assert found == {"agents-worker-chat": 0, "agents-worker-gpu": 1, "agents-worker-plain": 1}
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("SELECT runyard.has_deadline(NULL)")
    finally:
        await connection.execute("RESET ROLE")
        await connection.execute("DROP OWNED BY scaler_test CASCADE")
        await connection.execute("DROP ROLE scaler_test")


async def test_the_demand_does_not_read_the_runs_that_wait_for_humans(connection: asyncpg.Connection) -> None:
    statement = "SELECT runyard.worker_demand(NULL)"
    await connection.execute(LANES, "queued", 50, None)
    before = await blocks(connection, statement)
    await connection.execute(LANES, "suspended", 20_000, None)
    assert await demand(connection) == 50
    assert await blocks(connection, statement) < before + 200


async def test_the_demand_of_a_queue_does_not_read_the_waits_of_others(world: World, connection: asyncpg.Connection) -> None:
    statement = "SELECT runyard.worker_demand(ARRAY['gpu'])"
    await park(world, await world.start("r", queue="gpu"), signal())
    before = await blocks(connection, statement)
    await connection.execute(LANES, "suspended", 20_000, None)
    await connection.execute(SLEEPS)
    await connection.execute("ANALYZE runyard.waits, runyard.live_runs, runyard.runs")
    assert (await demand(connection, "gpu"), await demand(connection, "default")) == (0, 1)
    assert await blocks(connection, statement) < before + 200
