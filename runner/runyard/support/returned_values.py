"""A warning about values that agents return. A run stores messages and ``ctx.result``, never the returned value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..domain.messages import Message

_name: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__  # a metaclass may have another `__name__`


def warn_of_returned(agent: str, value: object) -> None:
    """Log ``agent_returned_value``, with the type of ``value`` and not its content.

    None and messages are not logged. ``ctx.append`` returns messages, and these messages are stored.
    """
    messages = value if type(value) is list else [value]
    if value is not None and not all(type(each) is Message for each in messages):
        import structlog  # only here: programs that import runyard do not need it

        structlog.get_logger("runyard.executor").warning(
            "agent_returned_value",
            agent=agent,
            value_type=_name(type(value)),
            effect="the returned value is not stored",
            do="store an answer with `await ctx.append(Message.assistant(text))`, and a value for the caller as `ctx.result`",
        )
