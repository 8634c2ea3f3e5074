"""Worker processes on real servers: crashes, order, cancels, hand-overs (R3, R9, R10, H1, I1 to I4, W3 to W7)."""

import asyncio
import os
import signal
import time
from itertools import pairwise

import asyncpg
import pytest

from runyard.domain.states import RunStatus
from runyard.errors import RunNotFoundError
from runyard.ports.workers import WorkerInfo
from runyard.support import backend_urls
from runyard.testing.scripted_agent import app
from runyard_api.worker.process import heartbeat_connector, serve
from tests.support.event_streams import end_faults, order_faults
from tests.support.fleet import Fleet, until


async def test_kill_9_while_running(fleet: Fleet) -> None:
    """R9: another worker resumes from the last committed message; nothing is said twice; a client rewinds its partial text."""
    await asyncio.gather(fleet.start(), fleet.start())
    handle = await fleet.client.enqueue("t", "say one | tool add 1 2 | hang | say two")
    victim = await fleet.holder("t", handle.id, 3)
    fleet.processes[victim].kill()
    result = await handle.result(30)
    assert result.ok
    assert [message.text for message in result.messages if message.role == "assistant" and message.text] == ["one", "two"]
    assert (result.run.attempt, result.run.crash_count, result.run.error_count) == (2, 1, 0)
    rewound = [event async for event in handle.stream() if event.type == "run.rewound"]
    assert [event.data["attempt"] for event in rewound] == [2]


async def test_runs_of_a_thread_never_overlap_and_keep_their_order(fleet: Fleet) -> None:
    """R3, I3, I4: two workers, five threads, twenty runs each."""
    await asyncio.gather(fleet.start(), fleet.start())
    handles = {t: [await fleet.client.enqueue(f"t{t}", "hi", f"{n:02}") for n in range(20)] for t in range(5)}
    results = await asyncio.gather(*(handle.result(60) for mine in handles.values() for handle in mine))
    assert all(result.ok and result.run.attempt == 1 for result in results)
    for t in handles:
        runs = sorted((result.run for result in results if result.run.thread_id == f"t{t}"), key=lambda run: run.run_id)
        for before, after in pairwise(runs):
            assert before.finished_at is not None
            assert after.started_at is not None
            assert before.finished_at <= after.started_at


async def test_cancel_of_a_running_run(fleet: Fleet) -> None:
    """R10, I8: the lane goes on at once."""
    await fleet.start()
    handle = await fleet.client.enqueue("t", "say one | tool add 1 2 | sleep 60")
    behind = await fleet.client.enqueue("t", "say two")
    await fleet.holder("t", handle.id, 3)
    await handle.cancel()
    assert (await handle.result(30)).status is RunStatus.CANCELLED
    assert (await behind.result(30)).text == "two"


async def test_an_answer_finds_the_run_wherever_it_goes_on(fleet: Fleet) -> None:
    """H1: the worker that asked is gone by the time of the answer."""
    asker = await fleet.start()
    handle = await fleet.client.enqueue("t", "say hello | approve refund 10 | color?")
    assert (await handle.result(20)).status is RunStatus.SUSPENDED
    fleet.processes[asker].kill()
    await fleet.start()
    await fleet.client.respond("t", True)
    assert (await handle.result(20)).status is RunStatus.SUSPENDED
    await fleet.client.respond("t", "blue")
    result = await handle.result(20)
    assert result.text == "color? blue"
    assert result.run.crash_count == 0


async def test_sigterm_hands_over(fleet: Fleet) -> None:
    """W6: released at its last commit, at once; not a crash."""
    await fleet.start(grace=0)
    handle = await fleet.client.enqueue("t", "say one | tool add 1 2 | hang | say two")
    leaver = await fleet.holder("t", handle.id, 3)
    await fleet.start()
    fleet.processes[leaver].terminate()
    assert await asyncio.wait_for(fleet.processes[leaver].wait(), 30) == 0
    result = await handle.result(30)
    assert result.ok
    assert (result.run.attempt, result.run.crash_count, result.run.error_count) == (2, 0, 0)


