"""The messages of large fan-outs in Postgres: pages before the accept (F15)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise

import asyncpg
import pytest

from runyard.domain.derived_ids import candidate_id, first_prompt_id
from runyard.domain.states import RunStatus
from runyard.errors import (
    BackendUnavailableError,
    HitlNotAllowedError,
    InvalidInputError,
    QueueFullError,
    RunConflictError,
    RunNotCompletedError,
    ThreadNotFoundError,
)
from runyard.models import Limit, Message
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest
from runyard.support import store_retries
from runyard_backends.conformance.world import T, World, said, user
from runyard_backends.postgres import codec
from runyard_backends.postgres.backend import connect
from runyard_backends.postgres.migrate import Release


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


async def stored(connection: asyncpg.Connection) -> int:
    """The number of messages that are stored in batches."""
    return int(await connection.fetchval("SELECT count(*) FROM runyard.candidates"))


async def test_f15_pages_are_bounded_in_number_and_bytes() -> None:
    """F15: Up to 100 messages need no batch, of any size: workers of the previous release execute such jobs. A message that is
    larger than a page is one."""
    assert sizes(request(100, 20_000)) == [] and sizes(request(101)) == [100, 1]
    assert sizes(request(101, 300_000)) == [3] * 33 + [2]
    assert sizes(request(101, 2**20)) == [1] * 101


async def test_f15_a_refused_fan_out_stores_nothing(world: World, connection: asyncpg.Connection) -> None:
    """F15, F4, F9, R16: The refusals are those of a small fan-out, and come before its messages are stored."""
    asked = request()
    with pytest.raises(ThreadNotFoundError):
        await world.runs.accept(asked)
    await world.accept("before")
    with pytest.raises(RunNotCompletedError):
        await world.runs.accept(asked)
    await world.finish(await world.take("before"))
    await world.hire("asks", agents={"asks": "default"}, asking=["asks"])
    with pytest.raises(HitlNotAllowedError):
        await world.runs.accept(replace(asked, agent="asks"))
    await world.backend.limits.set_limit(Limit(name="queued_per_tenant", subject="", most=0))
    with pytest.raises(QueueFullError):
        await world.runs.accept(asked)
    await world.backend.limits.clear_limit("queued_per_tenant", "")
    assert await stored(connection) == 0
    assert (await world.runs.accept(asked)).created
    with pytest.raises(RunConflictError):
        await world.runs.accept(request(251))
    assert await stored(connection) == 250


async def test_f15_a_tenant_has_a_bounded_number_of_open_batches(world: World, connection: asyncpg.Connection) -> None:
    """F15, R16: Clients that stop before the accept leave at most 100 batches. The batches of other tenants and of jobs do not
    count."""
    await world.turn("before")
    assert (await world.runs.accept(request(run_id="taken"))).created
    await connection.execute("""
        INSERT INTO runyard.candidate_batches (batch, tenant) SELECT gen_random_uuid(), '' FROM generate_series(1, 100);
        INSERT INTO runyard.candidate_batches (batch, tenant) SELECT gen_random_uuid(), 'other' FROM generate_series(1, 100)""")
    with pytest.raises(QueueFullError) as caught:
        await world.runs.accept(request())
    assert caught.value.details == {"limit": "batches_per_tenant", "most": 100, "retry_after": 1}
    assert await stored(connection) == 250
    await connection.execute(
        "DELETE FROM runyard.candidate_batches WHERE ctid IN (SELECT ctid FROM runyard.candidate_batches "
        "WHERE tenant = '' AND accept_no IS NULL LIMIT 1)"
    )
    assert (await world.runs.accept(request())).created


LOSE = """
CREATE TABLE public.losses (n integer);
CREATE FUNCTION public.lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.number = 249 AND (SELECT count(*) FROM public.losses) < %d THEN
        INSERT INTO public.losses VALUES (1);
        DELETE FROM runyard.candidates WHERE number < 100;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER lose BEFORE INSERT ON runyard.candidates FOR EACH ROW EXECUTE FUNCTION public.lose();
"""


@pytest.mark.parametrize("losses", [2, 9])
async def test_f15_pages_that_are_lost_are_stored_again(
    world: World, connection: asyncpg.Connection, losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F15: The leader removes pages that it takes for left ones. The job does not begin with missing messages. A call stores
    lost pages again, and does not wait for them."""
    await world.turn("before")
    await connection.execute(LOSE % losses)
    monkeypatch.setattr(store_retries.asyncio, "sleep", waits_for_nothing)
    if losses == 2:
        assert (await world.runs.accept(request())).created
        assert await stored(connection) == 250
    else:
        with pytest.raises(BackendUnavailableError) as caught:
            await world.runs.accept(request())
        assert type(caught.value) is BackendUnavailableError
        assert await world.runs.run(T, "job") is None
        assert await connection.fetchval("SELECT count(*) FROM public.losses") == 3


async def waits_for_nothing(seconds: float) -> None:
    raise AssertionError("waited for a lock")


async def test_f15_pages_without_a_batch_are_not_stored(world: World, connection: asyncpg.Connection) -> None:
    """F15: A page belongs to a batch that was checked, and that no job has taken."""
    await connection.execute("SELECT runyard.store_candidates(gen_random_uuid(), 0, '{x}')")
    assert await stored(connection) == 0
    await world.turn("before")
    await world.runs.accept(request())
    await connection.execute("SELECT runyard.store_candidates(b.batch, 250, '{x}') FROM runyard.candidate_batches b")
    assert await stored(connection) == 250


