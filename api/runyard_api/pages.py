"""Lists of several pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from runyard.ports.results import Page

T = TypeVar("T")


async def gather(ask: Callable[[int, str | None], Awaitable[Page[T]]], limit: int, cursor: str | None = None) -> Page[T]:
    """Return up to ``limit`` items as one page. ``ask``: a function that returns a page for a limit and a cursor.

    A page can be short or empty even if it is not the last one. Several pages are then read.
    """
    found: list[T] = []
    while True:
        page = await ask(limit - len(found), cursor)
        found += page.items
        cursor = page.next
        if cursor is None or len(found) >= limit:
            return Page(found, cursor)
