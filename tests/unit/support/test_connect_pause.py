"""The pause before the next connection to a server that cannot be used."""

from __future__ import annotations

import pytest

from runyard.support.connect_pause import FIRST_PAUSE_SECONDS, FORGET_SECONDS, LONGEST_PAUSE_SECONDS, ConnectPause

JITTER = 1.5


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def pause(clock: list[float]) -> ConnectPause:
    return ConnectPause(lambda: clock[0])


def test_without_a_failure_nothing_waits(pause: ConnectPause) -> None:
    pause.check()


def test_the_reason_is_told_until_the_pause_is_over(pause: ConnectPause, clock: list[float]) -> None:
    pause.failed("a standby")
    with pytest.raises(ConnectionError, match="a standby"):
        pause.check()
    clock[0] += FIRST_PAUSE_SECONDS * JITTER
    pause.check()


def test_failures_of_one_moment_count_once(pause: ConnectPause, clock: list[float]) -> None:
    for _ in range(50):
        pause.failed("refused")
    clock[0] += FIRST_PAUSE_SECONDS * JITTER
    pause.check()


def test_pauses_grow_to_the_longest_and_are_forgotten(pause: ConnectPause, clock: list[float]) -> None:
    for _ in range(20):
        pause.failed("refused")
        clock[0] += LONGEST_PAUSE_SECONDS * JITTER
        pause.check()
    pause.failed("refused")
    clock[0] += LONGEST_PAUSE_SECONDS / 2 - 0.01
    with pytest.raises(ConnectionError):
        pause.check()
    clock[0] += FORGET_SECONDS + LONGEST_PAUSE_SECONDS
    pause.failed("refused")
    clock[0] += FIRST_PAUSE_SECONDS * JITTER
    pause.check()
