"""What hosts and people do on connections of their own, beside calls of the Postgres store."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from runyard.domain.states import RunStatus
from runyard.errors import RunAlreadyClaimedError, RunAlreadyCompletedError
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.queries import PageRequest, RunFilter
from runyard.ports.results import Ended
from runyard.ports.stores import Backend
from runyard_backends.conformance.world import BackendFactory, World, user
from runyard_backends.postgres.backend import connect
from tests.support.lock_waits import until_a_session_waits


@pytest.fixture
async def backend_factory(app_url: str) -> AsyncIterator[BackendFactory]:
    opened: list[Backend] = []

    async def factory(tenant: str = "") -> Backend:
        opened.append(await connect(app_url, tenant=tenant, min_pool_size=1, max_pool_size=4))
        return opened[-1]

    yield factory
    for backend in opened:
        await backend.close()


async def test_deadlock_is_sent_again(backend_factory: BackendFactory, postgres_url: str) -> None:
    """A statement that the server undid to break a deadlock takes effect all the same."""
    connection = await asyncpg.connect(postgres_url)
    try:
        database = await connection.fetchval("SELECT current_database()")
        await connection.execute(f"ALTER DATABASE {database} SET deadlock_timeout = '10ms'")  # less than lock_timeout
        world = World(await backend_factory(), backend_factory)
        one, two = await world.start("r", thread="one"), await world.start("r", thread="two")
        await connection.execute("SET deadlock_timeout = '10s'")  # the store's statement is the victim
        async with connection.transaction():
            lock = "SELECT 1 FROM runyard.threads WHERE thread_key = $1 FOR UPDATE"
            await connection.execute(lock, two.thread_key)
            completing = asyncio.create_task(world.runs.complete([Write(attempt=one), Write(attempt=two)]))
            await until_a_session_waits(connection)
            await connection.execute(lock, one.thread_key)
        ended = await completing
    finally:
        await connection.close()
    assert [end.status for end in ended if isinstance(end, Ended)] == [RunStatus.COMPLETED] * 2


async def test_a_run_that_was_refused_its_thread_is_refused_again(backend_factory: BackendFactory, postgres_url: str) -> None:
    """I3, S6: an inherited run id stays taken, also for a redrive of what a host's transaction brought under it."""
    world = World(await backend_factory(), backend_factory)
    await world.turn("r")
    await world.fork("fork", after_run_id="r")
    connection = await asyncpg.connect(postgres_url)
    try:
        request = AcceptRequest(thread_id="fork", run_id="r", input=user("again"))
        await world.runs.accept(request, connection=connection)
    finally:
        await connection.close()
    await world.runs.admit()
    assert await world.status("r", "fork") is RunStatus.FAILED
    with pytest.raises(RunAlreadyCompletedError):
        await world.runs.redrive("fork", "r")
    assert await world.status("r", "fork") is RunStatus.FAILED


async def test_deletion_takes_a_hosted_run_that_is_not_due(backend_factory: BackendFactory, postgres_url: str) -> None:
    """D2: the id of a deleted thread may be used again, and nothing is left of what a host scheduled on it."""
    world = World(await backend_factory(), backend_factory)
    await world.turn("r")
    connection = await asyncpg.connect(postgres_url)
    try:
        request = AcceptRequest(thread_id="t", run_id="late", input=user("secret"), delay=3600)
        await world.runs.accept(request, connection=connection)
        await world.threads.delete_thread("t", cancel=True)
        assert await world.runs.run("t", "late") is None
        assert not await connection.fetchval("SELECT count(*) FROM runyard.runs")
    finally:
        await connection.close()
    assert (await world.accept("late", "other words")).created


async def test_claim_of_an_id_that_a_host_is_committing(backend_factory: BackendFactory, postgres_url: str) -> None:
    """R13: the id belongs to a worker's run once the host's transaction is over."""
    world = World(await backend_factory(), backend_factory)
    connection = await asyncpg.connect(postgres_url)
    try:
        async with connection.transaction():
            await world.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=user("hosted")), connection=connection)
            claiming = asyncio.create_task(world.checkpointer.claim_run("t", "r"))
            await until_a_session_waits(connection)
        with pytest.raises(RunAlreadyClaimedError):
            await claiming
    finally:
        await connection.close()
    await world.runs.admit()
    assert (await world.claim("r")).outcome == "claimed"


async def test_lists_show_what_is_not_admitted_yet(backend_factory: BackendFactory, postgres_url: str) -> None:
    """R2: a run that a host's transaction accepted is in the lists from its commit on, among the others of its thread."""
    world = World(await backend_factory(), backend_factory)
    await world.turn("first")
    connection = await asyncpg.connect(postgres_url)
    try:
        for thread in ("t", "unknown"):
            request = AcceptRequest(thread_id=thread, run_id="hosted", input=user("hi"))
            await world.runs.accept(request, connection=connection)
    finally:
        await connection.close()
    await world.accept("last", delay=3600)
    await world.checkpointer.claim_run("t", "external")

    async def listed(**filters: Any) -> list[str]:
        return [run.run_id for run in (await world.runs.runs(RunFilter(**filters))).items]

    # Claiming the external run admitted what was due on its thread.
    assert await listed(thread_id="unknown") == await listed(thread_id="unknown", status=RunStatus.QUEUED) == ["hosted"]
    assert await listed(thread_id="t") == ["external", "last", "hosted", "first"]
    assert await listed(thread_id="t", status=RunStatus.QUEUED) == ["last", "hosted"]
    assert await listed(thread_id="t", status=RunStatus.RUNNING) == await listed(status=RunStatus.RUNNING) == ["external"]
    assert await listed(status=RunStatus.QUEUED) == ["last", "hosted", "hosted"]
    queued = RunFilter(status=RunStatus.QUEUED)
    first = await world.runs.runs(queued, PageRequest(limit=2))
    assert [run.thread_id for run in (await world.runs.runs(queued, PageRequest(cursor=first.next))).items] == ["t"]
