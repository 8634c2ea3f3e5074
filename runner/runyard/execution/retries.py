"""Retries of runs: the options that apply, the errors after which a run is retried, and the delay before the next attempt.

After a failed attempt, :func:`retry_delay` decides whether and when another attempt follows. ``RetryPolicy`` in
``domain/runs.py`` has the default numbers.
"""

from __future__ import annotations

import random
from typing import Final

from ..app import AgentSpec
from ..domain.runs import DEFAULT_OPTIONS, RetryPolicy, RunOptions
from ..errors import BackendUnavailableError, RunyardError
from .provider_outages import asked_pause, is_temporary

MAX_DELAY_SECONDS: Final = 10 * 365 * 86400.0
"""Maximum delay before an attempt, and maximum timeout of an attempt, in seconds.

Python's ``datetime`` cannot represent much later times.
"""

MAX_ASKED_DELAY_SECONDS: Final = 3600.0
"""Maximum delay that a provider may request by an error, in seconds."""

OUTAGE_ATTEMPTS: Final = 8
"""Number of temporary errors of a provider after which a run without ``max_attempts`` fails.

All errors since the last suspension count. With the default policy, the attempts take place within two minutes.
"""
UNSERVED_RETRY_SECONDS: Final = 5.0
"""Seconds until a run is submitted again, if the worker that claimed it does not serve the run's agent."""


def effective_options(options: RunOptions, spec: AgentSpec | None) -> RunOptions:
    """Return the run's options. An option with its default value is replaced by the option of the run's agent."""
    if spec is None:
        return options
    default = DEFAULT_OPTIONS
    if options is default and spec.timeout is None and spec.max_attempts is None and spec.retry is None:
        return options
    fields = {
        "timeout": options.timeout if options.timeout is not None else spec.timeout,
        "max_attempts": options.max_attempts if options.max_attempts is not None else spec.max_attempts,
        "retry": spec.retry if spec.retry is not None and options.retry == default.retry else options.retry,
    }
    return options.model_copy(update=fields)


def retry_delay(options: RunOptions, errors_before: int, error: BaseException) -> float | None:
    """Return the seconds until the next attempt of a run after ``error``, or None if the run fails (R11).

    ``options``: the result of :func:`effective_options`. If ``max_attempts`` is None, a temporary error of a provider fails the
    run after OUTAGE_ATTEMPTS attempts. Any other error then fails the run without another attempt. ``errors_before``: number of
    earlier errors since the last suspension.
    """
    policy = options.retry.of(error) if retryable(error) else None
    most = options.max_attempts or (OUTAGE_ATTEMPTS if is_temporary(error) else 1)
    if policy is None or errors_before + 1 >= most:
        return None
    return backoff(policy, errors_before, error)


def retryable(error: BaseException) -> bool:
    """Return whether another attempt may succeed.

    The result is the attribute ``retryable`` of the error. An error without this attribute is retryable if it is not from
    runyard, if its HTTP status is 500 or higher, or if it is a BackendUnavailableError.
    """
    declared = getattr(error, "retryable", None)
    if isinstance(declared, bool):
        return declared
    return not isinstance(error, RunyardError) or isinstance(error, BackendUnavailableError) or error.http_status >= 500


def backoff(policy: RetryPolicy, errors_before: int, error: BaseException | None = None) -> float:
    """Return the seconds until the next attempt (R11).

    ``errors_before``: number of earlier errors since the last suspension. ``error``: the error. If the provider requested a
    pause, the delay is at least this pause, but at most MAX_ASKED_DELAY_SECONDS.
    """
    delay = min(policy.initial * policy.factor ** min(errors_before, 64), policy.maximum, MAX_DELAY_SECONDS)
    asked = asked_pause(error) if error is not None else None
    least = min(asked, MAX_ASKED_DELAY_SECONDS) if asked is not None and asked > 0 else 0.0
    return max(least, delay * (1 + random.uniform(-policy.jitter, policy.jitter)))
