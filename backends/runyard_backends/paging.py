"""Pages of a list. A cursor is the place of the last item that was returned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from runyard.ports.results import Page

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


def page_of(left: Sequence[T], limit: int, cursor: Callable[[T], str], size: Callable[[T], int], budget: int) -> Page[T]:
    """Return the next page. The page has at most ``limit`` items and ``budget`` bytes. An item of more than ``budget`` bytes is
    a page of its own.

    ``left``: the items after the place of the previous page's cursor, in order. ``cursor``: a function that returns the cursor
    of an item's place. The item at this place may leave the list before the next page is read. ``size``: a function that
    returns the bytes of an item.
    """
    part = within(left[:limit], size, budget)
    return Page(part, cursor(part[-1]) if len(part) < len(left) else None)


def within(items: Sequence[T], size: Callable[[T], int], budget: int) -> list[T]:
    """Return as many of the first ``items`` as ``budget`` bytes can hold, and at least one."""
    left = budget
    for n, item in enumerate(items):
        left -= size(item)
        if left < 0:
            return list(items[: max(n, 1)])
    return list(items)
