"""Reads of a tree of 10,000 messages with 500 leaves: the leaves with their depths, and a path (B2, B3)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from runyard.ports.commands import ThreadRequest
from runyard.ports.queries import PageRequest, PathRequest
from runyard.ports.stores import Backend
from runyard_backends.postgres.backend import connect
from runyard_backends.postgres.codec import pack
from tests.integration.postgres.test_long_lanes import blocks

MESSAGES, LEAVES, ASIDE, PATH = 10_000, 500, 10, 1000
TRUNK = MESSAGES - (LEAVES - 1) * ASIDE

GROW = [
    """
    CREATE TEMP TABLE grown ON COMMIT DROP AS
    SELECT t.thread_key, b.n, 9 * b.n AS base,
           CASE b.n WHEN 0 THEN t.head_branch ELSE nextval('runyard.branch_numbers') END AS branch_id,
           CASE b.n WHEN 0 THEN 1 ELSE $2 + (b.n - 1) * $3 + 1 END AS first,
           CASE b.n WHEN 0 THEN $2 ELSE $2 + b.n * $3 END AS last
    FROM runyard.threads t, generate_series($4::int, $5::int) b(n) WHERE t.thread_id = $1
    """,
    """
    INSERT INTO runyard.messages (branch_id, seq, message_id, run_id, role, payload)
    SELECT g.branch_id, seq, gen_random_uuid(), CASE WHEN $1 THEN 'run-' || (seq + 1) / 2 END, 'user', $2
    FROM grown g, generate_series(g.first, g.last) seq
    """,
    """
    INSERT INTO runyard.runs (
        tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, queue, priority, request_hash, branch_id,
        first_seq, last_seq, completion_seq, high_water_seq, fence, admitted_at, started_at, finished_at, snapshot_tip,
        snapshot_cutoff)
    SELECT '', t.thread_id, m.run_id, g.thread_key, 'prompt', 'completed', '', nextval('runyard.lane_numbers'), 'default',
           'normal', '{}', g.branch_id, m.seq - 1, m.seq, m.seq / 2, m.seq, m.seq, now(), now(), now(),
           m.seq - 2, m.seq / 2 - 1
    FROM grown g JOIN runyard.threads t USING (thread_key) JOIN runyard.messages m USING (branch_id)
    WHERE m.seq % 2 = 0 AND m.run_id IS NOT NULL
    """,
    """
    INSERT INTO runyard.branches (branch_id, thread_key, lane, base_id)
    SELECT g.branch_id, g.thread_key, '', m.message_id
    FROM grown g JOIN runyard.threads t USING (thread_key)
    JOIN runyard.messages m ON m.branch_id = t.head_branch AND m.seq = g.base WHERE g.n > 0
    """,
    """
    INSERT INTO runyard.levels (branch_id, ancestor_id, high_water_seq, cutoff)
    SELECT g.branch_id, t.head_branch, g.base, (g.base + 1) / 2
    FROM grown g JOIN runyard.threads t USING (thread_key) WHERE g.n > 0
    """,
    """
    UPDATE runyard.branches b SET leaf_id = m.message_id, leaf_seq = m.seq, high_water_seq = m.seq
    FROM grown g JOIN runyard.messages m ON m.branch_id = g.branch_id AND m.seq = g.last WHERE b.branch_id = g.branch_id
    """,
    """
    UPDATE runyard.threads t SET next_seq = g.last + 1, next_completion_seq = g.last / 2 + 1
    FROM (SELECT thread_key, max(last) AS last FROM grown GROUP BY 1) g WHERE t.thread_key = g.thread_key
    """,
]
"""The trunk, or the other branches of a thread. Each branch begins at a message of the trunk. With runs, every two messages
belong to a completed run."""

TRUNK_END = """
SELECT b.leaf_id FROM runyard.branches b JOIN runyard.threads t USING (thread_key) WHERE t.thread_id = $1 ORDER BY branch_id
"""
LIST = "SELECT * FROM runyard.list_leaves('', $1, false, NULL, NULL, 501)"
PAGE = f"SELECT * FROM runyard.path_page('', $1, $2::uuid, -1, 9000000000, {PATH}, $3, NULL)"


@dataclass(frozen=True)
class Tree:
    """The thread ``thread``. ``alone``: the blocks that a page of the path of its trunk read before there were other branches,
    by direction."""

    backend: Backend
    connection: asyncpg.Connection
    thread: str
    alone: dict[bool, int]


async def grow(connection: asyncpg.Connection, thread: str, first: int, last: int) -> None:
    """Make the branches ``first`` to ``last`` of a thread. The branch 0 is the trunk."""
    payload = pack({"content": [{"type": "text", "text": "hello"}]})
    given = [(thread, TRUNK, ASIDE, first, last), (thread == "runs", payload)]
    async with connection.transaction():
        for n, statement in enumerate(GROW):
            await connection.execute(statement, *(given[n] if n < len(given) else ()))
    filled = ("messages", "threads", "branches", *(["levels"] if last else []), *(["runs"] if thread == "runs" else []))
    await connection.execute(f"VACUUM ANALYZE {', '.join(f'runyard.{name}' for name in filled)}")


async def page_of_trunk(connection: asyncpg.Connection, thread: str, newest_first: bool) -> int:
    """Return the number of blocks that a page of the path of the trunk reads."""
    trunk = await connection.fetchval(TRUNK_END, thread)
    await blocks(connection, PAGE, thread, trunk, newest_first)  # makes the plans
    return await blocks(connection, PAGE, thread, trunk, newest_first)


@pytest.fixture(params=["plain", "runs"])
async def tree(request: pytest.FixtureRequest, postgres_url: str) -> AsyncIterator[Tree]:
    """A thread with messages without runs, and one with messages of runs."""
    thread: str = request.param
    backend = await connect(postgres_url, max_pool_size=1)
    connection = await asyncpg.connect(postgres_url)
    await backend.threads.create_thread(ThreadRequest(thread_id=thread))
    await grow(connection, thread, 0, 0)
    alone = {newest_first: await page_of_trunk(connection, thread, newest_first) for newest_first in (False, True)}
    await grow(connection, thread, 1, LEAVES - 1)
    yield Tree(backend, connection, thread, alone)
    await connection.close()
    await backend.close()


async def timed(what: str, read: Callable[[], Awaitable[Any]]) -> Any:
    """Return what ``read`` returns. Print the shortest of ten durations."""
    spent = []
    for _ in range(10):
        begun = time.perf_counter()
        found = await read()
        spent.append(time.perf_counter() - begun)
    print(f"{what}: {min(spent) * 1000:.1f} ms")
    return found


async def test_reads_of_a_large_tree(tree: Tree) -> None:
    """B2, B3: A page of all leaves reads each message of the tree about once, however many paths share it. A page of a path
    does not depend on the number of other branches."""
    threads, thread = tree.backend.threads, tree.thread
    leaves = (await timed("500 leaves", lambda: threads.branches(thread, PageRequest(limit=LEAVES)))).items
    assert len(leaves) == LEAVES
    deepest = max(leaves, key=lambda leaf: leaf.depth)
    assert deepest.trunk and deepest.depth == TRUNK
    for leaf in leaves[:: LEAVES // 10]:
        assert leaf.depth == len((await threads.messages(thread, PathRequest(leaf_id=leaf.message_id))).items)
    first = PathRequest(leaf_id=deepest.message_id, limit=PATH)
    assert len((await timed("a path of 1000", lambda: threads.messages(thread, first))).items) == PATH

    read = await blocks(tree.connection, LIST, thread)
    walked = sum(leaf.depth for leaf in leaves)
    print(f"{read} blocks for {walked} places on {LEAVES} paths")
    assert walked > 100 * MESSAGES and read < 4 * MESSAGES
    for newest_first, alone in tree.alone.items():
        assert await page_of_trunk(tree.connection, thread, newest_first) <= alone + 20
