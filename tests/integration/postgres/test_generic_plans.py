"""The generic plans of the statements on the path of a run do not depend on the sizes of the tables (Q3).

Each verb is called on new tables and on filled ones, and the plans of all its statements are compared.
``RUNYARD_TEST_RUNS=1000000`` is the long form; ``-s`` shows the plans.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

import asyncpg
import pytest

from runyard.models import ErrorInfo, HitlRequest, new_id
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken
from runyard.ports.results import Accepted
from runyard_backends.conformance.world import CheckpointWorld, World, call, result, said, user
from runyard_backends.postgres import checkpointer
from runyard_backends.postgres.backend import PostgresBackend, connect
from runyard_backends.postgres.database import BEGIN_SNAPSHOT, Database, _Bound
from tests.support.many_runs import fill
from tests.support.plan_nodes import Plan, Planner, planning

RUNS = int(os.environ.get("RUNYARD_TEST_RUNS", "20000"))
THREADS = max(RUNS // 20, 1000)
BATCH = 4

LARGE: Final = frozenset(
    {
        *("runs", "live_runs", "completions", "unsuccessful_runs", "messages", "threads", "branches", "levels", "outbox"),
        *("hitl_requests", "attempts", "steps", "waits", "signals", "unclaimed", "thread_tags", "labels", "removals"),
    }
)
"""Tables that grow with the number of runs."""


WHOLE_PATHS: Final = {f"load_long: the rows of {table} are hashed or merged" for table in ("messages", "runs")}
"""A checkpointer loads all messages of a path, and may join them with the runs of the path's threads by a hash."""
OTHER_INDEXES: Final = {
    *("add_messages", "admit", "check_removed", "due_threads", "end_run", "ensure_for_run", "fire_deadlines", "inherited_run"),
    *("last_completed", "ledger", "load_long", "path_page", "request_for", "respond", "uncompleted"),
}
"""Statements and functions that use another index, or another scan of the same index, on new tables than on filled ones."""
CALLS: Final = 10
"""Postgres makes the first five plans of a statement for the arguments of the call. Then it decides whether to keep a plan."""
FILLED: Final = (
    "runs",
    "messages",
    "threads",
    "branches",
    "hitl_requests",
    "outbox",
    "live_runs",
    "completions",
    "thread_tags",
)
"""Tables that :func:`fill` fills. The others keep the estimates of new tables."""
ANALYZE: Final = f"VACUUM ANALYZE {', '.join(f'runyard.{table}' for table in FILLED)}"


async def path_of_runs(world: World, name: str) -> None:
    """Call the verbs of clients and workers. ``name``: a part of the ids of the threads."""
    runs = world.runs
    await world.hire()
    one, other = f"{name}-one", f"{name}-other"
    await world.turn("r1", thread=one)
    attempt = await world.start("r2", thread=one)
    await runs.context(attempt)
    await runs.ledger(attempt)
    await runs.append(attempt, [call("c")])
    await runs.start_step(attempt, "c")
    await runs.finish_step(attempt, "c", "found")
    await runs.append(attempt, [result("c")])
    request = HitlRequest(request_id=new_id(), payload={})
    await world.ask(attempt, request)
    await runs.respond("yes", request_id=request.request_id)
    await world.finish(await world.take("r2", thread=one), said("done"))
    await together(world, [f"{name}-{n}" for n in range(BATCH)])
    await together(world, [f"{name}-{n}" for n in range(BATCH)])
    held = await world.start("r1", thread=other)
    await runs.release(held, error=ErrorInfo(code="x", message="x"))
    held = await world.take("r1", thread=other)
    await runs.fail(Write(attempt=held), ErrorInfo(code="x", message="x"))
    await world.accept("r2", thread=other)
    await runs.cancel(other, "r2")
    assert isinstance(world.backend.db, Session)  # type: ignore[attr-defined]
    await world.backend.db.execute("SELECT runyard.accept($1, 'hello', run_id => 'r3')", other)  # type: ignore[attr-defined]
    await runs.admit()
    await world.workers.beat("w")
    await world.backend.threads.thread(one)
    await world.messages(one)
    await world.backend.checkpointer.load(one)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointer, "SHORT_MESSAGES", 0)
        await world.backend.checkpointer.load(one)
    await world.fork(f"{name}-fork", one)
    await world.turn("r3", thread=f"{name}-fork")
    outside = CheckpointWorld(world.backend, world.factory)
    await outside.turn("e", thread=f"{name}-fork")
    await outside.turn("e", thread=f"{name}-external")


async def together(world: World, threads: list[str]) -> None:
    """Accept, claim and complete a run on each of the threads, in one call each."""
    requests = [AcceptRequest(thread_id=thread, run_id=new_id(), input=user("hi")) for thread in threads]
    accepted = [one for one in await world.runs.accept_many(requests) if isinstance(one, Accepted)]
    claims = await world.runs.claim("w", [one.effects.jobs[0].ref for one in accepted])
    attempts: list[AttemptToken] = [claim.attempt for claim in claims if claim.attempt is not None]
    assert len(attempts) == len(threads)
    ended = await world.runs.complete([Write(attempt=attempt, messages=[said("done")]) for attempt in attempts])
    assert not any(isinstance(one, Exception) for one in ended)


