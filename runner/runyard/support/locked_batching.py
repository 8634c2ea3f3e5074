"""Group commit of items that need the row locks of their threads. A locked thread delays only the items of this thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from ..errors import LockedError
from .batching import Answer, Batcher, Item, answered, settle
from .store_retries import LOCKED_SECONDS, MAX_LOCKED_PAUSE_SECONDS, jittered

BATCH_WAIT_SECONDS: Final = 0.025
"""Seconds for which a call with the items of many threads waits for a row lock."""
WAIT_SECONDS: Final = 0.1
"""Seconds for which a call with the items of one thread waits for the row lock of this thread."""
SLOW_SECONDS: Final = 0.1
"""Seconds for which the items of attempts wait for a call in flight. After this time another call sends the items."""
WAITING_CALLS: Final = 2
"""Maximum number of calls of one batcher that wait for a row lock at the same time. Each of these calls holds a connection."""

AnItem = TypeVar("AnItem", contravariant=True)
AnAnswer = TypeVar("AnAnswer", covariant=True)


class LockingCall(Protocol[AnItem, AnAnswer]):
    """A call that locks the rows of the threads of its items. ``wait``: seconds to wait for a row lock.

    If the thread of an item stays locked, the answer is LockedError, and nothing of the item is stored.
    """

    async def __call__(self, items: Sequence[AnItem], *, wait: float) -> Sequence[AnAnswer | Exception]: ...


class _Kept(NamedTuple, Generic[Item, Answer]):
    item: Item
    future: asyncio.Future[Answer]
    until: float


class LockedBatcher(Batcher[Item, Answer]):
    """A batcher whose calls wait only briefly for a row lock.

    If a thread stays locked, its items are not stored, and are sent again in a call for this thread alone. Until these items
    are stored, other calls get no item of the thread. If ``in_flight`` is 1, the items of a thread keep their order.

    ``thread``: a function that returns the thread of an item. The other arguments are as in Batcher.
    """

    def __init__(
        self,
        call: LockingCall[Item, Answer],
        thread: Callable[[Item], Hashable],
        *,
        limit: int = 100,
        in_flight: int = 1,
        patience: float = 0.0,
        size: Callable[[Item], int] | None = None,
        most_bytes: int = 0,
    ) -> None:
        super().__init__(self._briefly, limit=limit, in_flight=in_flight, patience=patience, size=size, most_bytes=most_bytes)
        self._locking_call = call
        self._thread = thread
        self._kept: dict[Hashable, deque[_Kept[Item, Answer]]] = {}
        self._slots = asyncio.Semaphore(WAITING_CALLS)

    def __call__(self, item: Item) -> asyncio.Future[Answer]:
        """Send ``item`` and return the future of its answer. The answer is LockedError after LOCKED_SECONDS."""
        if self._thread(item) not in self._kept:
            return super().__call__(item)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._keep_for_later(item, future)
        return future

    def _briefly(self, items: Sequence[Item]) -> Awaitable[Sequence[Answer | Exception]]:
        return self._locking_call(items, wait=BATCH_WAIT_SECONDS)

    def _settle(self, batch: Sequence[tuple[Item, asyncio.Future[Answer]]], answers: Sequence[Answer | BaseException]) -> None:
        for (item, future), answer in zip(batch, answers, strict=True):
            if isinstance(answer, LockedError):
                self._keep_for_later(item, future)
            else:
                settle(future, answer)
        waiting, self._waiting = self._waiting, []
        for item, future in waiting:
            if self._thread(item) in self._kept:
                self._keep_for_later(item, future)
            else:
                self._waiting.append((item, future))

    def _keep_for_later(self, item: Item, future: asyncio.Future[Answer]) -> None:
        thread = self._thread(item)
        kept = _Kept(item, future, asyncio.get_running_loop().time() + LOCKED_SECONDS)
        if thread in self._kept:
            self._kept[thread].append(kept)
            return
        self._kept[thread] = deque([kept])
        self._keep(asyncio.create_task(self._until_unlocked(thread)))

    async def _until_unlocked(self, thread: Hashable) -> None:
        """Send the kept items of a thread again until every item has an answer."""
        queue = self._kept[thread]
        pause = 0.005
        try:
            while queue:
                first = [queue[n] for n in range(min(len(queue), self._limit))]
                sent = first[: self._fitting([kept.item for kept in first])]
                answers = await self._in_turn([kept.item for kept in sent], sent[0].until)
                for _ in sent:
                    queue.popleft()
                now = asyncio.get_running_loop().time()
                left = []
                for kept, answer in zip(sent, answers, strict=True):
                    if isinstance(answer, LockedError) and now < kept.until:
                        left.append(kept)
                    else:
                        settle(kept.future, answer)
                if left:
                    queue.extendleft(reversed(left))
                    await asyncio.sleep(jittered(pause))
                    pause = min(pause * 2, MAX_LOCKED_PAUSE_SECONDS)
        finally:
            del self._kept[thread]
            for kept in queue:
                kept.future.cancel()

    async def _in_turn(self, items: Sequence[Item], until: float) -> Sequence[Answer | Exception]:
        """Send the items as soon as fewer than WAITING_CALLS calls wait for row locks.

        After the time ``until``, the answers are LockedError.
        """
        try:
            async with asyncio.timeout_at(until):
                await self._slots.acquire()
        except TimeoutError:
            return [LockedError("too many other threads are locked; try again") for _ in items]
        try:
            return await answered(self._patiently, items)
        finally:
            self._slots.release()

    def _patiently(self, items: Sequence[Item]) -> Awaitable[Sequence[Answer | Exception]]:
        return self._locking_call(items, wait=WAIT_SECONDS)
