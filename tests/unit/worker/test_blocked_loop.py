"""The watch of a main loop that user code blocks (W1, R12)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from runyard.domain.size_limits import MAX_TRACEBACK_BYTES, MAX_TRACEBACK_LINES
from runyard.errors import BackendUnavailableError
from runyard.models import Message
from runyard.ports.commands import AcceptRequest
from runyard.ports.stores import Backend
from runyard.ports.workers import MAX_PLACE_CHARACTERS, BlockedLoop, WorkerInfo
from runyard.support.tracebacks import TracebackFilter
from runyard.worker import heartbeat
from runyard.worker.blocked_loop import BlockedLoopWatch
from runyard.worker.heartbeat import HeartbeatState
from runyard_backends.memory import MemoryBackend, MemoryWorld


class Bench:
    """A worker "w" whose main loop ``thread`` blocks, and a watch that looks when the test says so."""

    def __init__(self, thread: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(heartbeat.time, "monotonic", lambda: self.now)
        self.backend: Backend = MemoryBackend(MemoryWorld(), "")
        self.state = HeartbeatState(lambda _: [], on_dead=lambda _: None, on_reply=lambda _: None, watchdog=30.0)
        self.watch = BlockedLoopWatch(self.state, thread, None)
        self.thread = thread

    async def look(self, silence: float) -> list[Any]:
        """Look ``silence`` seconds after the loop last ran. Return the lines of the log."""
        self.now = self.state.turned + silence
        with capture_logs() as logs:
            await self.watch.look(self.backend)
        return logs

    def filtered(self, keep: TracebackFilter) -> None:
        self.watch = BlockedLoopWatch(self.state, self.thread, keep)

    async def reported(self) -> BlockedLoop | None:
        return next(each.blocked for each in await self.backend.workers.workers() if each.worker_id == "w")


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    began, go_on = threading.Event(), threading.Event()

    def user_code() -> None:
        began.set()
        go_on.wait()

    thread = threading.Thread(target=user_code)
    thread.start()
    began.wait()
    assert thread.ident is not None
    bench = Bench(thread.ident, monkeypatch)
    await bench.backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    bench.state.registered("w")
    yield bench
    go_on.set()
    thread.join()


async def test_a_block_is_logged_after_a_second_and_again_before_the_heartbeats_end(bench: Bench) -> None:
    looks = [0.9, 1.1, 1.4, 20.0, 28.9, 29.1, 29.4, 31.0]
    assert [len(await bench.look(silence)) for silence in looks] == [0, 1, 0, 0, 0, 1, 0, 0]
    blocked = await bench.reported()
    assert blocked is not None and blocked.stack is not None and "in user_code" in blocked.stack and blocked.seconds > 29


async def test_a_report_that_the_store_does_not_answer_is_repeated_and_logged_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, away = bench.backend.workers.report_block, True

    async def flaky(worker_id: str, blocked: BlockedLoop | None) -> None:
        if away:
            raise BackendUnavailableError("no answer")
        await report(worker_id, blocked)

    monkeypatch.setattr(bench.backend.workers, "report_block", flaky)
    with capture_logs() as logs:
        for silence in (1.1, 1.4):
            bench.now = bench.state.turned + silence
            with pytest.raises(BackendUnavailableError):
                await bench.watch.look(bench.backend)
    assert [line["event"] for line in logs] == ["main_loop_blocked"]
    away = False
    await bench.look(1.7)
    assert await bench.reported() is not None
    away = True
    with pytest.raises(BackendUnavailableError):
        await bench.look(0.1)
    away = False
    await bench.look(0.2)
    assert await bench.reported() is None, "explain would name a block of a loop that runs"


async def test_a_second_block_is_logged_again(bench: Bench) -> None:
    assert [len(await bench.look(silence)) for silence in (1.1, 0.1, 1.2)] == [1, 0, 1]


async def test_the_end_of_a_block_is_logged_with_its_length_and_its_place(bench: Bench) -> None:
    [begun] = await bench.look(12.0)
    bench.now += 0.3
    bench.state.turn()
    [ended] = await bench.look(0.1)
    assert (ended["event"], ended["blocked_seconds"]) == ("main_loop_resumed", 12.3)
    assert (ended["worker_id"], ended["code_line"]) == ("w", begun["code_line"]) and await bench.look(0.2) == []


async def test_the_stack_is_filtered_in_the_log_the_report_and_the_attempt_that_the_block_costs(bench: Bench) -> None:
    bench.filtered(lambda text: "[hidden]" if "user_code" in text else text)
    runs, workers = bench.backend.runs, bench.backend.workers
    accepted = await runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user("hi")))
    refs = [job.ref for job in accepted.effects.jobs]
    await runs.claim("w", refs)
    [line] = await bench.look(29.5)
    assert (line["event"], line["stack"]) == ("main_loop_blocked", "[hidden]")
    [worker] = await workers.workers()
    assert worker.heartbeat_at is not None and await workers.mark_dead("w", worker.heartbeat_at)
    await workers.register(WorkerInfo(worker_id="v", queues=["default"]))
    [claim] = await runs.claim("v", refs)
    assert claim.takeover
    lost = (await runs.attempts("t", "r")).items[0].error
    assert lost is not None and lost.code == "main_loop_blocked" and lost.traceback == "[hidden]"


async def test_a_filter_that_drops_the_stack_leaves_the_place(bench: Bench) -> None:
    bench.filtered(lambda _: None)
    await bench.look(1.1)
    blocked = await bench.reported()
    assert blocked is not None and blocked.stack is None and blocked.place.rpartition(":")[0] == __file__


@pytest.mark.parametrize("stack", ["ä\n" * 100_000, "x" * 100_000, "\0\ud800"])
def test_a_report_is_bounded_whoever_wrote_it(stack: str) -> None:
    blocked = BlockedLoop(1.0, "p" * 10_000 + ":7", f"{stack}end")
    assert len(blocked.place) == MAX_PLACE_CHARACTERS and blocked.place.endswith(":7")
    assert blocked.stack is not None and blocked.stack.endswith("end") and "\0" not in blocked.stack
    assert len(blocked.stack.encode()) <= MAX_TRACEBACK_BYTES and blocked.stack.count("\n") <= MAX_TRACEBACK_LINES