async def test_a_stopped_worker_is_taken_over_and_starts_afresh(fleet: Fleet) -> None:
    """I2: SIGSTOP longer than the death limit; the old worker's writes are refused, it registers under another id.

    The old attempt's sleep is over when its process goes on, and the new attempt still sleeps: both want to say "two".
    """
    await asyncio.gather(fleet.start(), fleet.start())
    handle = await fleet.client.enqueue("t", "say one | tool add 1 2 | sleep 3 | say two")
    frozen = await fleet.holder("t", handle.id, 3)
    os.kill(frozen, signal.SIGSTOP)

    async def taken_over() -> bool:
        return (await handle.run()).attempt == 2

    await until(taken_over, 30)
    os.kill(frozen, signal.SIGCONT)
    result = await handle.result(20)
    assert [message.text for message in result.messages if message.role == "assistant" and message.text] == ["one", "two"]
    assert (result.run.attempt, result.run.crash_count) == (2, 1)
    assert f"-{frozen}-" not in (result.run.worker_id or "")
    stream = [event async for event in handle.stream()]
    assert [*order_faults(stream), *end_faults(stream)] == []

    async def back() -> bool:
        mine = [worker for worker in await fleet.backend.workers.workers() if f"-{frozen}-" in worker.worker_id]
        return any(worker.dead_at is None for worker in mine)

    await until(back)


async def test_a_run_accepted_in_a_hosts_transaction_starts_when_it_commits(fleet: Fleet) -> None:
    """W7: workers LISTEN and admit after the commit; nothing is seen before it."""
    await fleet.start()
    connection = await asyncpg.connect(fleet.postgres)
    try:
        async with connection.transaction():
            handle = await fleet.client.enqueue("t", "say hello", connection=connection)
            with pytest.raises(RunNotFoundError):
                await fleet.client.run("t", handle.id)
        assert (await handle.result(30)).text == "hello"
    finally:
        await connection.close()


async def test_code_that_blocks_the_event_loop_keeps_its_runs(fleet: Fleet) -> None:
    """W3: locks are renewed and heartbeats sent from another thread."""
    await asyncio.gather(fleet.start(), fleet.start())
    handle = await fleet.client.enqueue("t", "say one | tool add 1 2 | spin 7 | say two")
    result = await handle.result(30)
    assert result.ok
    assert (result.run.attempt, result.run.crash_count) == (1, 0)


async def test_workers_that_come_and_go_lose_nothing(postgres_url: str, redis_url: str, fleet: Fleet) -> None:
    """R9, W6: each stops while a run is being enqueued, before, while or after its waiting claim takes it."""
    backend = await backend_urls.connect(postgres_url, redis=redis_url)
    connect = heartbeat_connector(postgres_url, redis_url)
    handle = await fleet.client.enqueue("t", "hi")
    for n in range(20):
        async with serve(app, backend, connect=connect) as worker:
            assert (await handle.result(30)).ok
            enqueued = asyncio.create_task(fleet.client.enqueue(f"t{n}", "hi"))
            await asyncio.sleep(0.0002 * n)
        assert worker.reconciler.rescued == 0
        handle = await enqueued
    await backend.close()


async def test_code_that_blocks_the_event_loop_for_too_long_loses_its_runs(fleet: Fleet) -> None:
    """W3: beyond the watchdog a worker is as if stopped: taken over, then refused, and back under another id."""
    blocked = await fleet.start(watchdog=1)
    handle = await fleet.client.enqueue("t", "say one | tool add 1 2 | spin 9 | say two")
    assert await fleet.holder("t", handle.id, 3) == blocked
    await fleet.start()
    result = await handle.result(40)
    assert [message.text for message in result.messages if message.role == "assistant" and message.text] == ["one", "two"]
    assert (result.run.attempt, result.run.crash_count) == (2, 1)

    async def back() -> bool:
        mine = [worker for worker in await fleet.backend.workers.workers() if f"-{blocked}-" in worker.worker_id]
        return [worker.dead_at is None for worker in mine] == [False, True]

    await until(back)


