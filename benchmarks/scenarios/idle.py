"""Commands that an idle worker sends to Redis.

Measured with MONITOR: commands per second from all connections to the benchmark's Redis database, while one worker waits for
jobs and no job is enqueued. For runyard, a second case counts only the commands of the worker's main connection, which the
worker's heartbeat thread does not use. Commands inside a script do not count.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from redis.asyncio import Redis

from benchmarks import peers
from benchmarks.harness import Sample, Scenario
from benchmarks.lab import Lab
from benchmarks.scenarios._queues import contestants, started

ALL, MAIN = "all connections", "main connection"
SETTLING = 2.0
"""Seconds between the warm-up and the first counted command."""
SECONDS = 8.0


async def turn(lab: Lab, contestant: peers.QueueContestant, case: str) -> Sample | None:
    if case == MAIN and contestant.main_connection is None:
        return None
    async with started(lab, contestant, slots=0):
        await asyncio.sleep(SETTLING)
        async with Redis.from_url(lab.redis_url, decode_responses=True) as redis:
            commands = await _commands(redis, SECONDS)
            if case == MAIN:
                main = {client["addr"] for client in await redis.client_list() if client["name"] == contestant.main_connection}
                if not main:
                    raise LookupError(f"no Redis connection is named {contestant.main_connection!r}")
                commands = Counter({address: count for address, count in commands.items() if address in main})
    return Sample([commands.total() / SECONDS])


async def _commands(redis: Redis, seconds: float) -> Counter[str]:
    """Return client address → number of commands sent within ``seconds``."""
    database = str(redis.connection_pool.connection_kwargs.get("db") or 0)
    commands: Counter[str] = Counter()
    async with redis.monitor() as monitor:
        try:
            async with asyncio.timeout(seconds):
                async for command in monitor.listen():
                    if str(command["db"]) == database and command["client_type"] != "lua":
                        commands[f"{command['client_address']}:{command['client_port']}"] += 1
        except TimeoutError:
            return commands
    raise ConnectionError("MONITOR ended")


SCENARIO = Scenario(
    name="idle",
    title="Commands that an idle worker sends to Redis",
    unit="commands/s",
    better="lower",
    cases=(ALL, MAIN),
    contestants=contestants(turn, (peers.ARQ, peers.ARQ_DEFAULT, peers.SAQ)),
    rounds=1,
    seconds=60,
)
