"""Bounded logging of a call that is repeated until it succeeds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ..errors import BackendUnavailableError

REPEAT_SECONDS: Final = 60.0
"""Minimum number of seconds between two lines about the same call."""


class FailureLog:
    """Logs the failures of one repeated call as ``event``.

    The first failure is logged immediately. Later failures are logged at most once in REPEAT_SECONDS. The field ``failures`` is
    the number of failures since the last line or success. After a logged failure, the first success is logged as
    ``<event>_resolved``.

    ``log``: a logger of structlog. ``clock``: a function that returns the seconds of a monotonic clock.
    """

    def __init__(self, log: Any, event: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._event, self._clock = log, event, clock
        self._next_at = float("-inf")
        self._failures = 0
        self._told = False

    def failed(self, error: BaseException, *, expected: bool = False, **fields: Any) -> None:
        """Count a failure. Log ``error``, unless the last line is too recent. ``expected``: log no traceback."""
        self._failures += 1
        now = self._clock()
        if now < self._next_at:
            return
        fields |= {"error": str(error), "failures": self._failures}
        if expected or isinstance(error, BackendUnavailableError):
            self._log.warning(self._event, **fields)
        else:
            self._log.error(self._event, **fields, exc_info=error)
        self._next_at, self._failures, self._told = now + REPEAT_SECONDS, 0, True

    def worked(self, **fields: Any) -> None:
        """Record a success."""
        if self._told:
            self._log.info(f"{self._event}_resolved", **fields)
        self._failures, self._told = 0, False
