"""Errors of the OpenAI Agents SDK. This module determines whether another attempt can succeed after an error (R7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agents.exceptions import AgentsException
from openai import OpenAIError

from ..execution.provider_outages import is_temporary


@contextmanager
def judged() -> Iterator[None]:
    """If the ``with`` block raises an error that is not temporary, set ``retryable = False`` on the error.

    Raise the error again.
    """
    try:
        yield
    except (AgentsException, OpenAIError) as error:
        if not is_temporary(error):
            error.retryable = False  # type: ignore[union-attr]
        raise
