"""Pages of a list. A cursor names the last item that was returned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from runyard.errors import InvalidCursorError
from runyard.ports.queries import PageRequest
from runyard.ports.results import Page

from .cursors import decode, encode

T = TypeVar("T")


async def items_of(read: Callable[[str | None], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    """Yield the items of all pages. ``read``: a function that returns the page after a cursor, or the first page for None."""
    cursor: str | None = None
    while True:
        page = await read(cursor)
        for item in page.items:
            yield item
        if (cursor := page.next) is None:
            return


def page_of(items: Sequence[T], asked: PageRequest, key: Callable[[T], str], size: Callable[[T], int], budget: int) -> Page[T]:
    """Return the page ``asked`` of ``items``. The page has at most ``asked.limit`` items and ``budget`` bytes. An item of more
    than ``budget`` bytes is a page of its own.

    ``key``: a function that returns the name of an item for a cursor. ``size``: a function that returns the bytes of an item.
    Raises InvalidCursorError if the cursor names no item.
    """
    start = 0
    if asked.cursor is not None:
        last = decode(asked.cursor)
        places = [i for i, item in enumerate(items) if key(item) == last]
        if not places:
            raise InvalidCursorError("not a cursor of this list", field="cursor")
        start = places[0] + 1
    part = within(items[start : start + asked.limit], size, budget)
    return Page(part, encode(key(part[-1])) if part and start + len(part) < len(items) else None)


def within(items: Sequence[T], size: Callable[[T], int], budget: int) -> list[T]:
    """Return as many of the first ``items`` as ``budget`` bytes can hold, and at least one."""
    left = budget
    for n, item in enumerate(items):
        left -= size(item)
        if left < 0:
            return list(items[: max(n, 1)])
    return list(items)
