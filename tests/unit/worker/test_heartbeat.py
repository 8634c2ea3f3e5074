"""What keeps a worker's claims alive, and what stops it from doing so (W3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from runyard.errors import LoginRefusedError
from runyard.ports.workers import HeartbeatReply, WorkerInfo
from runyard.worker import heartbeat, redis_outage
from runyard.worker.failure_detector import MIN_SPAN_SECONDS
from runyard.worker.heartbeat import CUT_OFF_SECONDS, LATE_SECONDS, HeartbeatState, alive_with
from runyard.worker.worker import TURN_SECONDS
from runyard_backends.memory import MemoryBackend, MemoryWorld


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    return now


def pulse_of(watchdog: float = 30.0) -> HeartbeatState:
    def nothing(_: object) -> None: ...

    return HeartbeatState(lambda worker_id: [], on_dead=nothing, on_reply=nothing, watchdog=watchdog)


def test_a_main_loop_that_is_silent_beyond_the_watchdog_is_as_good_as_stopped(clock: list[float]) -> None:
    """W3: user code may block the loop up to the watchdog's limit; then it counts as SIGSTOP."""
    heartbeat_state = pulse_of(watchdog=5)
    clock[0] += 4.9
    assert not heartbeat_state.silent
    clock[0] += 0.2
    assert heartbeat_state.silent
    heartbeat_state.turn()
    assert not heartbeat_state.silent


def test_without_a_heartbeat_locks_are_left_to_run_out(clock: list[float]) -> None:
    """A run that was taken over must not stay locked by the worker that had it."""
    heartbeat_state = pulse_of()
    clock[0] += CUT_OFF_SECONDS + 0.1
    assert heartbeat_state.cut_off


def test_worker_takes_no_jobs_before_it_may_be_declared_dead(clock: list[float]) -> None:
    """O4: a worker that waits for jobs in Redis would get its own runs, and lock their lanes for others."""
    heartbeat_state = pulse_of()
    clock[0] += LATE_SECONDS + 0.1
    assert heartbeat_state.late and not heartbeat_state.cut_off
    heartbeat_state.beat(HeartbeatReply())
    assert not heartbeat_state.late


def test_registration_is_a_heartbeat(clock: list[float]) -> None:
    """A worker that registers again after a cut takes jobs at once."""
    heartbeat_state = pulse_of()
    clock[0] += CUT_OFF_SECONDS + 0.1
    heartbeat_state.registered("w")
    assert not heartbeat_state.cut_off and not heartbeat_state.late


def test_worker_is_cut_off_before_another_may_declare_it_dead() -> None:
    """W1, W3: a lock that is not renewed after that has expired when the takeover is due (O4)."""
    assert LATE_SECONDS + TURN_SECONDS < CUT_OFF_SECONDS <= MIN_SPAN_SECONDS


async def test_an_outage_of_redis_is_reported_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """R12: ``explain`` reads the reports."""
    backend = MemoryBackend(MemoryWorld(), "")
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    heartbeat_state = pulse_of()
    heartbeat_state.registered("w")
    away = True

    async def ping() -> None:
        if away:
            raise LoginRefusedError("wrong password")

    monkeypatch.setattr(backend.scheduler, "ping", ping)
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(redis_outage, "LOOK_SECONDS", 0.01)

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - the state is in the store
                await asyncio.sleep(0.01)

    def reported() -> str | None:
        outage = backend.world.db.workers["w"].redis_outage
        return outage.reason if outage is not None else None

    beating = asyncio.create_task(alive_with(backend, heartbeat_state))
    await until(lambda: reported() == "wrong password")
    beating.cancel()
    away = False
    in_another_process = pulse_of()
    in_another_process.registered("w")
    beating = asyncio.create_task(alive_with(backend, in_another_process))
    await until(lambda: reported() is None)
    beating.cancel()
