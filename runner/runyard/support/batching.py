"""Group commit: items that arrive during a call share the next call.

An item that arrives while no call runs is sent at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from ..errors import BackendUnavailableError, WorkerDeadError

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Groups the items of many ``await batcher(item)`` into few ``await call(items)``.

    ``call`` returns one value or exception per item, in order. An exception that ``call`` raises goes to every item of that
    call. Each call has at most ``limit`` items. At most ``in_flight`` calls run at once. While a call runs, the next call
    starts at the earliest ``patience`` seconds after the start of the last call. Items that arrive in this time share a call.
    A call that hangs therefore delays later items for a short time only. If the caller of an item is cancelled, the item is
    still sent.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        limit: int = 100,
        in_flight: int = 1,
        patience: float = 0.0,
    ) -> None:
        self._call = call
        self._limit = limit
        self._in_flight = in_flight
        self._patience = patience
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
        batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
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
    """Give the future its answer. Do nothing if the caller was cancelled."""
    if future.done():
        return
    if isinstance(answer, asyncio.CancelledError):
        future.cancel()
    elif isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)


async def each_its_own(
    call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]], items: Sequence[Item]
) -> Sequence[Answer | Exception]:
    """Return ``call(items)``. If the call fails, send each item alone, so that a bad item does not fail the other items.

    Use this function only for calls that may be repeated. BackendUnavailableError and WorkerDeadError of the first call are
    raised, because no single item causes them.
    """
    try:
        return await call(items)
    except (BackendUnavailableError, WorkerDeadError):
        raise
    except Exception as error:
        if len(items) == 1:
            return [error]
    answers: list[Answer | Exception] = []
    for item in items:
        answers += await each_its_own(call, [item])
    return answers
