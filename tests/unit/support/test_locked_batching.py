"""Group commit of items whose threads may be locked (Q4)."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from runyard.errors import LockedError
from runyard.support import locked_batching
from runyard.support.locked_batching import WAIT_SECONDS, WAITING_CALLS, LockedBatcher

Item = tuple[str, int]


class Threads:
    """Keeps the items of threads that are not locked. A call waits for the lock first."""

    def __init__(self, *locked: str) -> None:
        self.locked = set(locked)
        self.unlocked = asyncio.Event()
        self.kept: list[Item] = []
        self.waiting = self.most_waiting = 0

    async def __call__(self, items: Sequence[Item], *, wait: float) -> list[Item | Exception]:
        if self.locked.intersection(thread for thread, _ in items):
            long = wait == WAIT_SECONDS
            self.waiting += long
            self.most_waiting = max(self.most_waiting, self.waiting)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self.unlocked.wait()
            self.waiting -= long
        await asyncio.sleep(0)
        answers: list[Item | Exception] = []
        for item in items:
            if item[0] in self.locked:
                answers.append(LockedError("locked"))
            else:
                self.kept.append(item)
                answers.append(item)
        return answers

    def unlock(self) -> None:
        self.locked.clear()
        self.unlocked.set()


def batcher_of(threads: Threads) -> LockedBatcher[Item, Item]:
    return LockedBatcher(threads, lambda item: item[0])


async def test_items_of_a_locked_thread_keep_their_order_and_delay_no_others() -> None:
    threads = Threads("a", "b", "c", "d")
    batcher = batcher_of(threads)
    blocked = [batcher((thread, n)) for n in range(3) for thread in "abcd"]
    async with asyncio.timeout(5):
        for n in range(3):
            await batcher(("free", n))
            blocked.append(batcher(("a", 3 + n)))
        while threads.most_waiting < WAITING_CALLS:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert not any(future.done() for future in blocked)
    threads.unlock()
    async with asyncio.timeout(5):
        await asyncio.gather(*blocked)
    assert [n for thread, n in threads.kept if thread == "a"] == [0, 1, 2, 3, 4, 5]
    assert [n for thread, n in threads.kept if thread == "b"] == [0, 1, 2]
    assert threads.most_waiting == WAITING_CALLS


async def test_items_that_wait_for_the_next_call_follow_the_refused_ones() -> None:
    class Brief(Threads):
        async def __call__(self, items: Sequence[Item], *, wait: float) -> list[Item | Exception]:
            answers = await super().__call__(items, wait=wait)
            self.unlock()
            return answers

    threads = Brief("a")
    batcher = batcher_of(threads)
    sent = [batcher(("a", 0))]
    await asyncio.sleep(0)  # the first call has begun
    sent += [batcher(("a", 1)), batcher(("free", 1))]
    async with asyncio.timeout(5):
        await asyncio.gather(*sent)
    assert [n for thread, n in threads.kept if thread == "a"] == [0, 1]


async def test_the_wait_for_a_place_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_batching, "LOCKED_SECONDS", 0.05)
    monkeypatch.setattr(locked_batching, "WAIT_SECONDS", 1.0)
    threads = Threads(*(f"t{n}" for n in range(8)))
    batcher = batcher_of(threads)
    async with asyncio.timeout(3):
        answers = await asyncio.gather(*(batcher((f"t{n}", 0)) for n in range(8)), return_exceptions=True)
    assert all(isinstance(answer, LockedError) for answer in answers)


async def test_an_item_whose_thread_stays_locked_is_refused_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_batching, "LOCKED_SECONDS", 0.02)
    threads = Threads("a")
    batcher = batcher_of(threads)
    async with asyncio.timeout(5):
        with pytest.raises(LockedError):
            await batcher(("a", 1))
        threads.unlock()
        assert await batcher(("a", 2)) == ("a", 2)
        await batcher.drained()
    assert threads.kept == [("a", 2)]


async def test_another_error_of_a_waiting_call_goes_to_its_items() -> None:
    class Broken(Threads):
        async def __call__(self, items: Sequence[Item], *, wait: float) -> list[Item | Exception]:
            if wait == WAIT_SECONDS:
                raise ConnectionError("gone")
            return await super().__call__(items, wait=wait)

    batcher = batcher_of(Broken("a"))
    answers = await asyncio.gather(batcher(("a", 1)), batcher(("a", 2)), batcher(("b", 1)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ConnectionError, ConnectionError, tuple]


async def test_items_of_an_unlocked_thread_are_sent_in_calls_of_most_bytes() -> None:
    threads = Threads("a")
    sizes: list[int] = []

    async def call(items: Sequence[Item], *, wait: float) -> list[Item | Exception]:
        sizes.append(sum(size for _, size in items))
        return await threads(items, wait=wait)

    batcher = LockedBatcher(call, lambda item: item[0], size=lambda item: item[1], most_bytes=10)
    sent = [batcher(("a", size)) for size in (4, 6, 5, 20, 1)]
    await asyncio.sleep(0.05)
    threads.unlock()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*sent) == threads.kept
    assert [size for _, size in threads.kept] == [4, 6, 5, 20, 1] and max(sizes) == 20
