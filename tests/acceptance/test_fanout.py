"""fork_many on processes that are killed (F11, F14, F15, I1)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import asyncpg
import pytest

from runyard import Client
from runyard.domain.states import RunStatus
from runyard.errors import RunNotFoundError
from runyard.models import ForkManyResult, new_id
from runyard_api.cli.exit_codes import Exit
from runyard_api.cli.main import main
from tests.support.fleet import Fleet, until

BOUND = 60.0


async def first_run(fleet: Fleet) -> None:
    assert (await (await fleet.client.enqueue("t", "say hello", "first")).result(BOUND)).ok


async def replaced(fleet: Fleet, pid: int) -> None:
    """Another worker takes the place of one that is killed."""
    os.kill(pid, signal.SIGKILL)
    await fleet.processes[pid].wait()
    await fleet.start(slots=1)


def ids(result: ForkManyResult, n: int) -> list[str]:
    return [message.id for message in result.results[n].messages]


async def test_f11_kill_9_between_probes_repeats_none_that_finished(fleet: Fleet) -> None:
    """F11: a probe that was recorded is the same one afterwards, down to the ids of its messages."""
    pid = await fleet.start(slots=1)
    await first_run(fleet)
    how = {"messages": ["say a", "hang | say b", "say c"], "run_id": "job"}
    await fleet.client.enqueue_fork_many("t", **how)  # type: ignore[arg-type]

    async def two_are_done() -> bool:
        return (await fleet.client.fan_out_progress("t", "job")).ended == 2

    await until(two_are_done)
    before = (await fleet.client.candidates("t", "job")).items
    await replaced(fleet, pid)
    result = await fleet.client.fork_many("t", wait=BOUND, **how)  # type: ignore[arg-type]
    assert [candidate.text for candidate in result.results] == ["a", "b", "c"]
    for n in (0, 2):
        assert ids(result, n) == [message.id for message in before[n].messages]
    run = await fleet.client.run("t", "job")
    assert (run.attempt, run.crash_count) == (2, 1)
    assert len((await fleet.client.messages("t")).items) == 2


async def test_f11_from_the_command_line_and_without_an_event_loop(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F11: the winner is marked; the sync client asks for the same job and has its answer."""
    await fleet.start(slots=1)
    await first_run(fleet)
    monkeypatch.setenv("RUNYARD_POSTGRES_URL", fleet.postgres)
    monkeypatch.setenv("RUNYARD_REDIS_URL", fleet.redis)
    words = ("fork-many", "t", "fail", "say b", "--stop", "first", "--max-parallel", "1", "--run-id", "job")
    assert await asyncio.to_thread(main, words) == Exit.OK
    assert capsys.readouterr().out == "  0: error\n* 1: b\n"
    assert await asyncio.to_thread(main, ("runs", "show", "job")) == Exit.OK
    assert "2: 1 completed, 1 failed" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ("runs", "candidates", "t", "job", "--limit", "1")) == Exit.OK
    shown = capsys.readouterr()
    assert "failed" in shown.out and "completed" not in shown.out and "more: --cursor" in shown.err

    def ask() -> ForkManyResult:
        with Client.sync(fleet.postgres, redis=fleet.redis) as client:
            return client.fork_many("t", messages=["fail", "say b"], stop="first", run_id="job", wait=BOUND)

    assert (await asyncio.to_thread(ask)).winner == 1
    assert await asyncio.to_thread(main, ("fork-many", "t", "fail", "fail")) == Exit.FAILED_RUN
    capsys.readouterr()
    assert await asyncio.to_thread(main, ("fork-many", "t", "say c", "--threads", "--json")) == Exit.OK
    [candidate] = json.loads(capsys.readouterr().out)["results"]
    assert candidate["text"] == "c"
    assert (await fleet.client.thread(candidate["thread_id"])).parent_thread_id == "t"


async def test_f11_kill_9_while_threads_run(fleet: Fleet) -> None:
    """F11: one slot; the threads are found again, each run's words are there once, and no thread is made twice."""
    pid = await fleet.start(slots=1)
    await first_run(fleet)
    how = {"messages": ["say a", "say b1 | hang | say b2", "say c"], "threads": True, "max_parallel": 2, "run_id": "job"}
    await fleet.client.enqueue_fork_many("t", **how)  # type: ignore[arg-type]

    async def one_hangs() -> bool:
        runs = (await fleet.client.runs(status=RunStatus.RUNNING)).items
        return any(run.input is not None and "hang" in run.input.text for run in runs)

    await until(one_hangs)
    await replaced(fleet, pid)
    result = await fleet.client.fork_many("t", wait=BOUND, **how)  # type: ignore[arg-type]
    said = [[message.text for message in candidate.messages if message.role == "assistant"] for candidate in result.results]
    assert said == [["a"], ["b1", "b2"], ["c"]]
    threads = {thread.thread_id for thread in (await fleet.client.threads(parent_thread_id="t")).items}
    assert threads == {candidate.thread_id for candidate in result.results}
    for candidate in result.results:
        assert candidate.thread_id is not None
        assert len((await fleet.client.messages(candidate.thread_id)).items) == 2 + len(candidate.messages)


