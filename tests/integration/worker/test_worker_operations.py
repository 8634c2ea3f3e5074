"""What an operator does to running workers: look, pause, drain (R12, W8)."""

import asyncio
import json
import signal
import urllib.request
from urllib.error import HTTPError

import asyncpg

from runyard.domain.states import RunStatus
from tests.support.fleet import Fleet, until


def answer(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def ask(fleet: Fleet, pid: int, path: str) -> tuple[int, str]:
    return await asyncio.to_thread(answer, fleet.metrics[pid].replace("/metrics", path))


async def is_ready(fleet: Fleet, pid: int) -> bool:
    return (await ask(fleet, pid, "/readyz"))[0] == 200


async def test_the_port_answers_while_user_code_blocks_the_main_loop(fleet: Fleet) -> None:
    pid = await fleet.start()
    await until(lambda: is_ready(fleet, pid))
    handle = await fleet.client.enqueue("t", "say one | tool add 1 2 | spin 30 | say two")
    await fleet.holder("t", handle.id, 3)

    async def shows_the_blocking_line() -> bool:
        text = (await ask(fleet, pid, "/stacks"))[1]
        return "in _spin" in text and f"agent of run {handle.id}" in text

    await until(shows_the_blocking_line)
    assert (await ask(fleet, pid, "/livez"))[0] == 200
    assert (await ask(fleet, pid, "/metrics"))[0] == 200
    assert await handle.status() is RunStatus.RUNNING


async def test_a_worker_without_its_servers_is_alive_and_not_ready(fleet: Fleet, redis_server: object) -> None:
    pid = await fleet.start()
    await until(lambda: is_ready(fleet, pid))
    redis_server.pause()  # type: ignore[attr-defined]
    try:

        async def not_ready() -> bool:
            status, body = await ask(fleet, pid, "/readyz")
            reasons = json.loads(body)["reasons"]
            return status == 503 and len(reasons) == 1 and reasons[0].startswith("Redis has taken no writes lately: ")

        await until(not_ready)
        assert (await ask(fleet, pid, "/livez"))[0] == 200
    finally:
        redis_server.resume()  # type: ignore[attr-defined]
    await until(lambda: is_ready(fleet, pid))


async def test_a_worker_that_the_schema_left_behind_is_not_ready(fleet: Fleet) -> None:
    """A3, U1: a contraction came while it ran."""
    pid = await fleet.start()
    await until(lambda: is_ready(fleet, pid))
    connection = await asyncpg.connect(fleet.postgres)
    try:
        await connection.execute("UPDATE runyard.schema_versions SET oldest_code = 99 WHERE version = 1")
    finally:
        await connection.close()

    async def not_ready() -> bool:
        status, body = await ask(fleet, pid, "/readyz")
        return status == 503 and json.loads(body)["reasons"] == ["the database schema requires newer code than this worker has"]

    await until(not_ready)


async def test_worker_counts_each_run_once_in_every_histogram(fleet: Fleet) -> None:
    """Each run is in every histogram that concerns it, once; waiting is told apart from working."""
    pid = await fleet.start()
    first = await fleet.client.enqueue("t", "say hello | sleep 3")
    behind = await fleet.client.enqueue("t", "say hello")
    asked = await fleet.client.enqueue("u", "say hello | color?")
    await asyncio.gather(first.result(20), behind.result(20), asked.result(20))
    await fleet.client.respond("u", "blue")
    await asked.result(20)
    await (await fleet.client.enqueue_fork("t", "fork")).result(20)

    async def count(name: str, **labels: str) -> float:
        return (await fleet.metric(f"runyard_{name}", **labels))[pid]

    assert await count("runs_finished_total", outcome="completed", agent="scripted", queue="default") == 3
    assert await count("attempt_seconds_count", agent="scripted") == 4
    assert await count("attempts_ended_total", outcome="suspended") == 1
    assert await count("queue_wait_seconds_count", queue="default") == 4
    assert await count("pickup_seconds_count", queue="default") == 5
    assert await count("suspended_seconds_count") == 1
    assert await count("first_token_seconds_count", agent="scripted") == 3
    assert await count("fork_seconds_count") == 1
    assert await count("queue_wait_seconds_sum", queue="default") >= 3 > await count("pickup_seconds_sum", queue="default")
    assert await count("slots_in_use") == await count("running_attempts") == 0 and await count("slots") == 1000


async def test_drain(fleet: Fleet) -> None:
    """The worker takes nothing more, finishes what it has however long the grace time is, and exits with 0."""
    pid = await fleet.start(grace=0)
    busy = await fleet.client.enqueue("busy", "say one | tool add 1 2 | sleep 3 | say two")
    await fleet.holder("busy", busy.id, 3)
    [worker] = await fleet.backend.workers.workers()
    await fleet.backend.workers.drain(worker.worker_id)

    async def drains() -> bool:
        return json.loads((await ask(fleet, pid, "/readyz"))[1])["reasons"] == ["the worker is draining"]

    await until(drains)
    late = await fleet.client.enqueue("late", "hi")
    assert await asyncio.wait_for(fleet.processes[pid].wait(), 20) == 0
    result = await busy.result(30)
    assert result.ok and result.run.attempt == 1
    assert await late.status() is RunStatus.QUEUED
    assert await fleet.backend.workers.workers() == []


async def test_pause_and_resume(fleet: Fleet) -> None:
    """R12: from the pause on nothing of the queue starts, others go on; resume wakes the workers, and nothing is rescued."""
    pid = await fleet.start(queues="default,other")
    await (await fleet.client.enqueue("t", "hi")).result(20)
    since = await fleet.backend.queues.pause("default")
    handles = [await fleet.client.enqueue(f"t{n}", "hi") for n in range(20)]
    assert (await (await fleet.client.enqueue("o", "hi", queue="other")).result(20)).ok
    await asyncio.sleep(2.5)  # nothing to wait for: longer than the reconciler needs to take a head for lost
    assert {await handle.status() for handle in handles} == {RunStatus.QUEUED}
    assert f"queue default is paused since {since:%Y-%m-%d}" in await handles[0].explain()
    await fleet.backend.queues.resume("default")
    results = await asyncio.gather(*(handle.result(20) for handle in handles))
    assert all(result.ok and result.run.attempt == 1 for result in results)
    assert (await fleet.metric("runyard_rescues_total"))[pid] == 0


async def test_a_cancel_ends_a_run_whose_worker_was_killed_and_that_nobody_takes(fleet: Fleet) -> None:
    """R10: its queue is paused, or no worker serves it any more; the cancel came before the death, or after it."""
    victim = await fleet.start(queues="default,own")
    early = await fleet.client.enqueue("early", "say one | tool add 1 2 | hang")
    late = await fleet.client.enqueue("late", "say one | tool add 1 2 | hang", queue="own")
    for handle in (early, late):
        await fleet.holder(handle.thread_id, handle.id, 3)
    await fleet.start()
    await fleet.backend.queues.pause("default")
    fleet.processes[victim].send_signal(signal.SIGSTOP)
    await early.cancel()
    fleet.processes[victim].kill()
    assert (await early.result(20)).status is RunStatus.CANCELLED
    assert "lost its worker" in await late.explain()
    await late.cancel()
    assert (await late.result(20)).status is RunStatus.CANCELLED
