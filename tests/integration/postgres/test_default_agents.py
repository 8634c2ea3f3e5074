"""The default agents of the deployment: chosen under concurrency, and given in every path of an accept and a claim."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from runyard.ports.commands import ThreadRequest
from runyard.ports.refs import RunRef
from runyard.ports.workers import WorkerInfo
from runyard_backends.conformance.world import World
from runyard_backends.postgres.backend import connect
from runyard_backends.postgres.migrate import Release, migrate
from tests.support.lock_waits import until_a_session_waits

pytestmark = pytest.mark.asyncio

BOUND = 60.0
DEFAULT = "SELECT agent FROM runyard.default_agents WHERE namespace = ''"


@pytest.fixture
async def world(postgres_url: str) -> AsyncIterator[World]:
    backend = await connect(postgres_url)
    yield World(backend, lambda: None)  # type: ignore[arg-type, return-value]
    await backend.close()


@pytest.fixture
async def host(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection outside the backend."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


def worker(worker_id: str, agent: str, queue: str = "default") -> WorkerInfo:
    return WorkerInfo(worker_id=worker_id, queues=[queue], agents={agent: queue}, default_agent=agent)


async def test_a_worker_that_leaves_while_another_starts_leaves_no_default_that_nobody_serves(
    world: World, host: asyncpg.Connection, postgres_url: str
) -> None:
    """L3: neither transaction sees the worker of the other until that commits. The second one waits, and then sees it."""
    await world.workers.register(worker("old", "a"))
    await world.workers.register(worker("other namespace", "shop/a"))
    leaving = await asyncpg.connect(postgres_url)
    async with leaving.transaction():
        await leaving.execute("DELETE FROM runyard.workers WHERE worker_id = 'old'")
        await world.workers.register(worker("another", "blog/a"))
        starting = asyncio.create_task(world.workers.register(worker("new", "b")))
        await until_a_session_waits(host)
        assert await host.fetchval(DEFAULT) == "a"
    await asyncio.wait_for(starting, BOUND)
    assert await host.fetchval(DEFAULT) == "b"
    async with leaving.transaction():
        await leaving.execute(
            "INSERT INTO runyard.workers (worker_id, queues, default_agent) VALUES ('newest', '{default}', 'c')"
        )
        gone = asyncio.create_task(world.workers.leave("new"))
        await until_a_session_waits(host)
    await asyncio.wait_for(gone, BOUND)
    assert await host.fetchval(DEFAULT) == "c"
    await leaving.close()


async def test_workers_come_and_go_between_the_migrations_and_the_functions(empty_postgres_url: str) -> None:
    """U1: workers of the release before run while the tables of this release have a trigger without its function."""
    await migrate(empty_postgres_url, release=replace(Release.installed(), functions=()))
    host = await asyncpg.connect(empty_postgres_url)
    await host.execute("INSERT INTO runyard.workers (worker_id, queues) VALUES ('w', '{default}'), ('v', '{default}')")
    await host.execute("UPDATE runyard.workers SET dead_at = now() WHERE worker_id = 'v'")
    assert await host.execute("DELETE FROM runyard.workers") == "DELETE 2"
    await host.close()


async def test_a_removed_row_of_a_dead_worker_chooses_nothing(world: World, host: asyncpg.Connection) -> None:
    """L3: the leader removes many such rows in one transaction, which must not hold the lock."""
    await world.workers.register(worker("w", "a"))
    await world.bury("w")
    async with host.transaction():
        await host.execute("DELETE FROM runyard.workers WHERE dead_at IS NOT NULL")
        await asyncio.wait_for(world.workers.register(worker("v", "b")), BOUND)
    assert await host.fetchval(DEFAULT) == "b"


@pytest.mark.parametrize("many", [1, 5])
async def test_runs_that_were_accepted_before_any_worker_are_claimed_with_an_agent(
    world: World, host: asyncpg.Connection, many: int
) -> None:
    """L1, Q2: together or alone, in the rows of the runs, of the live runs and of the threads."""
    await asyncio.gather(*(world.accept("r", thread=f"t{n}") for n in range(many)))
    await world.workers.register(worker("w", "a"))
    refs = [await world.ref("r", f"t{n}") for n in range(many)]
    claims = await world.runs.claim("w", refs)
    assert [claim.outcome for claim in claims] == ["claimed"] * many
    rows = await host.fetch(
        "SELECT r.agent, l.agent, t.agent, r.status, l.status FROM runyard.runs r JOIN runyard.live_runs l USING (accept_no) "
        "JOIN runyard.threads t ON t.thread_key = r.thread_key"
    )
    assert [tuple(row) for row in rows] == [("a", "a", "a", "running", "running")] * many


async def test_a_batch_gives_each_run_the_agent_of_its_thread_or_the_default(world: World) -> None:
    """L1: on known and new threads, and on threads without an agent."""
    await world.workers.register(worker("w", "a", "gpu"))
    await world.accept("first", thread="named", agent="b")
    await world.accept("first", thread="usual")
    await world.threads.create_thread(ThreadRequest(thread_id="created"))
    accepts = [world.accept(f"r{n}", thread=name) for name in ("named", "usual", "created", "new") for n in range(3)]
    found = [(each.run.thread_id, each.run.agent, each.run.queue) for each in await asyncio.gather(*accepts)]
    agents = {"named": ("b", "default"), "usual": ("a", "gpu"), "created": ("a", "gpu"), "new": ("a", "gpu")}
    assert found == [(name, *agents[name]) for name in agents for _ in range(3)]
    assert {name: (await agent_of(world, name)) for name in agents} == {name: agent for name, (agent, _) in agents.items()}


async def agent_of(world: World, thread_id: str) -> str | None:
    thread = await world.threads.thread(thread_id)
    assert thread is not None
    return thread.agent


async def test_a_host_gets_the_same_agents_with_sql(world: World, host: asyncpg.Connection) -> None:
    """L1, L4: the run has the agent and its queue from the insert, and the thread from the admission. A run that was accepted
    before any worker gets its agent when it is admitted."""

    async def accept(run_id: str, thread_id: str, **named: Any) -> None:
        names = "".join(f", {name} => '{value}'" for name, value in named.items())
        await host.execute(f"SELECT runyard.accept('{thread_id}', 'hi', run_id => '{run_id}'{names})")

    await accept("early", "t0")
    await world.workers.register(worker("w", "a", "gpu"))
    await world.workers.register(worker("v", "shop/clerk", "shop"))
    await world.accept("first", thread="known", agent="b")
    await accept("r1", "known")
    await accept("r2", "new")
    await accept("r3", "shop", agent="shop/")
    rows = {row["run_id"]: (row["agent"], row["queue"]) for row in await host.fetch("SELECT * FROM runyard.runs")}
    assert rows == {
        "early": (None, "default"),
        "first": ("b", "default"),
        "r1": ("b", "default"),
        "r2": ("a", "gpu"),
        "r3": ("shop/clerk", "shop"),
    }
    await world.runs.admit()
    assert (await world.run("early", "t0")).agent == "a"
    found = [await agent_of(world, name) for name in ("t0", "known", "new", "shop")]
    assert found == ["a", "b", "a", "shop/clerk"]
    assert await host.fetchval("SELECT runyard.accept('new', 'hi', run_id => 'r2')") == "r2"


async def sql_accept(host: asyncpg.Connection, run_id: str, thread_id: str, agent: str | None = None, **more: str) -> None:
    """Accept a run in a host's own transaction."""
    named = {"agent": agent, **more}
    names = "".join(f", {name} => '{value}'" for name, value in named.items() if value is not None)
    await host.execute(f"SELECT runyard.accept('{thread_id}', 'hi', run_id => '{run_id}'{names})")


