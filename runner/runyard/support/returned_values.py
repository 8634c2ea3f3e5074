"""A warning about values that agents return. A run stores messages and ``ctx.result``, never the returned value."""

from __future__ import annotations

import structlog

log = structlog.get_logger("runyard.executor")


def warn_of_returned(agent: str, value: object) -> None:
    """If ``value`` is not None, log ``agent_returned_value``. The line has the type of the value, and not its content."""
    if value is not None:
        log.warning(
            "agent_returned_value",
            agent=agent,
            value_type=type(value).__name__,
            effect="the returned value is not stored",
            do="store an answer with `await ctx.append(Message.assistant(text))`, and a value for the caller as `ctx.result`",
        )
