"""Pages of a list: a cursor names the last item that was handed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from backends.cursors import decode, encode
from runner.errors import InvalidCursorError
from runner.exchange import Page

T = TypeVar("T")


def page(
    items: Sequence[T], key: Callable[[T], str], limit: int | None, cursor: str | None, size: Callable[[T], int], budget: int
) -> Page[T]:
    """The items after the one that ``cursor`` names: ``limit`` at most, and what ``budget`` bytes hold, but at least one."""
    start = 0
    if cursor is not None:
        last = decode(cursor)
        places = [i for i, item in enumerate(items) if key(item) == last]
        if not places:
            raise InvalidCursorError("not a cursor of this list", field="cursor")
        start = places[0] + 1
    end = len(items) if limit is None else start + limit
    part = within(items[start:end], size, budget)
    return Page(part, encode(key(part[-1])) if part and start + len(part) < len(items) else None)


def within(items: Sequence[T], size: Callable[[T], int], budget: int) -> list[T]:
    """The first of ``items`` that ``budget`` bytes hold together, but at least one."""
    left = budget
    for n, item in enumerate(items):
        left -= size(item)
        if left < 0:
            return list(items[: max(n, 1)])
    return list(items)
