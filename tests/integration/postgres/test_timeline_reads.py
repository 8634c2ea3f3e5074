"""What a page of a timeline reads, and where it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from runyard.domain import timeline
from runyard.domain.waits import Wait
from runyard.ports.commands import Write
from runyard.ports.queries import PageRequest
from runyard_backends.conformance.world import World, said
from runyard_backends.postgres.backend import connect

ATTEMPTS, EACH = 100, 20
VALUE = 3000
"""Characters of the value of a signal."""
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


async def test_a_page_ends_where_its_waits_end(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R24: waits with large values fill a page in bytes; the messages after them are on later pages."""
    backend = await connect(postgres_url)
    try:
        world = World(backend, lambda: None)  # type: ignore[arg-type, return-value]
        attempt = await world.start("r1")
        names = ("a", "b", "c")
        await world.runs.suspend(Write(attempt=attempt), [], [Wait(wait_id=name, kind="signal", name=name) for name in names])
        for name in names:
            await world.runs.signal("t", name, "x" * VALUE, signal_id=name)
        await world.finish(await world.take("r1"), said("after"))
        monkeypatch.setattr(timeline, "TIMELINE_BYTES", VALUE + VALUE // 2)
        found, cursor = [], None
        while not found or cursor is not None:
            page = await backend.timelines.timeline("t", "r1", PageRequest(cursor=cursor))
            found, cursor = [*found, *page.entries], page.next
    finally:
        await backend.close()
    assert [entry.id for entry in found if entry.type == "signal"] == list(names)
    assert [entry.type for entry in found][-1] != "signal"
