"""What keeps a worker's claims alive, and what stops it from doing so (design §6)."""

from __future__ import annotations

import pytest

from runner import liveness
from runner.liveness import CUT_OFF, Pulse


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(liveness.time, "monotonic", lambda: now[0])
    return now


def pulse_of(watchdog: float = 30.0) -> Pulse:
    def nothing(_: object) -> None: ...

    return Pulse(lambda worker_id: [], on_dead=nothing, on_standing=nothing, watchdog=watchdog)


def test_a_main_loop_that_is_silent_beyond_the_watchdog_is_as_good_as_stopped(clock: list[float]) -> None:
    """Design §7: user code may block the loop up to the watchdog's limit; then it counts as SIGSTOP."""
    pulse = pulse_of(watchdog=5)
    clock[0] += 4.9
    assert not pulse.silent
    clock[0] += 0.2
    assert pulse.silent
    pulse.turn()
    assert not pulse.silent


def test_without_a_heartbeat_locks_are_left_to_run_out(clock: list[float]) -> None:
    """A run that was taken over must not stay locked by the worker that had it."""
    pulse = pulse_of()
    clock[0] += CUT_OFF + 0.1
    assert pulse.cut_off
