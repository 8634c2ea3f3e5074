"""Lineage: ancestors and children of a thread, and the difference of two threads (F12)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime

from ..domain.list_entries import entry, message_bytes
from ..domain.messages import Message
from ..domain.threads import ChildRuns, Lineage, ThreadDiff
from ..domain.validation import check_limit
from ..errors import CapabilityMissingError
from ..events.run_outcome import path_to_root
from ..ports.results import PAGE_BYTES
from .arguments import MAX_PAGE_SIZE
from .runs import RunCalls


class LineageCalls(RunCalls):
    """Read the lineage and the differences of threads."""

    async def lineage(self, thread_id: str, *, limit: int = 100) -> Lineage:
        """Return the thread, at most ``limit`` ancestors and at most ``limit`` children. Large values are left out.

        The list of ancestors also ends at about 4 MiB. The next page must begin at a thread that exists. If some ancestors are
        deleted, the list may therefore have more than ``limit`` ancestors. The lineage ends after a thousand deleted ancestors.
        To read further ancestors, call this method with the thread id ``next_ancestor``. To read further children, call
        :meth:`threads` with this thread as the parent and the cursor ``next_children``.

        The ``child_runs`` of the result are the result of :meth:`child_runs` with the same limit.

        Raises ThreadNotFoundError, InvalidInputError.
        """
        thread = await self.thread(thread_id)
        children = await self.threads(parent_thread_id=thread_id, limit=limit)
        ancestors = await self.backend.threads.ancestors(thread_id, limit)
        return Lineage(
            thread=entry(thread),
            ancestors=ancestors.items,
            next_ancestor=ancestors.next,
            children=children.items,
            next_children=children.next,
            child_runs=await self.child_runs(thread_id, limit=limit),
        )

    async def child_runs(self, thread_id: str, *, limit: int = 100) -> ChildRuns:
        """Return at most ``limit`` children of the thread's runs, then the children of these children, level by level (K3).

        Children are at most ten levels deep. A child whose content was deleted is left out together with its children. On a
        backend without workers the result is empty. Raises ThreadNotFoundError, InvalidInputError.
        """
        check_limit(limit, MAX_PAGE_SIZE)
        try:
            return await self.backend.timelines.children(thread_id, limit)
        except CapabilityMissingError:
            return ChildRuns()

    async def diff(self, thread_id: str, other_thread_id: str, *, limit: int = 200) -> ThreadDiff:
        """Compare the heads of two threads.

        Return the messages of each thread after the last message that the two heads share.

        ``limit``: the maximum number of returned messages of each thread, 1 to 1000. The list of each thread's messages also
        ends at about 4 MiB. Both threads are read backwards from the newest message. The cost therefore does not depend on the
        number of shared messages.

        Raises ThreadNotFoundError, InvalidInputError.
        """
        check_limit(limit, MAX_PAGE_SIZE)
        own, others = [await self._line(id) for id in (thread_id, other_thread_id)]
        threads = self.backend.threads
        async with (
            aclosing(path_to_root(threads, thread_id, None)) as one,
            aclosing(path_to_root(threads, other_thread_id, None)) as two,
        ):
            left, right = Side(one, limit), Side(two, limit)
            common = await last_common(left, right)
            return ThreadDiff(
                thread_id=thread_id,
                other_thread_id=other_thread_id,
                common_ancestor=next((id for id, made in own if (id, made) in others), None),
                common_message_id=common.id if common else None,
                ours=left.seen[::-1],
                theirs=right.seen[::-1],
                truncated=common is None and (left.full or right.full),
            )

    async def _line(self, thread_id: str) -> list[tuple[str, datetime]]:
        """Return the ids and creation times of the thread and its ancestors, the nearest first.

        The creation time distinguishes a thread from a deleted thread with the same id.
        """
        line = [await self.thread(thread_id), *(await self.backend.threads.ancestors(thread_id, MAX_PAGE_SIZE)).items]
        return [(thread.thread_id, thread.created_at) for thread in line]


@dataclass
class Side:
    """The messages of one of the two compared threads, read backwards from the newest.

    ``seen``: the messages that the other thread does not have. ``most``: the maximum number of these messages. ``left``: the
    number of bytes by which ``seen`` may still grow. ``at``: the current message, or None before the first step and at the
    end.
    """

    path: AsyncIterator[Message]
    most: int
    seen: list[Message] = field(default_factory=list)
    at: Message | None = None
    left: int = PAGE_BYTES // 2

    async def step(self) -> None:
        """Move to the message before the current one."""
        if self.at is not None:
            self.seen.append(self.at)
            self.left -= message_bytes(self.at)
        self.at = await anext(self.path, None)

    @property
    def full(self) -> bool:
        return self.at is not None and (len(self.seen) >= self.most or self.left <= 0)


async def last_common(ours: Side, theirs: Side) -> Message | None:
    """Return the last message that both threads have, or None.

    A shared message has the same ``seq`` in both threads. A message that is not inherited has a higher ``seq`` than the
    inherited messages of its thread.
    """
    await ours.step()
    await theirs.step()
    while ours.at is not None and theirs.at is not None and not (ours.full or theirs.full):
        if ours.at.id == theirs.at.id:
            return ours.at
        mine, other = ours.at.seq or 0, theirs.at.seq or 0
        if mine >= other:
            await ours.step()
        if other >= mine:
            await theirs.step()
    while theirs.at is None and ours.at is not None and not ours.full:
        await ours.step()
    while ours.at is None and theirs.at is not None and not theirs.full:
        await theirs.step()
    return None
