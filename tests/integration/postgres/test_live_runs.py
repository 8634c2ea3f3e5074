"""The tables that follow the table of runs say of each run what its row says, whichever verbs changed it."""

from __future__ import annotations

import asyncpg

from runyard.models import ErrorInfo
from runyard.ports.commands import Write
from runyard_backends.conformance.world import World, said
from runyard_backends.postgres.backend import connect

DIFFERENT = {
    "live_runs": """
SELECT coalesce(r.run_id, l.run_id)
FROM runyard.live_runs l FULL JOIN (SELECT * FROM runyard.runs WHERE finished_at IS NULL) r USING (accept_no)
WHERE (l.tenant, l.thread_id, l.run_id, l.thread_key, l.lane, l.lane_seq, l.queue, l.agent, l.status, l.worker_id,
       l.waits_for_permit, l.place_in_line, l.expires_at, l.accepted_at, l.changed_at)
    IS DISTINCT FROM
      (r.tenant, r.thread_id, r.run_id, r.thread_key, r.lane, r.lane_seq, r.queue, r.agent, r.status, r.worker_id,
       r.waits_for_permit, r.place_in_line, CASE WHEN r.attempt = 0 THEN r.expires_at END, r.accepted_at, r.changed_at)
""",
    "completions": """
SELECT coalesce(r.run_id, c.accept_no::text)
FROM runyard.completions c FULL JOIN (SELECT * FROM runyard.runs WHERE completion_seq IS NOT NULL) r USING (accept_no)
WHERE (c.branch_id, c.completion_seq, c.thread_key, c.with_extra)
    IS DISTINCT FROM (r.branch_id, r.completion_seq, r.thread_key, r.extra IS NOT NULL)
""",
    "unsuccessful_runs": """
SELECT coalesce(r.run_id, u.accept_no::text)
FROM runyard.unsuccessful_runs u FULL JOIN (
    SELECT * FROM runyard.runs WHERE status IN ('failed', 'dead', 'cancelled') AND NOT deleted AND emptied_at IS NULL
) r USING (accept_no)
WHERE (u.tenant, u.thread_key, u.status, u.accepted_at) IS DISTINCT FROM (r.tenant, r.thread_key, r.status, r.accepted_at)
""",
}
"""Per table: the runs about which it and the table of runs differ."""


async def test_the_tables_fit_the_runs_after_every_verb(postgres_url: str) -> None:
    """I1, Q2: from accept to delete, also of threads with forks."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    world = World(backend, lambda: None)  # type: ignore[arg-type, return-value]

    async def fit() -> None:
        for table, statement in DIFFERENT.items():
            assert [row[0] for row in await connection.fetch(statement)] == [], table

    try:
        await world.turn("extra", thread="a", extra={"key": 1})
        retried = await world.start("retried", thread="a")
        await fit()
        await world.runs.append(retried, [said("one")])
        await world.runs.release(retried, error=ErrorInfo(code="x", message="x"))
        await fit()
        await world.accept("behind", thread="a")
        await world.accept("late", thread="b", delay=3600)
        await world.suspended("asks", "q", thread="c")
        await fit()
        await world.runs.respond("yes", request_id="q")
        await fit()
        await world.finish(await world.take("asks", thread="c"), said("done"))
        failed = await world.start("failed", thread="d")
        await world.runs.fail(Write(attempt=failed), ErrorInfo(code="x", message="x"))
        await world.runs.cancel("b", "late")
        await fit()
        await world.runs.redrive("d", "failed")
        await fit()
        await world.runs.cancel("d", "failed")
        await world.runs.delete_run("d", "failed")
        await world.runs.cancel("a", "retried")
        await world.runs.cancel("a", "behind")
        await fit()
        await world.fork("fork", "a", after_run_id="extra")
        for thread in ("a", "b", "c", "d", "fork"):
            await backend.threads.delete_thread(thread)
            await fit()
        assert await connection.fetchval("SELECT count(*) FROM runyard.runs") == 0
        for table in DIFFERENT:
            assert await connection.fetchval(f"SELECT count(*) FROM runyard.{table}") == 0
    finally:
        await connection.close()
        await backend.close()


async def test_a_run_that_is_deleted_by_hand_is_in_no_table(postgres_url: str) -> None:
    """Verbs end a run before they delete it. An operator may delete a live one."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        world = World(backend, lambda: None)  # type: ignore[arg-type, return-value]
        await world.accept("live", thread="a")
        await connection.execute("DELETE FROM runyard.runs")
        for statement in DIFFERENT.values():
            assert await connection.fetch(statement) == []
    finally:
        await connection.close()
        await backend.close()
