"""Limits with several connections at once: never exceeded, no wake-up lost, and cheap to count (R16)."""

import asyncio
import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from runyard.domain.states import RunStatus
from runyard.errors import MessageTooLargeError, QueueFullError
from runyard.models import Limit, LimitName, Message
from runyard.ports.commands import AcceptRequest
from runyard.ports.refs import AttemptToken
from runyard.ports.stores import Backend
from runyard_backends.conformance.world import World, said
from runyard_backends.postgres.backend import connect

ROUNDS = 30


@pytest.fixture
async def worlds(postgres_url: str) -> AsyncIterator[tuple[World, World]]:
    """Two processes' worth of connections."""
    opened: list[Backend] = []

    async def factory(tenant: str = "") -> Backend:
        opened.append(await connect(postgres_url, tenant=tenant, min_pool_size=4, max_pool_size=8))
        return opened[-1]

    yield World(await factory(), factory), World(await factory(), factory)
    for backend in opened:
        await backend.close()


async def limit(world: World, name: LimitName, most: int) -> None:
    await world.backend.limits.set_limit(Limit(name=name, most=most))


async def test_two_workers_never_exceed_a_limit(worlds: tuple[World, World]) -> None:
    """R16: claims of two workers, one by one and in batches, at the same moment."""
    one, two = worlds
    await limit(one, "running_per_agent", 3)
    await limit(one, "running_per_tenant", 4)
    for worker, world in zip("ab", worlds, strict=True):
        await world.hire(worker)
    for n in range(ROUNDS):
        agents = ["x", "y"]
        for k in range(12):
            await one.accept("r", thread=f"{n}-{k}", agent=agents[k % 2])
        refs = [await one.ref("r", f"{n}-{k}") for k in range(12)]
        calls = [one.runs.claim("a", refs[:6]), two.runs.claim("b", refs[6:10])]
        calls += [world.runs.claim(worker, [ref]) for world, worker, ref in ((one, "a", refs[10]), (two, "b", refs[11]))]
        claims = [claim for batch in await asyncio.gather(*calls) for claim in batch]
        held = [claim for claim in claims if claim.outcome == "claimed"]
        assert len(held) == 4, [claim.outcome for claim in claims]
        for agent in agents:
            assert sum(claim.run is not None and claim.run.agent == agent for claim in held) <= 3
        for k in range(12):
            await one.runs.cancel(f"{n}-{k}", "r")
        for claim in held:
            assert claim.attempt is not None
            await one.finish(claim.attempt)


async def test_no_wake_up_is_lost(worlds: tuple[World, World]) -> None:
    """R16: a run that is refused its permit while the permit becomes free is told of by whoever freed it."""
    one, two = worlds
    await limit(one, "running_per_agent", 1)
    await two.hire("b")
    for n in range(ROUNDS):
        running = await one.start("r", thread=f"{n}-running")
        beside = [await one.start("r", thread=f"{n}-{k}", agent=f"other{k}") for k in range(2)]
        await one.accept("next", thread=f"{n}-next")
        ref = await one.ref("next", f"{n}-next")

        async def end(attempts: list[AttemptToken]) -> list[str]:
            writes = [one.finish(attempt, said("x")) for attempt in attempts]
            return [job.run_id for ended in await asyncio.gather(*writes) for job in ended.effects.jobs]

        (claim,), told = await asyncio.gather(two.runs.claim("b", [ref]), end([running, *beside]))
        assert (claim.outcome, told) in (("claimed", []), ("limited", ["next"]))
        if claim.attempt is None:
            (claim,) = await two.runs.claim("b", [ref])
        assert claim.attempt is not None
        await two.finish(claim.attempt, said("x"))


async def test_a_full_queue_is_counted_cheaply(worlds: tuple[World, World], postgres_url: str) -> None:
    """R16: with 100,000 runs waiting, an accept reads what was accepted within the last second."""
    world, _ = worlds
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(
        "INSERT INTO runyard.runs (tenant, thread_id, run_id, kind, status, queue, priority, request_hash) "
        "SELECT '', 't' || n, 'r', 'prompt', 'queued', 'default', 'normal', '{}' FROM generate_series(1, 100000) n"
    )
    await limit(world, "queued", 100_003)
    await limit(world, "queued_per_tenant", 100_003)
    await world.accept("measures", thread="new0")
    async with connection.transaction():
        await connection.execute("SELECT runyard.accept('new1', 'hello')")
        statistics = "SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'runs'"
        sequential, fetched = await connection.fetchrow(statistics) or (None, None)
    await connection.close()
    assert sequential == 0 and fetched is not None and fetched < 50
    await world.accept("one more", thread="new2")
    with pytest.raises(QueueFullError):
        await world.accept("one too many", thread="new3")


async def test_hosts_are_refused_at_once_where_it_is_known(worlds: tuple[World, World], postgres_url: str) -> None:
    """R16: in a host's own transaction, by the client and with SQL alone; without a lock of a thread."""
    world, _ = worlds
    await limit(world, "queued_per_lane", 2)
    await limit(world, "message_bytes", 1000)
    await world.accept("r1")
    host, other = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)

    def request(run_id: str, text: str = "x") -> AcceptRequest:
        return AcceptRequest(thread_id="t", run_id=run_id, input=Message.user(text))

    async with host.transaction():
        await other.execute("BEGIN; SELECT 1 FROM runyard.threads FOR UPDATE")
        await world.runs.accept(request("r2"), connection=host)
        await other.execute("ROLLBACK")
    with pytest.raises(QueueFullError):
        await world.runs.accept(request("r3"), connection=host)
    assert not (await world.runs.accept(request("r2"), connection=host)).created
    with pytest.raises(MessageTooLargeError):
        await world.runs.accept(AcceptRequest(thread_id="u", run_id="r", input=Message.user("x" * 2000)), connection=host)
    with pytest.raises(asyncpg.PostgresError) as refused:
        await host.execute("SELECT runyard.accept('t', 'x', run_id => 'r3')")
    assert (refused.value.sqlstate, refused.value.hint) == ("RY000", "queue_full")
    assert json.loads(refused.value.detail)["limit"] == "queued_per_lane"
    await host.close()
    await other.close()


async def test_hosts_that_overlap_fail_at_admission(worlds: tuple[World, World], postgres_url: str) -> None:
    """R16: transactions that do not see each other's runs may bring too many; what has no room fails with the same error."""
    world, _ = worlds
    await limit(world, "queued_per_lane", 1)
    attempt = await world.start("r0")
    hosts = [await asyncpg.connect(postgres_url) for _ in range(4)]
    transactions = [host.transaction() for host in hosts]
    for n, (host, transaction) in enumerate(zip(hosts, transactions, strict=True)):
        await transaction.start()
        await world.runs.accept(AcceptRequest(thread_id="t", run_id=f"h{n}", input=Message.user("x")), connection=host)
    for transaction in transactions:
        await transaction.commit()
    await world.runs.admit()
    runs = [await world.run(f"h{n}") for n in range(4)]
    assert [run.status for run in runs] == [RunStatus.QUEUED, *[RunStatus.FAILED] * 3]
    assert {run.error.code for run in runs if run.error} == {"queue_full"}
    await world.finish(attempt, said("x"))
    await world.finish(await world.take("h0"), said("x"))
    for host in hosts:
        await host.close()
