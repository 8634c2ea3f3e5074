"""The feed: the committed changes of all threads, for webhooks, search indexes and other copies (E5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from ..domain.events import FeedEntry
from ..ports.queries import PageRequest
from ..ports.results import Page
from .arguments import MAX_PAGE_SIZE, Calls

FEED_POLL_SECONDS: Final = 0.25
"""Seconds before the next read of a feed if the last read found no entry."""


class FeedCalls(Calls):
    """Read the feed, or follow it."""

    async def feed(self, cursor: str | None = None, *, limit: int = 100) -> Page[FeedEntry]:
        """Return the entries after ``cursor``, at most ``limit`` (1 to 1000).

        Without a cursor, begin at the oldest stored entry.

        To read each entry at least once, store the entries and ``next`` together, and continue from ``next``. A new entry
        always has a place after the entries that were already read. ``next`` is always set, even if no more entries exist yet.
        An entry becomes visible when all transactions that were open at its write have ended.

        Raises InvalidInputError, InvalidCursorError, and CursorExpiredError if entries after the cursor were pruned.
        """
        return await self.backend.feed.read(PageRequest(limit=limit, cursor=cursor, most=MAX_PAGE_SIZE))

    async def follow_feed(self, cursor: str | None = None) -> AsyncGenerator[FeedEntry]:
        """Yield the entries after ``cursor``, then each new entry. The iteration does not end.

        Each entry has its own ``cursor``.

        Raises the errors of :meth:`feed`, and BackendUnavailableError. After an outage, follow again from the last entry's
        cursor.
        """
        while True:
            page = await self.feed(cursor, limit=MAX_PAGE_SIZE)
            for entry in page.items:
                yield entry
            cursor = page.next
            if not page.items:
                await asyncio.sleep(FEED_POLL_SECONDS)
