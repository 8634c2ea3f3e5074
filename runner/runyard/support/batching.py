"""Group commit: items that arrive during a call share the next call.

An item that arrives while no call runs is sent immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from ..errors import BackendUnavailableError, LockedError, WorkerDeadError

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Groups the items of many ``await batcher(item)`` into few ``await call(items)``.

    ``call`` returns one value or exception per item, in order. An exception that ``call`` raises goes to every item of that
    call. Each call has at most ``limit`` items. At most ``in_flight`` calls run at the same time. While a call runs, the next
    call does not start before ``patience`` seconds have passed since the start of the last call. Items that arrive in this time
    share a call. A call that hangs therefore delays later items for a short time only. If the caller of an item is cancelled,
    the item is still sent. ``size``: a function that returns the bytes of an item. The items of a call have at most
    ``most_bytes`` bytes together, or the call has one item.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        limit: int = 100,
        in_flight: int = 1,
        patience: float = 0.0,
        size: Callable[[Item], int] | None = None,
        most_bytes: int = 0,
    ) -> None:
        self._call = call
        self._limit = limit
        self._in_flight = in_flight
        self._patience = patience
        self._size = size
        self._most_bytes = most_bytes
        self._sent_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._running = 0
        self._calls: set[asyncio.Task[None]] = set()

    def __call__(self, item: Item) -> asyncio.Future[Answer]:
        """Send ``item`` and return the future of its answer."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._timer is None:
            self._send()
        return future

    def _send(self) -> None:
        """Start a call if a call may start now. If a call may start later, start a timer."""
        self._timer = None
        if not self._waiting or self._running >= self._in_flight:
            return
        loop = asyncio.get_running_loop()
        if self._running and loop.time() < self._sent_at + self._patience:
            self._timer = loop.call_at(self._sent_at + self._patience, self._send)
            return
        self._running += 1
        self._sent_at = loop.time()
        self._keep(asyncio.create_task(self._run()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def drained(self) -> None:
        """Wait until every sent item has its answer."""
        while self._calls:
            await asyncio.wait(self._calls)

    async def _run(self) -> None:
        count = self._fitting([item for item, _ in self._waiting[: self._limit]])
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        if not batch:  # another call in the same iteration of the loop took the items
            self._running -= 1
            return
        try:
            answers = await answered(self._call, [item for item, _ in batch])
        except BaseException as error:
            self._running -= 1
            self._settle(batch, [error] * len(batch))
            raise
        self._running -= 1
        self._settle(batch, answers)
        if self._timer is not None:
            self._timer.cancel()
        self._send()

    def _fitting(self, items: Sequence[Item]) -> int:
        """Return the number of items that fit into one call, counted from the first item. ``items``: at most ``limit``
        items."""
        if self._size is None:
            return len(items)
        total = 0
        for count, item in enumerate(items):
            total += self._size(item)
            if count and total > self._most_bytes:
                return count
        return len(items)

    def _settle(self, batch: Sequence[tuple[Item, asyncio.Future[Answer]]], answers: Sequence[Answer | BaseException]) -> None:
        for (_, future), answer in zip(batch, answers, strict=True):
            settle(future, answer)


async def answered(
    call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]], items: Sequence[Item]
) -> Sequence[Answer | Exception]:
    """Return ``call(items)``. If the call raises an error, return this error for each item."""
    try:
        answers = await call(items)
        if len(answers) != len(items):
            raise RuntimeError(f"a call with {len(items)} items returned {len(answers)} values, not one for each item")
    except Exception as error:
        return [error] * len(items)
    return answers


def settle(future: asyncio.Future[Answer], answer: Answer | BaseException) -> None:
    """Give the future its answer. Do nothing if the caller that waits for the future was cancelled."""
    if future.done():
        return
    if isinstance(answer, asyncio.CancelledError):
        future.cancel()
    elif isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)


async def each_its_own(
    call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]],
    items: Sequence[Item],
    thread: Callable[[Item], Hashable] | None = None,
) -> Sequence[Answer | Exception]:
    """Return ``call(items)``. If the call fails, send each half of the items in a separate call. A bad item then does not fail
    the others.

    For one bad item among n, this sends at most 2 log2(n) + 1 calls. Halves are sent one after the other, so that items keep
    their order. Use this function only for calls that may be repeated.

    No single item causes BackendUnavailableError or WorkerDeadError. After such an error nothing more is sent. If no item has
    an answer yet, the error is raised. If some items have an answer, the error becomes the answer of all other items.

    ``thread``: a function that returns the thread of an item. If ``thread`` is given, the items are also split after
    LockedError. The items of one thread then stay in one call. If the thread stays locked, all of them get the same answer. If
    ``thread`` is None, LockedError is handled like BackendUnavailableError.
    """
    answers: dict[int, Answer | Exception] = {}
    parts = [list(range(len(items)))]
    while parts:
        part = parts.pop()
        try:
            found = await call([items[n] for n in part])
        except (BackendUnavailableError, WorkerDeadError, LockedError) as error:
            if thread is None or not isinstance(error, LockedError):
                if not answers:
                    raise
                return [answers.get(n, error) for n in range(len(items))]
            threads = list(dict.fromkeys(thread(items[n]) for n in part))
            first = set(threads[: len(threads) // 2])
            halves = [n for n in part if thread(items[n]) in first], [n for n in part if thread(items[n]) not in first]
            found = [error] * len(part)
        except Exception as error:
            halves = part[: len(part) // 2], part[len(part) // 2 :]
            found = [error] * len(part)
        else:
            halves = [], []
        if halves[0]:
            parts += reversed(halves)
        else:
            answers.update(zip(part, found, strict=True))
    return [answers[n] for n in range(len(items))]
