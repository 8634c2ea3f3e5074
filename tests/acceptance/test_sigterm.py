"""A worker that is asked to leave (W6): it drains, hands the rest over, and is gone in time."""

import asyncio
import os
import time

import asyncpg
import pytest

from runyard.domain.states import RunStatus
from runyard.execution.executor import CLEANUP_SECONDS
from runyard.worker.worker import LEAVE_SECONDS
from runyard_api.worker.process import LINGER_SECONDS
from runyard_backends.embedded import EmbeddedPostgres
from tests.support.fleet import SLACK, Fleet, until

GRACE = float(os.environ.get("RUNYARD_TEST_GRACE", "2"))
"""Seconds that the worker lets its runs finish."""
RUNS = 100


@pytest.mark.timeout(300 + 2 * GRACE)
async def test_sigterm_with_100_runs_in_flight(fleet: Fleet) -> None:
    """R9, I1: gone within two seconds of its grace; no crash is counted, and every run finishes, there or elsewhere."""
    leaver = await fleet.start(grace=GRACE)
    quick = [await fleet.client.enqueue(f"q{n}", f"say half | sleep {GRACE / 2} | say end") for n in range(RUNS // 2)]
    endless = [await fleet.client.enqueue(f"e{n}", "say half | hang | say end") for n in range(RUNS // 2)]

    async def in_flight() -> bool:
        return all([await handle.status() is RunStatus.RUNNING for handle in endless])

    await until(in_flight)
    await fleet.start()
    began = time.monotonic()
    fleet.processes[leaver].terminate()
    assert await asyncio.wait_for(fleet.processes[leaver].wait(), GRACE + 30) == 0
    took = time.monotonic() - began
    results = await asyncio.gather(*(handle.result(30) for handle in (*quick, *endless)))
    print(f"\nleft after {took:.2f} s with {GRACE:g} s of grace")
    assert took <= GRACE + 2 + SLACK
    assert {result.status for result in results} == {RunStatus.COMPLETED}
    assert {(result.run.crash_count, result.run.error_count) for result in results} == {(0, 0)}
    assert {result.run.attempt for result in results[: len(quick)]} == {1}
    assert {result.run.attempt for result in results[len(quick) :]} == {2}
    for result in results:
        assert [message.text for message in result.messages if message.role == "assistant"] == ["half", "end"]


@pytest.mark.parametrize("keeps", ["task", "thread"])
async def test_sigterm_does_not_wait_for_what_ignores_it(fleet: Fleet, keeps: str) -> None:
    """W6: a task that swallows its cancellation, or a thread that nothing can cancel, does not keep the process."""
    leaver = await fleet.start(grace=0, app="tests.support.agents.odd:app")
    handle = await fleet.client.enqueue("t", keeps, agent="stubborn")
    await fleet.holder("t", handle.id, messages=0)
    began = time.monotonic()
    fleet.processes[leaver].terminate()
    assert await asyncio.wait_for(fleet.processes[leaver].wait(), 40) == 0
    assert time.monotonic() - began <= CLEANUP_SECONDS + 2 + LINGER_SECONDS + SLACK
    await fleet.start(app="tests.support.agents.odd:app")
    assert (await handle.result(20)).run.crash_count == 0


@pytest.mark.parametrize("keeps", [None, "task"], ids=["idle", "busy"])
async def test_sigterm_does_not_wait_for_a_server_that_does_not_answer(
    fleet: Fleet, postgres_server: EmbeddedPostgres, keeps: str | None
) -> None:
    """W6: what cannot be told is left to the others."""
    leaver = await fleet.start(grace=0, app="tests.support.agents.odd:app")
    if keeps is not None:
        handle = await fleet.client.enqueue("t", keeps, agent="stubborn")
        await fleet.holder("t", handle.id, messages=0)
    postgres_server.pause()
    try:
        began = time.monotonic()
        fleet.processes[leaver].terminate()
        assert await asyncio.wait_for(fleet.processes[leaver].wait(), LEAVE_SECONDS + 20) == 0
        assert time.monotonic() - began <= LEAVE_SECONDS + LINGER_SECONDS + SLACK
    finally:
        postgres_server.resume()


async def test_sigterm_does_not_wait_for_a_store_that_refuses(fleet: Fleet, postgres_url: str) -> None:
    """R9: a worker that cannot say that it leaves hands its runs over all the same, and no thread keeps its process."""
    leaver = await fleet.start(grace=0, app="tests.support.agents.odd:app")
    handle = await fleet.client.enqueue("t", "thread", agent="stubborn")
    await fleet.holder("t", handle.id, messages=0)
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("ALTER TABLE runyard.workers RENAME TO gone")
    began = time.monotonic()
    fleet.processes[leaver].terminate()
    assert await asyncio.wait_for(fleet.processes[leaver].wait(), LEAVE_SECONDS + 20) == 0
    assert time.monotonic() - began <= LEAVE_SECONDS + LINGER_SECONDS + SLACK
    await connection.execute("ALTER TABLE runyard.gone RENAME TO workers")
    await connection.close()
    run = await handle.run()
    assert (run.status, run.crash_count) == (RunStatus.QUEUED, 0)
