"""The pause before the next connection to a server that cannot be used.

A call that finds no usable connection opens a new connection. While a server is starting, or is a replica, no connection is
usable. Without a pause, repeated calls would then open too many connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from .store_retries import jittered

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 0.4
"""The first pause and the longest pause, in seconds. Each further failure doubles the pause. Jitter of ± 50 % is added."""
FORGET_SECONDS: Final = 5.0
"""Seconds without a failure, after which the next pause is as short as the first pause."""


class ConnectPause:
    """The pause of a pool after a connection failed or could not be used. The pool opens no connection during a pause. During a
    pause, :meth:`check` raises ConnectionError. ``clock``: a function that returns the seconds of a monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._length = 0.0
        self._over_at = float("-inf")
        self._reason = ""

    def check(self) -> None:
        """Raise ConnectionError during a pause. The message names the reason of the last failure."""
        if (left := self._over_at - self._clock()) > 0:
            raise ConnectionError(f"{self._reason}; the next attempt to connect is in {left:.2f} s")

    def failed(self, reason: str) -> None:
        """Begin a pause, because a connection failed or cannot be used.

        Do nothing during a pause, because several connections can fail at the same time.
        """
        now = self._clock()
        if now < self._over_at:
            return
        recent = now - self._over_at < FORGET_SECONDS
        self._length = min(2 * self._length, LONGEST_PAUSE_SECONDS) if recent else FIRST_PAUSE_SECONDS
        self._over_at = now + jittered(self._length)
        self._reason = reason
