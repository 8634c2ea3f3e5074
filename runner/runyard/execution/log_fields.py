"""The fields that every log line has during an attempt. The lines of the agent and of its tools also have these fields.

structlog adds these fields to its own lines. The lines of :mod:`logging` get them from
:func:`runyard.support.logging.configure`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from ..domain.runs import Run


def of_attempt(run: Run, fence: int) -> AbstractContextManager[None]:
    """Add ``thread_id``, ``run_id``, ``attempt`` and ``fence`` to the lines of the block."""
    from structlog.contextvars import bound_contextvars  # this import takes as long as the other imports of a client together

    return bound_contextvars(thread_id=run.thread_id, run_id=run.run_id, attempt=run.attempt, fence=fence)


def of_step(key: str) -> AbstractContextManager[None]:
    """Add ``step`` to the lines of the block: the key of the step, or ``tool:`` and the id of the tool call."""
    from structlog.contextvars import bound_contextvars

    return bound_contextvars(step=key)
