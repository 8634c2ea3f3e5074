"""Errors of the OpenAI Agents SDK. This module decides whether another attempt may succeed after an error (R7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agents.exceptions import AgentsException
from openai import APIConnectionError, APIStatusError, OpenAIError

from ..execution.provider_outages import PASSING_STATUSES


@contextmanager
def judged() -> Iterator[None]:
    """Raise an error of the block. Set ``temporary = True`` on one that ends with time, and ``retryable = False`` on one that
    another attempt would raise again."""
    try:
        yield
    except (AgentsException, OpenAIError) as error:
        if worth_another(error):
            error.temporary = True  # type: ignore[union-attr]
        else:
            error.retryable = False  # type: ignore[union-attr]
        raise


def worth_another(error: BaseException) -> bool:
    """Return whether another attempt may succeed. Rate limits, failures of a provider and lost connections are temporary."""
    if isinstance(error, APIStatusError):
        spent = error.code == "insufficient_quota"
        return not spent and (error.status_code in PASSING_STATUSES or error.status_code >= 500)
    return isinstance(error, APIConnectionError)
