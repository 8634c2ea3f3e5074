"""A server dies under load and another one takes its place: no acknowledged run is lost, and no effect happens twice.

RUNYARD_TEST_FAILOVER_RATE and RUNYARD_TEST_FAILOVER_SECONDS make the load higher and longer.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import asyncpg
import pytest

from runyard_backends.postgres.migrate import migrate
from runyard_backends.redis.key_names import Keys
from tests.support.failovers import PostgresPair, several_hosts
from tests.support.fleet import SLACK, until
from tests.support.redis_nodes import ClusterRedis, SentinelRedis
from tests.support.steady_load import SECONDS, steady_load

pytestmark = pytest.mark.xdist_group("failovers")

SOON = 5.0
"""Seconds after a promotion within which workers write again."""


@pytest.mark.timeout(300 + 8 * SECONDS)
async def test_a_synchronous_standby_is_promoted_under_load(redis_url: str, tmp_path: Path) -> None:
    """I1, I3: the primary is killed. The URL names both hosts. Every acknowledged commit is on the standby."""
    with PostgresPair(durable=True) as pair:
        await migrate(pair.primary.url)
        await pair.require_standby()
        async with steady_load(several_hosts(pair.primary, pair.standby), redis_url, tmp_path) as (load, _):
            await asyncio.to_thread(pair.primary.kill)
            await pair.promote()
            promoted = time.monotonic()
            standby = await asyncpg.connect(pair.primary.url)
            try:
                [moment] = await standby.fetchrow("SELECT clock_timestamp()") or []
                written = "SELECT count(*) > 0 FROM runyard.messages WHERE created_at > $1"
                await until(lambda: standby.fetchval(written, moment), SOON + SLACK)
                print(f"workers write {time.monotonic() - promoted:.2f} s after the promotion")
                await load.goes_on()
                await load.ends()
                await load.check()
            finally:
                await standby.close()


@pytest.mark.timeout(300 + 8 * SECONDS)
async def test_sentinels_promote_the_replica_of_redis_under_load(postgres_url: str, tmp_path: Path) -> None:
    """I1, I3: the primary of Redis is killed. Runs that were submitted to it start late."""
    async with SentinelRedis() as redis, steady_load(postgres_url, redis.url, tmp_path) as (load, _):
        await redis.lose(await redis.primary())
        promoted = time.monotonic()
        await load.goes_on()
        print(f"the load goes on {time.monotonic() - promoted:.2f} s after the promotion")
        await load.ends()
        await load.check()


@pytest.mark.timeout(300 + 8 * SECONDS)
async def test_a_cluster_loses_the_server_of_the_schedule_under_load(postgres_url: str, tmp_path: Path) -> None:
    """I1, I3: no run can be submitted or claimed until the replica holds the slot. The servers of other streams go on."""
    async with ClusterRedis() as redis, steady_load(postgres_url, redis.url, tmp_path) as (load, _):
        await redis.lose(await redis.primary_of(Keys().prefix(0)))
        promoted = time.monotonic()
        await load.goes_on()
        print(f"the load goes on {time.monotonic() - promoted:.2f} s after the promotion")
        await load.ends()
        await load.check()
