"""Group commit of calls (Q2)."""

import asyncio
from collections.abc import Sequence

import pytest

from runyard.errors import BackendUnavailableError
from runyard.support.batching import Batcher, each_its_own


class Store:
    """Answers each item with its double, one call at a time when told to."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, items: Sequence[int]) -> list[int | Exception]:
        self.calls.append(list(items))
        await self.open.wait()
        return [ValueError(str(item)) if item < 0 else item * 2 for item in items]


async def test_items_that_arrive_while_a_call_is_in_flight_share_the_next() -> None:
    store = Store()
    batcher = Batcher(store)
    store.open.clear()
    first = batcher(1)
    await asyncio.sleep(0)
    others = [batcher(n) for n in (2, 3, 4)]
    store.open.set()
    assert await asyncio.gather(first, *others) == [2, 4, 6, 8]
    assert store.calls == [[1], [2, 3, 4]]


async def test_caller_may_ask_again_as_soon_as_it_is_answered() -> None:
    batcher = Batcher(Store())
    async with asyncio.timeout(5):
        assert [await batcher(n) for n in range(3)] == [0, 2, 4]


async def test_a_call_holds_at_most_limit_items() -> None:
    store = Store()
    batcher = Batcher(store, limit=2)
    assert await asyncio.gather(*(batcher(n) for n in range(5))) == [0, 2, 4, 6, 8]
    assert store.calls == [[0, 1], [2, 3], [4]]


async def test_an_item_gets_its_own_error() -> None:
    batcher = Batcher(Store())
    good, bad = batcher(1), batcher(-1)
    assert await good == 2
    with pytest.raises(ValueError, match="-1"):
        await bad


async def test_a_call_that_fails_fails_its_items_and_no_others() -> None:
    failing = True

    async def call(items: Sequence[int]) -> list[int | Exception]:
        if failing:
            raise ConnectionError("gone")
        return list(items)

    batcher = Batcher(call)
    answers = await asyncio.gather(batcher(1), batcher(2), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ConnectionError, ConnectionError]
    failing = False
    assert await batcher(3) == 3


async def test_an_item_whose_waiter_was_cancelled_is_still_sent() -> None:
    store = Store()
    batcher = Batcher(store)
    store.open.clear()
    first = batcher(1)
    await asyncio.sleep(0)
    given_up = batcher(2)
    given_up.cancel()
    store.open.set()
    await first
    await batcher.drained()
    assert store.calls == [[1], [2]]


async def test_item_that_fails_spares_the_others_of_its_batch() -> None:
    async def call(items: Sequence[int]) -> list[int | Exception]:
        if 3 in items:
            raise ValueError("three")
        return list(items)

    answers = await each_its_own(call, [1, 2, 3, 4])
    assert [answer if isinstance(answer, int) else str(answer) for answer in answers] == [1, 2, "three", 4]


async def test_an_unreachable_backend_is_nobodys_own_fault() -> None:
    calls = []

    async def call(items: Sequence[int]) -> list[int | Exception]:
        calls.append(items)
        raise BackendUnavailableError("away")

    with pytest.raises(BackendUnavailableError):
        await each_its_own(call, [1, 2])
    assert len(calls) == 1


async def test_items_behind_a_call_that_hangs_are_sent_after_a_while() -> None:
    store = Store()
    batcher = Batcher(store, in_flight=2, patience=0.02)
    store.open.clear()
    first = batcher(1)
    await asyncio.sleep(0)
    others = [batcher(n) for n in (2, 3)]
    async with asyncio.timeout(5):
        while len(store.calls) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    store.open.set()
    assert await asyncio.gather(first, *others) == [2, 4, 6]
    assert store.calls == [[1], [2, 3]]


async def test_quick_calls_stay_one_at_a_time() -> None:
    store = Store()
    batcher = Batcher(store, in_flight=4, patience=60)
    store.open.clear()
    futures = [batcher(1)]
    await asyncio.sleep(0)
    futures += [batcher(n) for n in (2, 3)]
    await asyncio.sleep(0)
    futures += [batcher(4)]
    store.open.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*futures)
    assert store.calls == [[1], [2, 3, 4]]
