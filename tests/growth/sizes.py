"""What a run, and what each message, tool cycle or step of a run costs in bytes: of tables, of indexes and of the write-ahead
log (docs/growth.md).

``python -m tests.growth.sizes`` prints the figures. Each is measured in a new database on a private server. Names as arguments
measure these costs only. ``RUNYARD_GROWTH_MEASURED`` sets the number of runs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count

import asyncpg

from runyard.domain.fan_outs import key_of
from runyard.domain.waits import Wait
from runyard.models import HitlRequest, Usage, new_id
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest, Write
from runyard.ports.fan_outs import ProbeEnd
from runyard.ports.refs import AttemptToken
from runyard_backends.conformance.world import World, call, result, said, user
from runyard_backends.embedded import EmbeddedPostgres
from runyard_backends.postgres.backend import connect
from runyard_backends.postgres.migrate import migrate

RUNS = int(os.environ.get("RUNYARD_GROWTH_MEASURED", "2000"))
THREADS = 200
TOGETHER = 10
"""Callers that run at once."""
EARLIER = 100
"""Runs before the measurement."""
CANDIDATES = 20
"""Candidates of a fan-out."""
TEXT = "a sentence of thirty letters. " * 9
"""The text of a message: 270 bytes."""
STATE = """
SELECT pg_current_wal_lsn() - '0/0' AS wal, sum(pg_table_size(c.oid))::bigint AS tables,
       sum(pg_indexes_size(c.oid))::bigint AS indexes,
       (SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()) AS blocks
FROM pg_class c WHERE c.relnamespace = 'runyard'::regnamespace AND c.relkind = 'r'
"""
TABLES = """
SELECT c.relname, pg_table_size(c.oid) AS bytes, pg_indexes_size(c.oid) AS indexes FROM pg_class c
WHERE c.relnamespace = 'runyard'::regnamespace AND c.relkind = 'r' AND pg_table_size(c.oid) > 100000 ORDER BY 2 DESC
"""

Turn = Callable[[World, str, str], Awaitable[None]]
"""Executes the run with an id on a thread."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of the write-ahead log, of tables and of indexes, and blocks that were looked at."""

    wal: float
    tables: float
    indexes: float
    blocks: float

    def above(self, base: Cost, units: int) -> Cost:
        """Return the part above ``base``, for each of ``units``."""
        mine, others = ((c.wal, c.tables, c.indexes, c.blocks) for c in (self, base))
        return Cost(*((a - b) / units for a, b in zip(mine, others, strict=True)))

    def __str__(self) -> str:
        return f"WAL {self.wal:,.0f} B, tables {self.tables:,.0f} B, indexes {self.indexes:,.0f} B, {self.blocks:,.0f} blocks"


def turn(between: Callable[[World, str, AttemptToken], Awaitable[AttemptToken]] | None = None) -> Turn:
    """Return a run of a user's message and an answer, with ``between`` before the answer."""

    async def execute(world: World, run_id: str, thread: str) -> None:
        attempt = await world.start(run_id, TEXT, thread=thread)
        if between is not None:
            attempt = await between(world, thread, attempt)
        await world.finish(attempt, said(TEXT))

    return execute


async def messages(world: World, thread: str, attempt: AttemptToken) -> AttemptToken:
    for _ in range(2):
        await world.runs.append(attempt, [said(TEXT)])
    return attempt


async def cycles(world: World, thread: str, attempt: AttemptToken) -> AttemptToken:
    for cycle in range(2):
        await world.runs.append(attempt, [call(f"call-{cycle}", text=TEXT)])
        await world.runs.append(attempt, [result(f"call-{cycle}")])
    return attempt


async def steps(world: World, thread: str, attempt: AttemptToken) -> AttemptToken:
    for n in range(2):
        await world.runs.start_step(attempt, f"step#{n}")
        await world.runs.finish_step(attempt, f"step#{n}", TEXT)
    return attempt


async def question(world: World, thread: str, attempt: AttemptToken) -> AttemptToken:
    request = HitlRequest(request_id=new_id(), payload={"question": TEXT})
    await world.ask(attempt, request)
    await world.runs.respond("yes", request_id=request.request_id)
    return await world.take(attempt.run_id, thread=thread)


async def signal(world: World, thread: str, attempt: AttemptToken) -> AttemptToken:
    await world.runs.suspend(Write(attempt=attempt), [], [Wait(wait_id="paid", kind="signal", name="paid")])
    await world.runs.signal(thread, "paid", TEXT, signal_id=new_id())
    return await world.take(attempt.run_id, thread=thread)