async def test_leader_whose_agents_block_the_event_loop_again_and_again_declares_the_dead(
    postgres_url: str, redis_url: str, fleet: Fleet
) -> None:
    """W1: the heartbeats are read in another thread, and there is no other worker."""
    backend = await backend_urls.connect(postgres_url, redis=redis_url)
    async with serve(app, backend, connect=heartbeat_connector(postgres_url, redis_url)) as worker:
        await fleet.backend.workers.register(WorkerInfo(worker_id="silent", queues=["elsewhere"]))
        for _ in range(40):
            time.sleep(1.2)  # noqa: ASYNC251 - user code that blocks longer than an answer of the store may take
            await asyncio.sleep(0.01)
            if any(known.dead_at for known in await fleet.backend.workers.workers()):
                break
        [dead] = [known.worker_id for known in await fleet.backend.workers.workers() if known.dead_at]
        assert dead == "silent" and worker.leading
    await backend.close()


async def test_a_run_whose_task_vanished_is_released(fleet: Fleet) -> None:
    """W4: the worker's own check finds a row without a task; not a crash, and no other worker is needed."""
    await fleet.start(app="tests.support.agents.odd:app")
    handle = await fleet.client.enqueue("t", "hi", agent="vanish")
    result = await handle.result(20)
    assert result.ok
    assert (result.run.attempt, result.run.crash_count, result.run.error_count) == (2, 0, 0)


async def test_an_agent_that_exits_ends_its_run_only(fleet: Fleet) -> None:
    """I1, R7: whichever of its tasks raises what ends a process; the worker and its other runs go on."""
    worker = await fleet.start(app="tests.support.agents.odd:app")
    neighbour = await fleet.client.enqueue("n", "task", agent="stubborn")
    await fleet.holder("n", neighbour.id, messages=0)
    ways = [f"{what} {where}" for what in ("exit", "interrupt") for where in ("itself", "group", "gathered", "forgotten")]
    handles = [await fleet.client.enqueue(f"t{n}", way, agent="quit") for n, way in enumerate(ways)]
    results = await asyncio.gather(*(handle.result(20) for handle in handles))
    for way, result in zip(ways, results, strict=True):
        assert result.run.attempt == 1, way
        if way.endswith("forgotten"):
            assert result.ok, way
        else:
            assert result.error is not None, way
            assert (result.status, result.error.code) == (RunStatus.FAILED, "agent_error"), way
    assert fleet.processes[worker].returncode is None
    assert (await fleet.client.run("n", neighbour.id)).status is RunStatus.RUNNING


async def test_workers_without_faults_need_no_rescue(postgres_url: str, redis_url: str, fleet: Fleet) -> None:
    """W2: a lost wake-up must not hide behind the reconciler. Two workers in this process, busy for a while."""
    backends = [await backend_urls.connect(postgres_url, redis=redis_url) for _ in range(2)]
    connect = heartbeat_connector(postgres_url, redis_url)
    async with serve(app, backends[0], connect=connect) as one, serve(app, backends[1], connect=connect) as two:
        for _ in range(3):
            handles = [await fleet.client.enqueue(f"t{n % 40}", "hi") for n in range(120)]
            asked = [await fleet.client.enqueue(f"h{n}", "color?") for n in range(20)]
            for handle in asked:
                assert (await handle.result(60)).status is RunStatus.SUSPENDED
                await fleet.client.respond(handle.thread_id, "blue")
            results = await asyncio.gather(*(handle.result(60) for handle in (*handles, *asked)))
            assert all(result.ok and result.run.crash_count == 0 for result in results)
        assert one.reconciler.rescued + two.reconciler.rescued == 0
    for backend in backends:
        await backend.close()
