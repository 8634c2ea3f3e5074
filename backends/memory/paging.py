"""Pages of a list: a cursor names the last item that was handed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from backends.cursors import decode, encode
from runner.errors import InvalidCursorError
from runner.exchange import Page

T = TypeVar("T")


def page(items: Sequence[T], key: Callable[[T], str], limit: int | None, cursor: str | None) -> Page[T]:
    """The items after the one that ``cursor`` names, ``limit`` at most."""
    start = 0
    if cursor is not None:
        last = decode(cursor)
        places = [i for i, item in enumerate(items) if key(item) == last]
        if not places:
            raise InvalidCursorError("not a cursor of this list", field="cursor")
        start = places[0] + 1
    end = len(items) if limit is None else start + limit
    part = list(items[start:end])
    return Page(part, encode(key(part[-1])) if part and end < len(items) else None)
