"""Pages of the list of queues. A cursor names the last queue that was returned. The queue need not exist at the next call."""

from __future__ import annotations

from collections.abc import Sequence

from runyard.ports.queries import PageRequest
from runyard.ports.results import Page
from runyard.ports.workers import QueueInfo

from . import cursors


def names_after(page: PageRequest | None) -> tuple[str, int | None]:
    """Return the name after which ``page`` begins, and the number of queues to read. This number is the page's limit plus one.
    The number is None if ``page`` is None.

    Raises InvalidCursorError.
    """
    if page is None:
        return "", None
    return cursors.name(page.cursor) if page.cursor is not None else "", page.limit + 1


def page_of_names(found: Sequence[QueueInfo], page: PageRequest | None) -> Page[QueueInfo]:
    """Return the page of the queues ``found``. If ``found`` has more queues than the limit of ``page``, the page has a cursor
    for the rest."""
    if page is None or len(found) <= page.limit:
        return Page(list(found))
    items = list(found[: page.limit])
    return Page(items, cursors.encode(items[-1].queue))
