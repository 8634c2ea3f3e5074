"""The client against Postgres, Redis and worker processes: what a web backend relies on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import asyncpg
import psycopg
import pytest
from redis.asyncio import Redis

from runyard import Client, Event, Prompt, RunHandle, RunStatus, errors
from runyard.models import STREAM_ENDS
from runyard_api.cli.dev.worker_processes import WorkerProcesses, ready
from runyard_backends.embedded.servers import REDIS_VARIABLE
from tests.support.event_streams import end_faults, order_faults

APP = "runyard.testing.scripted_agent:app"
BOUND = 60.0
"""Seconds that any one run may take on a busy machine."""


@pytest.fixture(scope="module")
def module_redis_url(request: pytest.FixtureRequest) -> str:
    url: str = os.environ.get(REDIS_VARIABLE) or request.getfixturevalue("redis_server").url
    return url


@pytest.fixture(scope="module")
def crew(module_postgres_url: str, module_redis_url: str) -> Iterator[WorkerProcesses]:
    """Two worker processes that serve the scripted agent."""

    async def begin(crew: WorkerProcesses) -> None:
        async with Client.connect(module_postgres_url, redis=module_redis_url) as client:
            await ready(client, crew)

    with WorkerProcesses(APP, 2, module_postgres_url, module_redis_url) as crew:
        asyncio.run(begin(crew))
        yield crew


@pytest.fixture
async def client(crew: WorkerProcesses, module_postgres_url: str, module_redis_url: str) -> AsyncIterator[Client]:
    async with Client.connect(module_postgres_url, redis=module_redis_url) as client:
        yield client


async def collect(events: AsyncIterator[Event]) -> list[Event]:
    async with asyncio.timeout(BOUND):
        return [event async for event in events]


async def texts(client: Client, thread_id: str) -> list[str]:
    return [message.text for message in (await client.messages(thread_id)).items]


async def test_r1_e2_a_run_streams_its_text_and_ends_once(client: Client) -> None:
    handle = await client.enqueue("stream", "one two three")
    events = await collect(handle.stream())
    assert "".join(str(event.data["text"]) for event in events if event.type == "message.delta") == "one two three"
    assert [event.type for event in events[:3]] == ["run.queued", "run.started", "message.completed"]
    assert [event.type for event in events if event.type in STREAM_ENDS] == ["run.completed"]
    assert events[-1].type == "run.completed"
    assert (await handle.result(BOUND)).text == "one two three"


async def test_e1_a_reader_that_comes_back_gets_the_rest(client: Client) -> None:
    handle = await client.enqueue("resume", "a b c | tool add 1 2 | d e f")
    await handle.result(BOUND)
    events = await collect(handle.stream())
    for n, last in enumerate(events):
        assert await collect(handle.stream(last.id)) == events[n + 1 :]


async def test_e1_e4_a_flushed_redis_is_a_gap_and_what_postgres_proves(client: Client, module_redis_url: str) -> None:
    handle = await client.enqueue("flushed", "a b c | tool add 1 2")
    await handle.result(BOUND)
    before = await collect(handle.stream())
    async with Redis.from_url(module_redis_url) as redis:
        await redis.flushdb()
    after = await collect(handle.stream(before[1].id))
    assert after[0].type == "gap"
    stored = [event.id for event in before if event.type in ("message.completed", "run.completed")]
    assert [event.id for event in after if event.type in ("message.completed", "run.completed")] == [
        event_id for event_id in stored if event_id != before[1].id
    ]
    assert after[-1].type == "run.completed"


async def test_i9_a_flush_in_mid_run_is_announced_and_the_end_arrives(client: Client, module_redis_url: str) -> None:
    """Readers that were there, that come afterwards, and that come back: each is told of every loss, and of the end once."""
    handle = await client.enqueue("flushed-live", "a b | tool add 1 2 | sleep 1 | c d")
    live: list[Event] = []
    others: dict[str | None, asyncio.Task[list[Event]]] = {}
    async with asyncio.timeout(BOUND), aclosing(handle.stream()) as events:
        async for event in events:
            live.append(event)
            if event.type in STREAM_ENDS:
                assert await handle.status() is RunStatus.COMPLETED
            if event.type == "tool.completed":
                async with Redis.from_url(module_redis_url) as redis:
                    await redis.flushdb()
                others = {last: asyncio.create_task(collect(handle.stream(last))) for last in (None, live[1].id)}
    readers = [(None, live), *[(last, await reading) for last, reading in others.items()]]
    assert len(readers) == 3
    for last, seen in readers:
        assert [*order_faults(seen, last), *end_faults(seen)] == []
        assert seen[-1].type == "run.completed"
        stored = [event.id for event in live if event.type == "message.completed"]
        assert [event.id for event in seen if event.type == "message.completed"] == stored
    for _, seen in readers[1:]:
        assert "gap" in {event.type for event in seen}
        assert {event.id for event in live if event.type == "message.delta"} - {event.id for event in seen}
    assert (await handle.result(BOUND)).ok


async def test_r2_the_same_run_id_executes_nothing_twice(client: Client) -> None:
    first = await client.enqueue("twice", "tool add 1 2", "r")
    await first.result(BOUND)
    again = await client.enqueue("twice", "tool add 1 2", "r")
    assert not again.created
    assert (await again.result(BOUND)).run.attempt == 1
    assert len(await texts(client, "twice")) == 4
    with pytest.raises(errors.RunConflictError):
        await client.enqueue("twice", "tool add 1 3", "r")


async def test_h3_h5_a_run_waits_for_its_human_and_goes_on(client: Client) -> None:
    handle = await client.enqueue("human", "tool add 1 2 | approve refund 10 | done")
    result = await handle.result(BOUND)
    assert result.status is RunStatus.SUSPENDED
    [request] = result.requests
    assert request.kind == "approval"
    with pytest.raises(errors.HitlInvalidAnswerError):
        await client.respond("human", "perhaps")
    await client.respond("human", True)
    result = await handle.result(BOUND)
    assert result.ok
    calls = [call.name for message in result.messages for call in message.tool_calls]
    assert calls == ["add", "refund"]


async def test_f5_a_fork_job_waits_for_its_run(client: Client) -> None:
    handle = await client.enqueue("busy", "sleep 0.5 | over")
    fork = await asyncio.wait_for(client.fork("busy", "busy-fork", handle.id, wait=True, message="next"), BOUND)
    assert fork.parent_thread_id == "busy"
    [run] = (await client.runs("busy-fork")).items
    assert (await client.handle("busy-fork", run.run_id).result(BOUND)).ok
    assert await texts(client, "busy-fork") == ["sleep 0.5 | over", "over", "next", "next"]


async def test_f5_a_fork_job_fails_with_its_run(client: Client) -> None:
    handle = await client.enqueue("failing", "sleep 0.5 | fail")
    with pytest.raises(errors.RunNotCompletedError):
        await asyncio.wait_for(client.fork("failing", "failing-fork", handle.id, wait=True), BOUND)


async def test_f9_a_probe_answers_from_a_snapshot_and_writes_nothing(client: Client) -> None:
    first = await client.enqueue("probed", "one")
    await first.result(BOUND)
    await (await client.enqueue("probed", "two")).result(BOUND)
    before = await texts(client, "probed")
    probe = await client.fork_once("probed", "what if", first.id, run_id="probe-1", wait=BOUND)
    assert (probe.text, probe.stop_reason, len(probe.messages)) == ("what if", "stop", 2)
    assert await client.fork_once("probed", "what if", first.id, run_id="probe-1", wait=BOUND) == probe
    assert await texts(client, "probed") == before
    with pytest.raises(errors.HitlNotAllowedError):
        await client.fork_once("probed", "really?", wait=BOUND)


async def test_b5_regenerate(client: Client) -> None:
    await (await client.enqueue("again", "one")).result(BOUND)
    await (await client.regenerate("again")).result(BOUND)
    assert await texts(client, "again") == ["one", "one"]
    assert len((await client.branches("again")).items) == 2


async def test_a_run_exists_exactly_if_the_hosts_transaction_commits(client: Client, module_postgres_url: str) -> None:
    connection = await asyncpg.connect(module_postgres_url)
    try:
        with pytest.raises(ZeroDivisionError):
            async with connection.transaction():
                await client.enqueue("order", "never", "rolled-back", connection=connection)
                raise ZeroDivisionError
        async with connection.transaction():
            handle = await client.enqueue("order", "thanks", "committed", connection=connection)
            with pytest.raises(errors.RunNotFoundError):
                await client.run("order", "committed")
    finally:
        await connection.close()
    assert (await handle.result(BOUND)).text == "thanks"
    with pytest.raises(errors.RunNotFoundError):
        await client.run("order", "rolled-back")


async def test_the_same_from_any_driver_in_sql(client: Client, module_postgres_url: str) -> None:
    def enqueue() -> str:
        with psycopg.connect(module_postgres_url) as connection:  # commits at its end
            row = connection.execute("SELECT runyard.accept(%s, %s, %s)", ("order-2", "thanks", "by-psycopg")).fetchone()
            assert row is not None
            return str(row[0])

    run_id = await asyncio.to_thread(enqueue)
    assert run_id == "by-psycopg"
    assert (await client.handle("order-2", run_id).result(BOUND)).text == "thanks"


def test_a_program_without_an_event_loop(crew: WorkerProcesses, module_postgres_url: str, module_redis_url: str) -> None:
    with Client.sync(module_postgres_url, redis=module_redis_url) as client:
        handle = client.enqueue("sync", "one two")
        kinds = [event.type for event in handle.stream()]
        assert kinds[-1] == "run.completed"
        assert handle.result(timeout=BOUND).text == "one two"
        stream = handle.stream()
        next(stream)
        stream.close()  # type: ignore[attr-defined]


async def test_redis_away_at_accept_is_still_accepted(crew: WorkerProcesses, module_postgres_url: str) -> None:
    """Failure table: queued in Postgres, and run once the reconciler finds it."""
    async with Client.connect(module_postgres_url, redis="redis://127.0.0.1:1/0") as client:
        handle = await asyncio.wait_for(client.enqueue("no-redis", "still here"), BOUND)
        assert (await handle.result(BOUND)).text == "still here"


async def test_r1_r3_many_prompts_are_executed_in_order(client: Client) -> None:
    """``enqueue_many`` gives the jobs to the workers. Each lane keeps the order of its prompts."""
    prompts = [Prompt(f"many-{n % 10}", f"say {n}") for n in range(200)]
    handles = [one for one in await client.enqueue_many(prompts) if isinstance(one, RunHandle)]
    results = [await handle.result(BOUND) for handle in handles]
    assert [result.text for result in results] == [str(n) for n in range(200)]
    assert (await texts(client, "many-3"))[1::2] == [str(n) for n in range(3, 200, 10)]
