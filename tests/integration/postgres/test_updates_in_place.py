"""What the path of a run changes is in no index, and its rows have room: Postgres updates them in place (heap-only tuples)."""

import asyncio

import asyncpg
import pytest

from runyard_backends.conformance.world import World, call, result, said
from runyard_backends.postgres.backend import connect

RUNS = 150
SHARE = 0.9
"""Share of the updates of a table that change no index."""
COUNTS = """
SELECT relname, n_tup_upd AS updates, n_tup_hot_upd AS in_place FROM pg_stat_user_tables
WHERE schemaname = 'runyard' AND relname IN ('runs', 'threads', 'branches', 'workers', 'live_runs')
"""


async def one_run(world: World, n: int, thread: str, cycles: int) -> None:
    """A claim, two appends per tool cycle, and the end with an answer."""
    attempt = await world.start(f"r{n}", thread=thread)
    for cycle in range(cycles):
        await world.runs.append(attempt, [call(f"c{cycle}")])
        await world.runs.append(attempt, [result(f"c{cycle}")])
    await world.finish(attempt, said("an answer " * 30))


@pytest.mark.parametrize("cycles", [0, 2], ids=["simple", "tools"])
@pytest.mark.parametrize("together", [1, 10], ids=["one by one", "ten at once"])
async def test_the_path_of_a_run_updates_in_place(postgres_url: str, cycles: int, together: int) -> None:
    """Q2: at least nine of ten updates of runs, threads, branches and workers write no index."""
    backend = await connect(postgres_url)
    world = World(backend, lambda: None)  # type: ignore[arg-type, return-value]
    await world.hire()
    numbers = iter(range(RUNS))

    async def work(caller: int) -> None:
        for n in numbers:
            await one_run(world, n, f"new-{n}" if n % 2 else f"long-{caller}", cycles)
            await backend.workers.beat("w")

    await asyncio.gather(*(work(caller) for caller in range(together)))
    await backend.close()  # a session reports its counts at its end
    connection = await asyncpg.connect(postgres_url)
    try:
        async with asyncio.timeout(30):
            while True:
                counts = {row["relname"]: (row["updates"], row["in_place"]) for row in await connection.fetch(COUNTS)}
                if counts["runs"][0] >= RUNS * (2 + 2 * cycles):
                    break
                await asyncio.sleep(0.05)
    finally:
        await connection.close()
    print(f"updates, and those in place: {counts}")
    assert counts.pop("live_runs")[0] == RUNS, "only the claim changes what is in an index"
    for table, (updates, in_place) in counts.items():
        assert updates >= RUNS and in_place >= SHARE * updates, f"{table}: {in_place} of {updates}"
