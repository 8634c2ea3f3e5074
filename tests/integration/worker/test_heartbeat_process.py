"""The process that sends a worker's heartbeats while native code holds the worker's interpreter (W1, W3, O4)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from runyard.client.run_handle import RunHandle
from runyard.domain.states import RunStatus
from runyard.ports.workers import WorkerInfo
from tests.support.fleet import SLACK, Fleet, until

ODD = "tests.support.agents.odd:app"


class Held:
    """A worker with a run that holds its interpreter from :meth:`begin` on, beside two neighbours, and a second worker."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self.folder = folder
        self.worker = 0
        self.runs: list[RunHandle] = []

    async def start(self, how: str, seconds: int, **settings: object) -> None:
        """Start the workers and the runs. ``how`` and ``seconds``: as the agent ``hold`` takes them."""
        client = self.fleet.client
        self.worker = await self.fleet.start(app=ODD, slots=3, **settings)
        self.runs = [await client.enqueue("held", f"{how} {seconds} {self.folder}", agent="hold")]
        self.runs += [await client.enqueue(f"t{n}", f"{self.folder}/end", agent="neighbour") for n in range(2)]
        for run in self.runs:
            assert await self.fleet.holder(run.thread_id, run.id, 0) == self.worker
        await self.fleet.start(app=ODD)

    async def begin(self) -> None:
        """Let the run hold the interpreter. Return when it does."""
        (self.folder / "go").touch()

        async def held() -> bool:
            return (self.folder / "held").exists()

        await until(held)

    async def stood_in(self) -> None:
        """Return when the heartbeats have gone on for longer than the death limit."""
        ends_at = time.monotonic() + 4

        async def later() -> bool:
            [row] = await self.rows()
            assert row.dead_at is None
            return time.monotonic() > ends_at and row.silent_for is not None and row.silent_for < 1

        await until(later)

    async def rows(self) -> list[WorkerInfo]:
        """What the store knows about the worker, under each of its ids."""
        return [worker for worker in await self.fleet.backend.workers.workers() if f"-{self.worker}-" in worker.worker_id]

    async def back(self) -> None:
        """Return when the worker, which was declared dead, is registered under another id."""

        async def again() -> bool:
            return [row.dead_at is None for row in await self.rows()] == [False, True]

        await until(again)

    async def taken_over(self) -> float:
        """Wait until another worker has claimed every run again. Return the seconds."""
        began = time.monotonic()

        async def claimed() -> bool:
            return all([(await run.run()).attempt == 2 for run in self.runs])

        await until(claimed, 30)
        return time.monotonic() - began

    async def results(self) -> list[tuple[bool, int, int]]:
        """Let the neighbours end. Return whether each run completed, its attempts and its crashes."""
        (self.folder / "end").touch()
        results = [await run.result(40) for run in self.runs]
        return [(result.ok, result.run.attempt, result.run.crash_count) for result in results]


@pytest.fixture
def held(fleet: Fleet, tmp_path: Path) -> Held:
    return Held(fleet, tmp_path)


def senders(pid: int) -> list[int]:
    """The heartbeat processes of a worker."""
    children = [
        int(child) for tasks in Path(f"/proc/{pid}/task").iterdir() for child in (tasks / "children").read_text().split()
    ]
    return [child for child in children if b"heartbeat_sender" in Path(f"/proc/{child}/cmdline").read_bytes()]


async def started(pid: int, before: int | None = None) -> int:
    """The heartbeat process of a worker, another one than ``before``, once it executes its program.

    The kernel may leave out a child of a list that it makes while another child ends, so one list decides."""
    found: list[int] = []

    async def other() -> bool:
        found[:] = senders(pid)
        return len(found) == 1 and found != [before]

    await until(other)
    return found[0]


async def gone(pid: int) -> None:
    async def no_process() -> bool:
        return not Path(f"/proc/{pid}").exists()

    await until(no_process)


@pytest.mark.parametrize("how", ["asleep", "busy"])
async def test_code_that_holds_the_interpreter_keeps_the_worker_s_runs(held: Held, how: str) -> None:
    """W3: no run of the worker is taken over, whether the code computes or waits. The lane goes on afterwards, although the
    lock in Redis has expired."""
    await held.start(how, 6, watchdog=90)
    held.runs.append(await held.fleet.client.enqueue("held", f"{held.folder}/end", agent="neighbour"))
    await held.begin()
    await held.stood_in()
    assert await held.results() == [(True, 1, 0)] * 4
    assert sum((await held.fleet.metric("runyard_workers_dead_total")).values()) == 0
    assert sum((await held.fleet.metric("runyard_rescues_total")).values()) == 0

    async def counted() -> bool:
        return (await held.fleet.metric("runyard_stand_in_heartbeats_total"))[held.worker] >= 3

    await until(counted)


async def test_code_that_holds_the_interpreter_for_too_long_loses_the_worker_s_runs(held: Held) -> None:
    """W3: beyond the watchdog's limit the worker is as if stopped: taken over, then refused, and back under another id."""
    await held.start("asleep", 10, watchdog=2)
    await held.begin()
    await held.taken_over()
    assert await held.results() == [(True, 2, 1)] * 3
    await held.back()


async def test_takeover_is_as_soon_as_without_the_process(held: Held) -> None:
    """O4, W1: a worker is killed while the process sends its heartbeats. None follows, and the process ends."""
    await held.start("asleep", 60)
    sender = await started(held.worker)
    await held.begin()
    await held.stood_in()
    held.fleet.processes[held.worker].kill()
    seconds = await held.taken_over()
    print(f"\ntaken over {seconds:.2f} s after the kill")
    assert seconds <= 6 + SLACK
    await gone(sender)
    assert await held.results() == [(True, 2, 1)] * 3


async def test_a_stopped_worker_gets_no_heartbeats(held: Held) -> None:
    """I2, W1: SIGSTOP while the process sends the heartbeats; afterwards the worker's writes are refused."""
    await held.start("asleep", 7)
    await held.begin()
    await held.stood_in()
    os.kill(held.worker, signal.SIGSTOP)
    seconds = await held.taken_over()
    print(f"\ntaken over {seconds:.2f} s after the stop")
    assert seconds <= 6 + SLACK
    os.kill(held.worker, signal.SIGCONT)
    assert await held.results() == [(True, 2, 1)] * 3
    await held.back()
    messages = (await held.runs[0].result()).messages
    assert [message.text for message in messages if message.role == "assistant"] == ["done"]


async def test_a_process_that_ends_is_started_again(held: Held) -> None:
    """W3: the worker goes on meanwhile, and its process stands in afterwards. At the worker's end there is none."""
    await held.start("asleep", 5)
    first = await started(held.worker)
    os.kill(first, signal.SIGKILL)
    second = await started(held.worker, before=first)
    await held.begin()
    await held.stood_in()
    assert await held.results() == [(True, 1, 0)] * 3
    held.fleet.processes[held.worker].terminate()
    assert await asyncio.wait_for(held.fleet.processes[held.worker].wait(), 30) == 0
    await gone(second)


async def test_without_the_process_the_runs_are_taken_over(held: Held) -> None:
    """W1, W3: RUNYARD_HEARTBEAT_PROCESS=false."""
    await held.start("asleep", 7, heartbeat_process=False)
    assert senders(held.worker) == []
    await held.begin()
    await held.taken_over()
    assert {(await run.run()).status for run in held.runs[1:]} == {RunStatus.RUNNING}
    assert await held.results() == [(True, 2, 1)] * 3
