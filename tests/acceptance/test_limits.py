"""R16 with real workers: limits that are never exceeded and let go at once, and tenants that are served fairly."""

import asyncio
from contextlib import suppress

import asyncpg
import pytest

from runyard import Client
from tests.support.fleet import Fleet

LIMIT, RUNS = 3, 60
MANY, FEW, SLOTS = 2000, 5, 4


async def most_at_once(url: str) -> int:
    """How many runs were seen running at once, until cancelled."""
    most = 0
    connection = await asyncpg.connect(url)
    with suppress(asyncio.CancelledError):
        while True:
            most = max(most, await connection.fetchval("SELECT count(*) FROM runyard.runs WHERE status = 'running'"))
            await asyncio.sleep(0.002)
    await connection.close()
    return most


async def test_r16_an_agents_limit_holds_over_all_workers(fleet: Fleet) -> None:
    """R16: the rest wait, say why, go on as permits become free, and nobody has to rescue them."""
    client = fleet.client
    await client.set_limit("running_per_agent", LIMIT, subject="scripted")
    await asyncio.gather(fleet.start(), fleet.start())
    watching = asyncio.create_task(most_at_once(fleet.postgres))
    handles = await asyncio.gather(*(client.enqueue(f"t{n}", "sleep 0.05", "r") for n in range(RUNS)))
    blocked = await client.enqueue("blocked", "hang", "r")
    results = await asyncio.gather(*(handle.result(60) for handle in handles))
    assert all(result.ok for result in results)
    watching.cancel()
    assert await watching == LIMIT
    assert sum((await fleet.metric("runyard_rescues_total")).values()) == 0
    await client.set_limit("running_per_agent", 1, subject="scripted")
    waiting = await client.enqueue("waiting", "hello", "r")
    async with asyncio.timeout(20):
        while "waiting for a permit of agent scripted (limit 1)" not in await waiting.explain():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await blocked.cancel()
    assert (await waiting.result(20)).ok
    assert sum((await fleet.metric("runyard_rescues_total")).values()) == 0


@pytest.mark.slow
async def test_r16_a_tenant_with_many_lanes_does_not_starve_another(fleet: Fleet) -> None:
    """R16: of 2,000 lanes that were queued first, no more start before a late tenant's fifth run than twice its fair share."""
    many = fleet.client
    async with Client.connect(fleet.postgres, tenant="few", redis=fleet.redis) as few:
        await asyncio.gather(*(many.enqueue(f"t{n}", "sleep 0.01", "r") for n in range(MANY)))
        handles = [await few.enqueue(f"t{n}", "sleep 0.01", "r") for n in range(FEW)]
        await asyncio.gather(fleet.start(slots=SLOTS), fleet.start(slots=SLOTS))
        for handle in handles:
            assert (await handle.result(60)).ok
        connection = await asyncpg.connect(fleet.postgres)
        started = await connection.fetch("SELECT tenant FROM runyard.runs WHERE fence IS NOT NULL ORDER BY fence")
        await connection.close()
    places = [n for n, row in enumerate(started, 1) if row["tenant"] == "few"]
    assert len(places) == FEW
    assert places[-1] <= 2 * (2 * FEW) + 2 * SLOTS
