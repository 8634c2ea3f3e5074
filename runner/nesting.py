"""How deep a value may be nested that is stored or sent: one limit, wherever it comes from.

What copies, compares or encodes a value is recursive in one place or another. Of a value that was taken once, none of them may
run out of stack later.
"""

from __future__ import annotations

from typing import Any, Final

from .errors import InvalidInputError
from .models import HitlRequest

MAX_NESTING: Final = 100
"""Levels of objects and lists, the outermost included."""


def check_nesting(value: Any, name: str) -> None:
    """Raise InvalidInputError if ``value`` is nested more than MAX_NESTING levels deep."""
    waiting = [(value, 1)]
    while waiting:  # the deepest first: what contains itself ends at the limit as well
        part, level = waiting.pop()
        if not isinstance(part, dict | list | tuple):
            continue
        if level > MAX_NESTING:
            raise InvalidInputError(
                f"{name} is nested more than {MAX_NESTING} levels deep; make it flatter, or a string of its JSON",
                field=name,
                most=MAX_NESTING,
            )
        waiting += [(item, level + 1) for item in (part.values() if isinstance(part, dict) else part)]


def check_requests(*requests: HitlRequest) -> None:
    """Raise InvalidInputError if what one of ``requests`` holds is nested too deep."""
    for request in requests:
        for name in ("payload", "answer_schema", "on_deadline"):
            check_nesting(getattr(request, name), name)
