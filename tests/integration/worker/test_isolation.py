"""A run that crashed twice is executed alone, in a child of the worker, and is led from there (R21)."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from runyard.client.run_handle import RunHandle
from runyard.domain.states import RunStatus
from runyard.models import Run, RunOptions
from runyard.ports.stores import Backend
from runyard_backends.conformance.world import World
from tests.support.fleet import Fleet, until
from tests.support.traces import OtlpReceiver


async def crashed_twice(fleet: Fleet, script: str, thread_id: str, timeout: float | None = None) -> RunHandle:
    """A run that two workers crashed with; the next attempt is to run alone. The reconciler brings it to a living worker."""

    async def no_other(tenant: str = "") -> Backend:
        raise NotImplementedError

    world = World(fleet.backend, no_other)
    await world.accept("r", script, thread=thread_id, options=RunOptions(timeout=timeout))
    await world.crash("r", 2, thread=thread_id, worker=f"{thread_id}-crashing")
    return RunHandle(fleet.client, thread_id, "r")


async def test_its_spans_are_below_the_attempt_of_the_worker(fleet: Fleet, tmp_path: Path) -> None:
    """T1: the worker has the span of the attempt, and the child those of models. The worker counts the usage, and the child
    logs the end."""
    with OtlpReceiver() as receiver:
        fleet.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        run = await crashed_twice(fleet, "hi", "t")
        log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
        worker = await fleet.spawn("tests.support.agents.traced:app", log=log)
        os.close(log)
        assert (await run.result(30)).ok

        async def arrived() -> bool:
            return len([span for span in receiver.spans if span.name == "invoke_agent support"]) == 2

        await until(arrived)  # the worker ends its span after it has counted the usage
        assert await fleet.metric("runyard_model_requests_total", agent="support") == {worker.pid: 1}
    [logged] = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if "run_ended" in line]
    assert (logged["attempt"], logged["status"]) == (3, "completed") and logged["output_tokens"] > 0
    third = receiver.spans.named("invoke_agent support")[-1]
    lost = receiver.spans.named("invoke_agent support")[0]
    assert third.attributes["runyard.attempt"] == 3 and third.links == {lost.span_id: "takeover"}
    assert [child.attributes["gen_ai.operation.name"] for child in receiver.spans.children(third)] == ["chat"]
    assert receiver.spans.orphans() == []


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def alone(fleet: Fleet, handle: RunHandle) -> Run:
    """The run, once it is executed alone."""

    async def begun() -> bool:
        return ", alone" in await handle.explain()

    await until(begun)
    return await handle.run()


async def test_an_innocent_run_completes_alone(fleet: Fleet) -> None:
    """Poison: with all that a run can do, told in its stream; one child serves them all."""
    first = await crashed_twice(fleet, "say hello | tool add 1 2", "t1")
    second = await crashed_twice(fleet, "color?", "t2")
    third = await crashed_twice(fleet, "fail", "t3")
    worker = await fleet.start()
    result = await first.result(30)
    assert result.ok and result.text == "3" and (result.run.attempt, result.run.crash_count) == (3, 2)
    types = [event.type async for event in first.stream()]
    told = types[types.index("run.rewound") :]
    assert "message.delta" in told and "gap" not in told and told[-1] == "run.completed"
    assert (await second.result(20)).status is RunStatus.SUSPENDED
    assert (await third.result(20)).status is RunStatus.FAILED
    assert await fleet.metric("runyard_attempt_errors_total", code="agent_error") == {worker: 1}
    assert len(children(worker)) == 1
    await fleet.client.respond("t2", "blue")
    result = await second.result(20)
    assert result.ok and result.run.crash_count == 0  # the question was progress


async def test_death_alone_takes_nobody_down(fleet: Fleet) -> None:
    """Poison: dead, with the reason, visible and to be redriven; the worker and who waits behind live on."""
    poison = await crashed_twice(fleet, "crash always", "t1")
    behind = await fleet.client.enqueue("t1", "say behind")
    other = await crashed_twice(fleet, "say other", "t2")
    worker = await fleet.start()
    result = await poison.result(30)
    assert result.status is RunStatus.DEAD and result.run.crash_count == 3
    assert result.error is not None and result.error.code == "poison" and "SIGKILL" in result.error.message
    assert [event.type async for event in poison.stream()][-1] == "run.dead"
    assert (await behind.result(20)).ok and (await other.result(20)).ok
    assert fleet.processes[worker].returncode is None
    assert await fleet.metric("runyard_runs_finished_total", outcome="dead") == {worker: 1}
    assert (await fleet.client.redrive("t1", poison.id)).crash_count == 0


async def test_cancel_and_timeout_reach_the_child(fleet: Fleet) -> None:
    """R10, R11; also for a run that waits for its turn there."""
    first = await crashed_twice(fleet, "say one | sleep 60", "t1")
    await fleet.start()
    await alone(fleet, first)
    waiting = await crashed_twice(fleet, "sleep 60", "t2")
    late = await crashed_twice(fleet, "sleep 60", "t3", timeout=0.5)

    async def waits() -> bool:
        return "waiting there to run alone" in await waiting.explain()

    await until(waits)
    await waiting.cancel()
    assert (await waiting.result(30)).status is RunStatus.CANCELLED
    assert await first.status() is RunStatus.RUNNING
    await first.cancel()
    assert (await first.result(30)).status is RunStatus.CANCELLED
    result = await late.result(20)
    assert result.error is not None and result.error.code == "run_timeout"


async def test_sigterm_hands_over_what_is_alone(fleet: Fleet) -> None:
    """R21: neither the run in the child nor the one that waits for it has crashed."""
    script = "sleep 3 | say done"
    handles = [await crashed_twice(fleet, script, f"t{n}") for n in range(2)]
    leaver = await fleet.start(grace=0)
    await alone(fleet, handles[0])
    [child] = children(leaver)
    fleet.processes[leaver].terminate()
    assert await asyncio.wait_for(fleet.processes[leaver].wait(), 30) == 0
    await fleet.start()
    assert not Path(f"/proc/{child}").exists()
    for handle in handles:
        result = await handle.result(30)
        assert result.ok and (result.run.attempt, result.run.crash_count, result.run.error_count) == (4, 2, 0)


async def test_the_workers_death_is_the_childs_and_counts_once(fleet: Fleet) -> None:
    """Poison: the run that was alone is dead, the one that waited is not; the child does not outlive its worker."""
    alone_there = await crashed_twice(fleet, "spin 60", "t1")
    victim = await fleet.start()
    await alone(fleet, alone_there)
    waiting = await crashed_twice(fleet, "say done", "t2")

    async def waits() -> bool:
        return "waiting there to run alone" in await waiting.explain()

    await until(waits)
    [child] = children(victim)
    fleet.processes[victim].kill()
    await fleet.start()
    result = await alone_there.result(30)
    assert result.status is RunStatus.DEAD and result.run.crash_count == 3
    result = await waiting.result(30)
    assert result.ok and result.run.crash_count == 2

    async def gone() -> bool:
        return not Path(f"/proc/{child}").exists()

    await until(gone)


@pytest.mark.parametrize("how", ["blocked", "stopped"])
async def test_a_child_that_hangs_is_ended(fleet: Fleet, how: str) -> None:
    """Poison: user code that blocks the child's loop beyond the watchdog must not keep those who wait for it."""
    hanging = await crashed_twice(fleet, "spin 60" if how == "blocked" else "sleep 60", "t1")
    worker = await fleet.start(watchdog=2)
    await alone(fleet, hanging)
    if how == "stopped":
        os.kill(children(worker)[0], signal.SIGSTOP)
    waiting = await crashed_twice(fleet, "say done", "t2")
    result = await hanging.result(30)
    assert result.status is RunStatus.DEAD and result.error is not None and "no sign of life" in result.error.message
    [*_, last] = (await fleet.client.attempts("t1", result.run.run_id)).items
    assert last.error is not None and last.error.message == result.error.message
    if how == "blocked":
        assert "; its main loop was blocked at " in result.error.message and "scripted_agent.py:" in result.error.message
    assert (await waiting.result(30)).ok
