"""What a run, a message and a tool cycle cost in bytes: of tables, of indexes and of the write-ahead log (docs/growth.md).

``python -m tests.growth.sizes`` prints the figures of a new database on a private server.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass

import asyncpg

from runyard_backends.conformance.world import World, call, result, said
from runyard_backends.embedded import EmbeddedPostgres
from runyard_backends.postgres.backend import connect
from runyard_backends.postgres.migrate import migrate

RUNS = int(os.environ.get("RUNYARD_GROWTH_MEASURED", "2000"))
THREADS = 200
TOGETHER = 10
"""Callers that run at once."""
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


@dataclass(frozen=True, slots=True)
class Cost:
    """Per run: bytes of the write-ahead log, of tables and of indexes, and blocks that were looked at."""

    wal: float
    tables: float
    indexes: float
    blocks: float

    def __str__(self) -> str:
        return f"WAL {self.wal:,.0f} B, tables {self.tables:,.0f} B, indexes {self.indexes:,.0f} B, {self.blocks:,.0f} blocks"


async def run_many(url: str, cycles: int) -> None:
    """Runs of a user's message, tool cycles of two messages, and an answer, each on one of the threads."""
    backend = await connect(url)
    world = World(backend, lambda: None)  # type: ignore[arg-type, return-value]
    await world.hire()

    async def work(numbers: Iterator[int], caller: int) -> None:
        for n in numbers:
            attempt = await world.start(f"run-{n}", TEXT, thread=f"thread-{n // TOGETHER % (THREADS // TOGETHER)}-{caller}")
            for cycle in range(cycles):
                await world.runs.append(attempt, [call(f"call-{cycle}", text=TEXT)])
                await world.runs.append(attempt, [result(f"call-{cycle}")])
            await world.finish(attempt, said(TEXT))

    numbers = iter(range(RUNS))
    await asyncio.gather(*(work(numbers, caller) for caller in range(TOGETHER)))
    await backend.close()


async def measure(server: EmbeddedPostgres, cycles: int) -> Cost:
    """The cost of runs with so many tool cycles, on a database of its own. Full images of pages are off."""
    name = f"growth_{cycles}"
    admin = await asyncpg.connect(server.url)
    await admin.execute(f"CREATE DATABASE {name}")
    url = server.url.rsplit("/", 1)[0] + f"/{name}"
    await migrate(url)
    connection = await asyncpg.connect(url)
    before = await connection.fetchrow(STATE)
    await run_many(url, cycles)
    await connection.execute("SELECT pg_stat_force_next_flush()")
    await asyncio.sleep(1)
    after = await connection.fetchrow(STATE)
    for table in await connection.fetch(TABLES):
        print(f"    {table['relname']}: {table['bytes'] / RUNS:,.0f} B and {table['indexes'] / RUNS:,.0f} B of indexes per run")
    await connection.close()
    await admin.close()
    return Cost(*((after[field] - before[field]) / RUNS for field in ("wal", "tables", "indexes", "blocks")))


async def main() -> None:
    with EmbeddedPostgres(durable=False) as server:
        admin = await asyncpg.connect(server.url)
        await admin.execute("ALTER SYSTEM SET full_page_writes = off")
        await admin.execute("SELECT pg_reload_conf()")
        await admin.close()
        for cycles in (0, 2):
            print(f"{cycles} tool cycles, {RUNS} runs, per run: {await measure(server, cycles)}")


if __name__ == "__main__":
    asyncio.run(main())
