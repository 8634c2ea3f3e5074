"""fork_many on worker processes that are killed (F11, I1)."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from runyard import Client
from runyard.domain.states import RunStatus
from runyard.models import ForkManyResult
from runyard.ports.refs import AttemptToken
from runyard.ports.results import Step
from runyard_api.cli.exit_codes import Exit
from runyard_api.cli.main import main
from tests.support.fleet import Fleet, until

BOUND = 60.0


async def steps_of(fleet: Fleet, thread_id: str, job: str) -> dict[str, Step]:
    """What the job has recorded."""
    run, key = await fleet.client.run(thread_id, job), await fleet.backend.threads.thread_key(thread_id)
    assert key is not None
    return (await fleet.backend.runs.ledger(AttemptToken(key, job, run.fence or 0))).steps


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
        return len(await steps_of(fleet, "t", "job")) == 2

    await until(two_are_done)
    before = await steps_of(fleet, "t", "job")
    await replaced(fleet, pid)
    result = await fleet.client.fork_many("t", wait=BOUND, **how)  # type: ignore[arg-type]
    assert [candidate.text for candidate in result.results] == ["a", "b", "c"]
    for n in (0, 2):
        assert ids(result, n) == [message["id"] for message in before[f"candidate:{n}"].result["messages"]]
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
