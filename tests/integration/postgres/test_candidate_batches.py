"""The messages of large fan-outs in Postgres: pages before the accept (F15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg
import pytest

from runyard.errors import LockedError, RunNotCompletedError, ThreadNotFoundError
from runyard.models import Message
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest
from runyard_backends.conformance.world import T, World
from runyard_backends.postgres import codec
from runyard_backends.postgres.backend import connect


@pytest.fixture
async def world(postgres_url: str) -> AsyncIterator[World]:
    async def factory(tenant: str = "") -> object:
        return await connect(postgres_url, tenant=tenant)

    backend = await connect(postgres_url, tenant="")
    yield World(backend, factory)  # type: ignore[arg-type]
    await backend.close()


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


def request(total: int = 250, size: int = 1, run_id: str = "job") -> AcceptRequest:
    messages = [Message.user("x" * size) for _ in range(total)]
    fork = ForkRequest(src=T, new=run_id, cut=Cut(), fan=FanOut(messages=messages, max_parallel=1))
    return AcceptRequest(thread_id=T, run_id=run_id, kind="fork_many", fork=fork)


def sizes(asked: AcceptRequest) -> list[int]:
    batch = codec.candidate_batch("", asked)
    return [len(messages) for _, messages in batch.pages] if batch is not None else []


async def test_f15_pages_are_bounded_in_number_and_bytes() -> None:
    """F15: A small fan-out needs no page of its own. A message that is larger than a page is one."""
    assert sizes(request(100)) == [] and sizes(request(101)) == [100, 1]
    assert sizes(request(5, 300_000)) == [3, 2]
    assert sizes(request(2, 2**20)) == [1, 1]


async def test_f15_a_refused_fan_out_leaves_no_run_and_its_pages_are_found_again(
    world: World, connection: asyncpg.Connection
) -> None:
    """F15, F4: The refusals are those of a small fan-out."""
    asked = request()
    with pytest.raises(ThreadNotFoundError):
        await world.runs.accept(asked)
    await world.accept("before")
    with pytest.raises(RunNotCompletedError):
        await world.runs.accept(asked)
    assert await connection.fetchval("SELECT count(*) FROM runyard.candidates") == 250
    await world.finish(await world.take("before"))
    assert (await world.runs.accept(asked)).created
    assert await connection.fetchval("SELECT count(*) FROM runyard.candidates") == 250


async def test_f15_a_job_does_not_begin_with_missing_messages(world: World, connection: asyncpg.Connection) -> None:
    """F15: The leader removes pages that it takes for left ones. The accept is refused, and the next one stores them again."""
    await world.turn("before")
    asked = request()
    await connection.execute("""
        CREATE FUNCTION public.lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.number = 249 THEN DELETE FROM runyard.candidates WHERE number < 100; END IF; RETURN NEW;
        END $$;
        CREATE TRIGGER lose BEFORE INSERT ON runyard.candidates FOR EACH ROW EXECUTE FUNCTION public.lose()""")
    with pytest.raises(LockedError):
        await world.runs.accept(asked)
    assert await world.runs.run(T, "job") is None
    await connection.execute("DROP TRIGGER lose ON runyard.candidates")
    assert (await world.runs.accept(asked)).created


async def test_f15_two_clients_at_once_and_two_tenants(world: World, connection: asyncpg.Connection) -> None:
    """F15, A1: Equal requests of one tenant are one job with one set of messages. Those of another tenant are its own."""
    other = World(await connect_other(world), world.factory)
    for each in (world, other):
        await each.turn("before")
    asked = request()
    same = replace(asked, fork=replace(asked.fork, fan=replace(asked.fork.fan, messages=list(asked.fork.fan.messages))))  # type: ignore[arg-type, union-attr]
    found = await asyncio.gather(world.runs.accept(asked), world.runs.accept(same), other.runs.accept(asked))
    assert sorted(accepted.created for accepted in found) == [False, True, True]
    assert await connection.fetchval("SELECT count(*) FROM runyard.candidates") == 500
    await other.threads.delete_thread(T, cancel=True)
    assert await connection.fetchval("SELECT count(*) FROM runyard.candidates") == 250


async def connect_other(world: World) -> object:
    return await world.factory("other")
