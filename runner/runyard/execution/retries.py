"""Retries of runs: which errors are retried, after which delay, and by which options."""

from __future__ import annotations

import random
from typing import Final

from ..app import AgentSpec
from ..domain.runs import RetryPolicy, RunOptions
from ..errors import BackendUnavailableError, RunyardError

MAX_DELAY_SECONDS: Final = 10 * 365 * 86400.0
"""Longest delay before an attempt, and longest timeout of one, in seconds: a later time may have no date."""

MAX_ASKED_DELAY_SECONDS: Final = 3600.0
"""Longest delay that an error may ask for, in seconds."""

UNSERVED_RETRY_SECONDS: Final = 5.0
"""Seconds after which a run is submitted again whose agent this worker does not have."""


def effective_options(options: RunOptions, spec: AgentSpec | None) -> RunOptions:
    """Return the run's options, with the options of its agent in place of defaults."""
    if spec is None:
        return options
    default = RunOptions()
    fields = {
        "timeout": options.timeout if options.timeout is not None else spec.timeout,
        "max_attempts": options.max_attempts if options.max_attempts != default.max_attempts else spec.max_attempts,
        "retry": spec.retry if spec.retry is not None and options.retry == default.retry else options.retry,
    }
    return options.model_copy(update=fields)


def retryable(error: BaseException) -> bool:
    """Return whether another attempt may succeed: False for refusals by runyard and errors with ``retryable = False``."""
    declared = getattr(error, "retryable", None)
    if isinstance(declared, bool):
        return declared
    return not isinstance(error, RunyardError) or isinstance(error, BackendUnavailableError) or error.http_status >= 500


def backoff(policy: RetryPolicy, errors_before: int, error: BaseException | None = None) -> float:
    """Return the seconds until the next attempt (R11), at least the ``retry_after`` (seconds) of ``error``, if it has one."""
    delay = min(policy.initial * policy.factor ** min(errors_before, 64), policy.maximum, MAX_DELAY_SECONDS)
    asked = getattr(error, "retry_after", None)
    least = min(asked, MAX_ASKED_DELAY_SECONDS) if isinstance(asked, int | float) and asked > 0 else 0.0
    return max(least, delay * (1 + random.uniform(-policy.jitter, policy.jitter)))
