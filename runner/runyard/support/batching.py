"""Group commit: items that arrive during a call share the next call.

There is no timer. An item that arrives while no call is in flight is sent at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from ..errors import BackendUnavailableError, WorkerDeadError

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Turns many ``await batcher(item)`` into few ``await call(items)``.

    ``call`` returns one value or exception per item, in order. An exception that ``call`` raises goes to every item of that
    call. At most ``in_flight`` calls run at once, each with at most ``limit`` items. An item whose caller was cancelled is
    still sent.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        limit: int = 100,
        in_flight: int = 1,
    ) -> None:
        self._call = call
        self._limit = limit
        self._in_flight = in_flight
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._running = 0
        self._calls: set[asyncio.Task[None]] = set()

    def __call__(self, item: Item) -> asyncio.Future[Answer]:
        """Send ``item`` and return the future of its answer."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running < self._in_flight:
            self._running += 1
            task = asyncio.create_task(self._run())
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        return future

    async def drained(self) -> None:
        """Return when every item that was sent has its answer."""
        while self._calls:
            await asyncio.wait(self._calls)

    async def _run(self) -> None:
        # The step that finds no waiting item also decrements _running, so that a later item starts a call of its own.
        try:
            await self._send_all()
        finally:
            self._running -= 1

    async def _send_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
            answers: Sequence[Answer | BaseException]
            try:
                answers = await self._call([item for item, _ in batch])
                if len(answers) != len(batch):
                    raise RuntimeError(f"a call with {len(batch)} items returned {len(answers)} values, not one each")
            except BaseException as error:
                answers = [error] * len(batch)
                if not isinstance(error, Exception):
                    self._settle(batch, answers)
                    raise
            self._settle(batch, answers)

    @staticmethod
    def _settle(batch: Sequence[tuple[Item, asyncio.Future[Answer]]], answers: Sequence[Answer | BaseException]) -> None:
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, asyncio.CancelledError):
                future.cancel()
            elif isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)


async def each_its_own(
    call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | Exception]]], items: Sequence[Item]
) -> Sequence[Answer | Exception]:
    """Return ``call(items)``. If the call fails, send each item alone, so that one bad item does not fail the others.

    Use this function for calls that may be repeated. BackendUnavailableError and WorkerDeadError of the first call are raised,
    because no single item causes them.
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
