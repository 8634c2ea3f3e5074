"""The feed: what was committed on any thread, for webhooks, search indexes and other copies (semantics: E5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from ..exchange import Page
from ..models import FeedEntry
from .base import MOST, Calls, check_limit

LOOK: Final = 0.25
"""Seconds between two looks at a feed that has nothing further."""


class FeedCalls(Calls):
    """Read the feed, or follow it."""

    async def feed(self, cursor: str | None = None, *, limit: int = 100) -> Page[FeedEntry]:
        """The entries after ``cursor``, ``limit`` (1 to 1000) at most; from the oldest one kept without it.

        Store what you read and ``next`` together, and continue from there: each entry comes at least once, in an order in which
        no entry ever appears before one that was read. ``next`` is always set, also when there is nothing further yet. An entry
        shows once every transaction that was open when it was written has ended.

        Raises InvalidInputError, InvalidCursorError, and CursorExpiredError if entries in between were pruned.
        """
        check_limit(limit, MOST)
        return await self.backend.feed.read(cursor, limit=limit)

    async def follow_feed(self, cursor: str | None = None) -> AsyncGenerator[FeedEntry]:
        """The entries after ``cursor`` and those to come, without end. Each names the cursor that continues after it.

        Raises what :meth:`feed` raises, and BackendUnavailableError: follow again from the last entry's cursor.
        """
        while True:
            page = await self.feed(cursor, limit=MOST)
            for entry in page.items:
                yield entry
            cursor = page.next
            if not page.items:
                await asyncio.sleep(LOOK)
