"""Ancestors of threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from runyard.domain.list_entries import entry, entry_bytes
from runyard.models import Thread
from runyard.ports.results import PAGE_BYTES, Page

MAX_DELETED: Final = 1000
"""Maximum number of deleted ancestors of a page."""


async def ancestors(parent: Callable[[int], Awaitable[tuple[int, Thread] | None]], key: int, limit: int) -> Page[Thread]:
    """Return the ancestors of a thread, the nearest first, without their large values.

    ``parent``: a function that takes the key of a thread, and returns the key and the thread of the parent. If the parent is
    deleted, the function returns the nearest ancestor with a message that the thread still shows. This ancestor may be the
    tombstone of a deleted thread. The function returns None if no ancestor is known. ``limit``: the maximum number of
    ancestors. The page also ends at about 4 MiB. The page's ``next`` is the id of the first ancestor of the next page. The next
    page is read by this id, so this ancestor must not be a deleted one. Deleted ancestors are therefore added to the page until
    the next ancestor is not deleted. The page may then have more than ``limit`` ancestors. After MAX_DELETED deleted ancestors,
    the page ends without a ``next``.
    """
    found: list[Thread] = []
    deleted, left = 0, PAGE_BYTES // 2
    while (above := await parent(key)) is not None:
        key, thread = above
        left -= entry_bytes(thread)
        if thread.deleted_at is None and (len(found) >= limit or (found and left < 0)):
            return Page(found, thread.thread_id)
        deleted += thread.deleted_at is not None
        if deleted > MAX_DELETED:
            break
        found.append(entry(thread))
    return Page(found)