async def test_a_thread_keeps_the_agent_of_the_first_of_two_runs_that_a_host_accepted(
    world: World, host: asyncpg.Connection
) -> None:
    """L1: on a new thread and on a thread without an agent, whoever admits the runs."""
    await world.workers.register(worker("w", "a"))
    await world.threads.create_thread(ThreadRequest(thread_id="created"))
    for thread in ("new", "created"):
        async with host.transaction():
            await sql_accept(host, "r1", thread, "clerk")
            await sql_accept(host, "r2", thread, "writer")
            await sql_accept(host, "r3", thread)
    await world.runs.admit()
    for thread in ("new", "created"):
        assert [(await world.run(f"r{n}", thread)).agent for n in (1, 2, 3)] == ["clerk", "writer", "clerk"]
        assert await agent_of(world, thread) == "clerk"


@pytest.mark.parametrize("run_at", [None, "2200-01-01"])
async def test_a_run_has_the_agent_of_the_runs_before_it_that_nobody_has_admitted(
    world: World, host: asyncpg.Connection, run_at: str | None
) -> None:
    """L1: a client's run on a new thread and on a thread without an agent, after a host's run, which may be of a later time."""
    await world.workers.register(worker("w", "a"))
    await world.threads.create_thread(ThreadRequest(thread_id="created"))
    for thread in ("new", "created"):
        await sql_accept(host, "r1", thread, "clerk", **({"run_at": run_at} if run_at else {}))
        assert (await world.accept("r2", thread=thread)).run.agent == "clerk"
        await sql_accept(host, "r3", thread)
        await world.runs.admit()
        assert (await world.run("r3", thread)).agent == await agent_of(world, thread) == "clerk"


async def test_a_worker_of_an_older_release_takes_runs_without_an_agent(world: World, host: asyncpg.Connection) -> None:
    """L1, U1: it has no default agent, and changes neither that of the deployment nor the run."""
    await host.execute("SELECT runyard.register('old', '{default}', '{\"a\": \"default\"}', '1', 'run', 5, NULL, '{}')")
    assert await host.fetchval(DEFAULT) is None
    await world.accept("r1")
    [claim] = await world.runs.claim("old", [await world.ref("r1")])
    assert claim.outcome == "claimed" and claim.run is not None and claim.run.agent is None
    await world.accept("r2", thread="u", agent="shop/")
    key = await world.threads.thread_key("u")
    assert key is not None
    [claim] = await world.runs.claim("old", [RunRef(key, "r2")])
    assert claim.outcome == "unserved"