async def test_f15_a_large_fan_out_is_refused_on_a_connection_of_the_caller(
    world: World, connection: asyncpg.Connection
) -> None:
    """F15: Its pages are transactions of their own, and the caller's transaction may be rolled back."""
    await world.turn("before")
    with pytest.raises(InvalidInputError) as caught:
        await world.runs.accept(request(), connection=connection)
    assert caught.value.details["field"] == "connection" and await stored(connection) == 0


async def test_f15_a_page_is_one_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """F15, F14: The progress and a page of candidates are each one statement, and therefore of one state, with any number of
    threads."""
    await world.turn("before")
    asked = request(5)
    assert asked.fork is not None and asked.fork.fan is not None
    await world.runs.accept(replace(asked, fork=replace(asked.fork, fan=replace(asked.fork.fan, threads=True))))
    for n in range(4):
        thread = candidate_id(T, "job", n)
        prompt = AcceptRequest(thread_id=thread, run_id=first_prompt_id(thread), input=user("?"), job=await world.ref("job"))
        await world.runs.accept(prompt)
        if n < 3:
            await world.finish(await world.take(prompt.run_id, thread=thread), said(f"answer {n}"))
    database = world.backend.fan_outs.db  # type: ignore[attr-defined]
    sent: list[str] = []
    send = database._call

    async def counted(method: str, name: str, args: object) -> object:
        sent.append(name)
        return await send(method, name, args)

    monkeypatch.setattr(database, "_call", counted)
    found = (await world.backend.fan_outs.candidates(T, "job")).items
    assert (await world.backend.fan_outs.progress(T, "job")).completed == 3
    assert sent == ["candidates", "fan_out"]
    assert [one.text for one in found] == ["answer 0", "answer 1", "answer 2", "", ""]
    assert [[message.run_status for message in one.messages] for one in found[:3]] == [[RunStatus.COMPLETED] * 2] * 3


FILL = """
INSERT INTO runyard.steps (accept_no, step_key, done, fence, result)
SELECT r.accept_no, 'candidate:' || n, true, 1, 'x' FROM runyard.runs r, generate_series(0, 999) n WHERE r.kind = 'fork_many'
"""


async def filled(world: World, connection: asyncpg.Connection, jobs: int) -> None:
    """Make fan-outs that were cancelled with 1,000 answers each."""
    await world.turn("before")
    for n in range(jobs):
        await world.runs.accept(request(run_id=f"job {n}"))
        await world.runs.cancel(T, f"job {n}")
    await connection.execute(FILL)


async def rows(connection: asyncpg.Connection) -> int:
    """The number of steps and messages of fan-outs."""
    return await stored(connection) + int(await connection.fetchval("SELECT count(*) FROM runyard.steps"))


async def test_d1_the_removal_of_fan_outs_is_bounded_in_each_step(world: World, connection: asyncpg.Connection) -> None:
    """D1: A step of the removal of a thread deletes a bounded number of steps and messages of its fan-outs."""
    await filled(world, connection, 3)
    left = [await rows(connection)]
    [key] = await connection.fetchval("SELECT unremoved FROM runyard.delete_thread('', $1, true, NULL)", T)
    left.append(await rows(connection))
    while await connection.fetchval("SELECT runyard.remove_step($1, 500)", key):
        left.append(await rows(connection))
    assert max(before - after for before, after in pairwise(left)) <= 500 and len(left) > 7
    assert await rows(connection) == 0
    assert await connection.fetchval("SELECT count(*) FROM runyard.candidate_batches") == 0


async def test_d4_the_expiry_of_fan_outs_is_bounded_in_each_call(world: World, connection: asyncpg.Connection) -> None:
    """D4: A call deletes whole fan-outs, the oldest first, and no more of them than needed for its number of rows."""
    await filled(world, connection, 3)
    left = [await rows(connection)]
    while await connection.fetchval("SELECT runyard.prune_results('0 s', 1000)") >= 1000:
        left.append(await rows(connection))
    assert left == [3750, 2500, 1250, 0]
    assert await connection.fetchval("SELECT count(*) FROM runyard.fork_results") == 0


async def test_d4_fan_outs_that_ended_before_the_migration_expire(world: World, connection: asyncpg.Connection) -> None:
    """D4: The migration notes the fan-outs that failed or were cancelled under an earlier schema."""
    await filled(world, connection, 2)
    await connection.execute("DELETE FROM runyard.fork_results")
    [migration] = [each for each in Release.installed().migrations if each.name == "fan_out_retention"]
    await connection.execute(migration.sql[migration.sql.index("INSERT INTO") :])
    await connection.fetchval("SELECT runyard.prune_results('0 s', 9000)")
    assert await rows(connection) == 0


async def test_f15_batches_that_nobody_took_are_removed_by_number_of_rows(connection: asyncpg.Connection) -> None:
    """F15: A call removes many small batches. It reads what it removes, however many batches there are."""
    await connection.execute("""
        INSERT INTO runyard.candidate_batches (batch, accept_no, stored_at)
        SELECT md5(n::text)::uuid, CASE WHEN n % 10 > 0 THEN n END, now() - interval '2 hours' FROM generate_series(1, 4000) n;
        INSERT INTO runyard.candidates (batch, number, message)
        SELECT md5(n::text)::uuid, k, 'x' FROM generate_series(1, 4000) n, generate_series(0, 9) k;
        ANALYZE runyard.candidate_batches, runyard.candidates""")
    assert await connection.fetchval("SELECT runyard.prune_candidates(1000)") == 1001
    call = "SELECT runyard.prune_candidates(1000)"
    (plan,) = json.loads(await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}"))
    read = int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"])
    print(f"blocks: {read}")
    assert read < 4000
    while await connection.fetchval(call):
        pass
    assert await stored(connection) == 36_000


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
