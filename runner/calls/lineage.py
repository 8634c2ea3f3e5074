"""Ancestors, children, and what differs between two threads (semantics: F12)."""

from __future__ import annotations

from contextlib import aclosing

from ..entries import entry
from ..lineage import Lineage, Side, ThreadDiff, last_common
from ..models import Thread
from .base import MOST, check_limit
from .runs import RunCalls


class LineageCalls(RunCalls):
    """Questions about forks."""

    async def lineage(self, thread_id: str, *, limit: int = 100) -> Lineage:
        """The thread, its ancestors, and ``limit`` of its children at most, all as entries of a list: without large values.

        Raises ThreadNotFoundError.
        """
        thread = await self.thread(thread_id)
        children = await self.threads(parent_thread_id=thread_id, limit=limit)
        return Lineage(
            thread=entry(thread),
            ancestors=await self._ancestors(thread),
            children=children.items,
            next_children=children.next,
        )

    async def diff(self, thread_id: str, other_thread_id: str, *, limit: int = 200) -> ThreadDiff:
        """What the heads of two threads say after the last message that both show; ``limit`` (1 to 1000) messages per side at
        most, and about 4 MiB. Both are read from their ends back, so the cost does not depend on what they have in common.

        Raises ThreadNotFoundError, InvalidInputError.
        """
        check_limit(limit, MOST)
        ours, theirs = await self.thread(thread_id), await self.thread(other_thread_id)
        own = [ours.thread_id, *(thread.thread_id for thread in await self._ancestors(ours))]
        others = {theirs.thread_id, *(thread.thread_id for thread in await self._ancestors(theirs))}
        async with aclosing(self._backwards(thread_id, None)) as one, aclosing(self._backwards(other_thread_id, None)) as two:
            left, right = Side(one, limit), Side(two, limit)
            common = await last_common(left, right)
            return ThreadDiff(
                thread_id=thread_id,
                other_thread_id=other_thread_id,
                common_ancestor=next((id for id in own if id in others), None),
                common_message_id=common.id if common else None,
                ours=left.seen[::-1],
                theirs=right.seen[::-1],
                truncated=common is None and (left.full or right.full),
            )

    async def _ancestors(self, thread: Thread) -> list[Thread]:
        found: list[Thread] = []
        seen = {thread.thread_id}
        while (parent := thread.parent_thread_id) is not None and parent not in seen:
            above = await self.backend.threads.thread(parent)
            if above is None:
                break
            seen.add(parent)
            found.append(entry(above))
            thread = above
        return found
