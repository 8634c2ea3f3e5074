"""Errors of models. This module determines whether another attempt can succeed after an error (R7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic_ai.exceptions import (
    AgentRunError,
    FallbackExceptionGroup,
    ModelAPIError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    UserError,
)

from ..execution.provider_outages import passes


@contextmanager
def judged() -> Iterator[None]:
    """If the ``with`` block raises an error of pydantic-ai, mark the error and raise it again.

    If another attempt may succeed, the mark is ``temporary = True``. Otherwise the mark is ``retryable = False``.
    """
    try:
        yield
    except (AgentRunError, UserError, FallbackExceptionGroup) as error:
        if worth_another(error):
            error.temporary = True  # type: ignore[union-attr]
        else:
            error.retryable = False  # type: ignore[union-attr]
        raise


def worth_another(error: BaseException) -> bool:
    """Return whether another attempt may succeed.

    Rate limits, failures of the provider and lost connections are temporary. After any other error, another attempt would fail
    in the same way.
    """
    if isinstance(error, FallbackExceptionGroup):
        return any(worth_another(inner) for inner in error.exceptions)
    if isinstance(error, ModelHTTPError) and error.provider_retry_hint is not None:
        return error.provider_retry_hint
    if not isinstance(error, ModelAPIError) or isinstance(error, ModelRequestRejectedError | ModelQuotaExceededError):
        return False
    return not isinstance(error, ModelHTTPError) or passes(error.status_code)
