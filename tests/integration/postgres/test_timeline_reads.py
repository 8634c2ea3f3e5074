"""A page of a timeline reads each attempt and each message of its run a bounded number of times."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import asyncpg

from runyard_backends.conformance.world import World, said
from runyard_backends.postgres.backend import connect

ATTEMPTS, EACH = 100, 20
OWN = "SELECT pg_get_functiondef('runyard.run_timeline'::regproc)"
PAGE = "SELECT * FROM runyard.explained_timeline('', 't', 'r1', $1, 0, '', 100, 4000000, 100000)"
LATE = "SELECT created_at FROM runyard.messages ORDER BY seq DESC OFFSET 150 LIMIT 1"
EARLY = datetime(1970, 1, 1, tzinfo=UTC)


def explaining(definition: str) -> str:
    """Return the definition of a function that returns the plan of the query of ``run_timeline``, with the counted rows.

    Postgres allows EXPLAIN in volatile functions only.
    """
    named = definition.replace("runyard.run_timeline(", "runyard.explained_timeline(", 1).replace(" STABLE ", " VOLATILE ", 1)
    typed = re.sub(r"RETURNS TABLE\(.*\)\n", "RETURNS SETOF json\n", named, count=1)
    return typed.replace("RETURN QUERY", "RETURN QUERY EXPLAIN (ANALYZE, VERBOSE, FORMAT JSON)", 1)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def rows_read(node: dict[str, Any]) -> int:
    """Return the rows that a node returned or removed, in all its loops."""
    removed = sum(count for name, count in node.items() if name.startswith("Rows Removed by"))
    return int(node["Actual Loops"] * (node["Actual Rows"] + removed))


async def test_a_page_reads_each_attempt_and_message_once_or_twice(postgres_url: str) -> None:
    """R24, A3: a page of a run with many attempts and messages does not compare every message with every attempt."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        world = World(backend, lambda: None)  # type: ignore[arg-type, return-value]
        attempt = await world.start("r1")
        for _ in range(ATTEMPTS):
            await world.runs.append(attempt, [said("x") for _ in range(EACH)])
            await world.runs.release(attempt)
            attempt = await world.take("r1")
        await connection.execute(explaining(await connection.fetchval(OWN)))
        starts = (EARLY, await connection.fetchval(LATE))
        plans = [json.loads(await connection.fetchval(PAGE, start))[0]["Plan"] for start in starts]
    finally:
        await connection.close()
        await backend.close()
    for plan in plans:
        most = max(nodes(plan), key=rows_read)
        shown = json.dumps({name: value for name, value in most.items() if name != "Plans"}, indent=1)
        assert ATTEMPTS * EACH <= rows_read(most) < 3 * ATTEMPTS * EACH, shown