async def fan_out(world: World, run_id: str, thread: str) -> None:
    """Probe CANDIDATES messages after a run of the thread."""
    await turn()(world, f"{run_id}-before", thread)
    fan = FanOut(messages=[user(TEXT) for _ in range(CANDIDATES)], max_parallel=CANDIDATES)
    fork = ForkRequest(src=thread, new=run_id, cut=Cut(), fan=fan)
    await world.runs.accept(AcceptRequest(thread_id=thread, run_id=run_id, kind="fork_many", fork=fork))
    attempt = await world.take(run_id, thread=thread)
    for number in range(CANDIDATES):
        await world.backend.fan_outs.begin(attempt, [number])
        value = {"text": TEXT, "messages": [said(TEXT).model_dump(mode="json")], "stop_reason": "stop"}
        await world.backend.fan_outs.end(attempt, [ProbeEnd(key_of(number), "completed", Usage(requests=1), value)])
    await world.finish(attempt, result={"winner": None, "verdict": None})


async def fork(world: World, run_id: str, thread: str) -> None:
    await turn()(world, run_id, thread)
    await world.fork(f"fork-{run_id}", thread)


RUN = "a run of two messages"
COSTS: dict[str, tuple[int, int, Turn]] = {
    RUN: (1, RUNS, turn()),
    "each additional message": (2, RUNS, turn(messages)),
    "each additional tool cycle": (2, RUNS, turn(cycles)),
    "each step": (2, RUNS, turn(steps)),
    "each question and its answer": (1, RUNS, turn(question)),
    "each wait for a signal and its signal": (1, RUNS, turn(signal)),
    "each candidate of a fan-out of probes": (CANDIDATES, RUNS // CANDIDATES, fan_out),
    "each fork": (1, RUNS, fork),
}
"""By name: how often a run has this, the number of runs, and the run. All but the first are costs beside those of RUN."""


async def run_many(url: str, numbers: Iterator[int], execute: Turn) -> None:
    """Execute a run for each of ``numbers`` on the threads, TOGETHER at once."""
    backend = await connect(url)
    world = World(backend, lambda: None)  # type: ignore[arg-type, return-value]
    await world.hire()

    async def work(caller: int) -> None:
        for n in numbers:
            await execute(world, f"run-{n}", f"thread-{n // TOGETHER % (THREADS // TOGETHER)}-{caller}")

    await asyncio.gather(*map(work, range(TOGETHER)))
    await backend.close()


async def measure(server: EmbeddedPostgres, name: str, runs: int, execute: Turn) -> Cost:
    """Return the cost of each of ``runs`` runs, on a database of its own. Print the sizes of its tables."""
    admin = await asyncpg.connect(server.url)
    await admin.execute(f"CREATE DATABASE {name}")
    url = server.url.rsplit("/", 1)[0] + f"/{name}"
    await migrate(url)
    connection = await asyncpg.connect(url)
    await run_many(url, iter(range(EARLIER)), execute)
    await connection.execute("ANALYZE")  # plans for an empty database read more blocks
    before = await connection.fetchrow(STATE)
    await run_many(url, iter(range(EARLIER, EARLIER + runs)), execute)
    await connection.execute("SELECT pg_stat_force_next_flush()")
    await asyncio.sleep(1)
    after = await connection.fetchrow(STATE)
    for table in await connection.fetch(TABLES):
        size, indexes = (table[field] / (EARLIER + runs) for field in ("bytes", "indexes"))
        print(f"    {table['relname']}: {size:,.0f} B and {indexes:,.0f} B of indexes per run")
    await connection.close()
    await admin.close()
    return Cost(*((after[field] - before[field]) / runs for field in ("wal", "tables", "indexes", "blocks")))


async def main(wanted: list[str]) -> None:
    with EmbeddedPostgres(durable=False) as server:
        admin = await asyncpg.connect(server.url)
        await admin.execute("ALTER SYSTEM SET full_page_writes = off")
        await admin.execute("SELECT pg_reload_conf()")
        await admin.close()
        base, numbers = Cost(0, 0, 0, 0), count()
        for name, (units, runs, execute) in COSTS.items():
            if name == RUN or not wanted or name in wanted:
                cost = await measure(server, f"growth_{next(numbers)}", runs, execute)
                print(f"{name}: {cost.above(base, units)}", flush=True)
                base = cost if name == RUN else base


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