class Session(_Bound):
    """A store's database on one connection. It tells the planner which statement it sends."""

    planner: Planner

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Database]:
        await self._bound.execute(BEGIN_SNAPSHOT)
        yield self
        await self._bound.execute("COMMIT")

    async def execute(self, statement: str, *args: Any) -> None:
        """Send a statement of a host."""
        await self._bound.execute(statement, *args)

    async def _send(self, method: str, name: str, args: Sequence[Any]) -> Any:
        self.planner.statement = name
        return await super()._send(method, name, args)


async def plans_of(url: str, database: Database, name: str, calls: int = 1) -> list[Plan]:
    """Return the plans that a new session makes for :func:`path_of_runs`. After several calls, return those of the last call:
    Postgres chooses which of them are generic."""
    connection = await asyncpg.connect(url)
    try:
        session = Session(database, connection)
        session.planner = planner = await planning(connection, generic=calls == 1)
        backend = PostgresBackend(session, None, "", url)
        for n in range(calls):
            planner.plans.clear()
            await path_of_runs(World(backend, lambda: None), f"{name}-{n}")  # type: ignore[arg-type, return-value]
        return planner.plans
    finally:
        await connection.close()


def shapes(plans: Iterable[Plan]) -> dict[str, set[str]]:
    """Return the scans of large tables by statement and function."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for plan in plans:
        found[plan.place] |= {f"{scan.node} of {scan.table} by {scan.index}" for scan in plan.scans if scan.table in LARGE}
    return dict(found)


def faults(plans: Iterable[Plan]) -> set[str]:
    """Return the scans of large tables that read all rows or a whole index, and the hashes and merges of large tables."""
    found: set[str] = set()
    for plan in plans:
        whole = [scan for scan in plan.scans if scan.table in LARGE and scan.conditions == 0]
        found |= {f"{plan.place}: {scan.node} of {scan.table} by {scan.index or 'no index'}" for scan in whole}
        found |= {f"{plan.place}: the rows of {table} are hashed or merged" for table in plan.hashed if table in LARGE}
    return found


@pytest.mark.parametrize("statistics", ["fresh", "of small tables", "of two long threads"])
async def test_plans_do_not_depend_on_the_sizes_of_tables(postgres_url: str, statistics: str) -> None:
    backend = await connect(postgres_url, min_pool_size=1, max_pool_size=1)
    assert isinstance(backend, PostgresBackend)
    try:
        empty = await plans_of(postgres_url, backend.db, "empty")
        connection = await asyncpg.connect(postgres_url, command_timeout=600)
        if statistics == "of two long threads":
            await fill(connection, RUNS // 4, 2, messages=True, tenant="long")
        if statistics != "fresh":
            await connection.execute(ANALYZE)
        await fill(connection, RUNS, THREADS, messages=True)
        if statistics == "fresh":
            await connection.execute(ANALYZE)
        await connection.close()
        full = await plans_of(postgres_url, backend.db, "full")
    finally:
        await backend.close()
    few, many = shapes(empty), shapes(full)
    for place, shape in sorted(many.items()):
        print(f"{place}: {'; '.join(sorted(shape))}")
    assert len(many) > 50, f"the verbs made plans in {len(many)} places only"
    assert faults(empty) == set(), "on new tables"
    assert faults(full) - WHOLE_PATHS == set(), "on filled tables"
    others = {place: few[place] ^ shape for place, shape in many.items() if place in few and few[place] != shape}
    assert {place: indexes for place, indexes in others.items() if place not in OTHER_INDEXES} == {}


@pytest.mark.parametrize("threads", [0, 2, 1000], ids=lambda threads: f"{threads} threads")
async def test_plans_are_kept(postgres_url: str, threads: int) -> None:
    """Q3: no call on the path of a run makes plans again. This would cost more than the call itself."""
    backend = await connect(postgres_url, min_pool_size=1, max_pool_size=1)
    assert isinstance(backend, PostgresBackend)
    try:
        if threads:
            connection = await asyncpg.connect(postgres_url, command_timeout=600)
            await fill(connection, 20 * 1000, threads, messages=True)
            await connection.execute(ANALYZE)
            await connection.close()
        plans = await plans_of(postgres_url, backend.db, "kept", CALLS)
    finally:
        await backend.close()
    assert Counter(plan.place for plan in plans) == {}


async def test_a_scan_of_all_rows_is_found(postgres_url: str) -> None:
    """The dump of the nodes is understood: of a sequential scan, a hash join, a hashed subplan and a bitmap."""
    statements = {
        "SELECT count(*) FROM runyard.runs": "SEQSCAN of runs",
        "SELECT 1 FROM runyard.runs r JOIN runyard.threads t ON t.title = r.run_id": "hashed or merged",
        "SELECT 1 FROM runyard.workers WHERE worker_id NOT IN (SELECT run_id FROM runyard.runs)": "hashed or merged",
        "SELECT 1 FROM runyard.runs WHERE thread_key = 1 AND run_id = 'x'": "",
    }
    connection = await asyncpg.connect(postgres_url)
    try:
        planner = await planning(connection)
        await connection.execute("SET enable_nestloop = off")
        for statement, fault in statements.items():
            planner.plans.clear()
            await connection.fetch(statement)
            found = faults(planner.plans)
            assert planner.plans and (any(fault in one for one in found) if fault else not found), (statement, found)
    finally:
        await connection.close()