async def test_f14_kill_9_loses_and_repeats_no_usage(fleet: Fleet) -> None:
    """F14, I1: the usage of a probe counts from its record on, whatever becomes of the worker."""
    pid = await fleet.start(slots=1, app="tests.support.agents.metered:app")
    await first_run(fleet)
    job = await fleet.client.enqueue_fork_many("t", "job", messages=["x"] * 40, agent="priced", max_parallel=1)

    async def some_ended() -> bool:
        return (await job.progress()).completed >= 5

    await until(some_ended)
    os.kill(pid, signal.SIGKILL)
    await fleet.processes[pid].wait()
    before = await job.progress()
    assert before.usage.requests == before.completed >= 5
    await fleet.start(slots=1, app="tests.support.agents.metered:app")
    assert (await job.result(BOUND)).ok
    after = await job.progress()
    assert (after.completed, after.usage.requests, after.usage.input_tokens) == (40, 40, 8000)
    assert (await job.run()).usage == after.usage


CLIENT = """
import asyncio, sys
from runyard import Client

async def main() -> None:
    async with Client.connect(sys.argv[1], redis=sys.argv[2]) as client:
        await client.enqueue_fork_many("t", "job", messages=[f"say {n}" for n in range(300)], max_parallel=30)

asyncio.run(main())
"""
BLOCK = """
CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.number = 200 THEN PERFORM pg_advisory_xact_lock(4711); END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER hold BEFORE INSERT ON runyard.candidates FOR EACH ROW EXECUTE FUNCTION public.hold();
"""


async def test_f15_kill_9_of_the_client_between_pages(fleet: Fleet) -> None:
    """F15: the job is there with all its messages or not at all. Nobody waits for a lock meanwhile. The same call again goes on
    with the pages that are stored, and each message is tried once."""
    await fleet.start(slots=1)
    await first_run(fleet)
    held = await asyncpg.connect(fleet.postgres)
    await held.execute(BLOCK)
    await held.execute("SELECT pg_advisory_lock(4711)")

    async def pages() -> int:
        return await held.fetchval("SELECT count(*) FROM runyard.candidates")

    async def blocked() -> bool:
        return await held.fetchval("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)")

    client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, fleet.postgres, fleet.redis)
    await until(blocked, 30)
    assert (await (await fleet.client.enqueue("t", "say meanwhile")).result(BOUND)).ok
    client.kill()
    await client.wait()
    await held.execute("SELECT pg_advisory_unlock(4711)")
    await held.execute("DROP TRIGGER hold ON runyard.candidates")
    assert await pages() in (200, 300)
    with pytest.raises(RunNotFoundError):
        await fleet.client.run("t", "job")
    again = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, fleet.postgres, fleet.redis)
    assert await again.wait() == 0
    assert await pages() == 300
    assert (await fleet.client.handle("t", "job").result(BOUND)).ok
    found = [one.text for one in (await fleet.client.candidates("t", "job", limit=1000)).items]
    assert found == [str(n) for n in range(300)]
    await fleet.client.delete_thread("t")

    async def removed() -> bool:
        return await pages() == 0

    await until(removed)
    assert await held.fetchval("SELECT count(*) FROM runyard.candidate_batches") == 0
    await held.close()


async def test_f15_pages_that_nobody_takes_are_removed(fleet: Fleet) -> None:
    """F15: the leader removes the pages of a call that stopped, an hour after the last of them."""
    await fleet.start(slots=1)
    await first_run(fleet)
    connection = await asyncpg.connect(fleet.postgres)
    for batch, age in ((new_id(), "61 minutes"), (new_id(), "59 minutes")):
        await connection.execute("INSERT INTO runyard.candidate_batches (batch, tenant) VALUES ($1, '')", batch)
        await connection.execute("SELECT runyard.store_candidates($1, 0, $2)", batch, [b"x", b"y"])
        await connection.execute(
            "UPDATE runyard.candidate_batches SET stored_at = stored_at - $2::text::interval WHERE batch = $1", batch, age
        )
    await connection.fetchval("SELECT runyard.prune('1 day', '1 day', '1 day', 5000)")
    assert await connection.fetchval("SELECT count(*) FROM runyard.candidates") == 2
    await connection.close()
