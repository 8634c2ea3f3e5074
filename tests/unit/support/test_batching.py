"""Group commit of calls (Q2)."""

import asyncio
import math
from collections.abc import Sequence

import pytest

from runyard.errors import BackendUnavailableError, LockedError, WorkerDeadError
from runyard.support.batching import Batcher, each_its_own


class Failing:
    """A call that fails with an error of one item. The item ``n`` belongs to the thread ``n // 2``."""

    def __init__(self, bad: int, error: Exception) -> None:
        self.bad, self.error = bad, error
        self.calls: list[list[int]] = []

    async def __call__(self, items: Sequence[int]) -> list[int | Exception]:
        self.calls.append(list(items))
        if self.bad in items:
            raise self.error
        return [item * 2 for item in items]


@pytest.mark.parametrize("bad", range(32))
async def test_one_bad_item_among_many_costs_few_calls(bad: int) -> None:
    call = Failing(bad, ValueError("bad"))
    answers = await each_its_own(call, range(32))
    assert answers == [call.error if item == bad else item * 2 for item in range(32)]
    assert len(call.calls) <= 2 * math.log2(32) + 1


@pytest.mark.parametrize("bad", range(32))
async def test_a_locked_item_among_many_costs_few_calls(bad: int) -> None:
    """The items of the locked thread are sent and refused together, and keep their order."""
    call = Failing(bad, LockedError("locked"))
    items = [*range(0, 32, 2), *range(1, 32, 2)]  # the items of a thread are not beside each other
    answers = await each_its_own(call, items, lambda item: item // 2)
    assert answers == [call.error if item // 2 == bad // 2 else item * 2 for item in items]
    assert len(call.calls) <= 2 * math.log2(16) + 1
    assert all(sorted(sent, key=items.index) == sent for sent in call.calls)


async def test_the_items_of_one_locked_thread_are_sent_once() -> None:
    call = Failing(0, LockedError("locked"))
    assert await each_its_own(call, [0, 1], lambda item: item // 2) == [call.error] * 2
    assert call.calls == [[0, 1]]


async def test_without_threads_a_lock_is_the_error_of_all_items() -> None:
    call = Failing(3, LockedError("locked"))
    with pytest.raises(LockedError):
        await each_its_own(call, range(8))
    assert len(call.calls) == 1


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


@pytest.mark.parametrize("error", [BackendUnavailableError("away"), LockedError("locked"), WorkerDeadError("dead")])
async def test_w4_answers_before_the_store_went_away_are_kept(error: Exception) -> None:
    calls = []

    async def call(items: Sequence[int]) -> list[int | Exception]:
        calls.append(list(items))
        if len(items) == 8:
            raise ValueError("one of them is bad")
        if 4 in items:
            raise error
        return list(items)

    assert await each_its_own(call, range(8)) == [0, 1, 2, 3, *[error] * 4]
    assert calls == [[*range(8)], [0, 1, 2, 3], [4, 5, 6, 7]]


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


async def test_a_call_holds_at_most_most_bytes() -> None:
    """An item that is larger has a call of its own."""
    store = Store()
    batcher = Batcher(store, limit=4, size=lambda item: item, most_bytes=10)
    items = [4, 6, 1, 50, 2, 2, 2, 2, 2]
    assert await asyncio.gather(*(batcher(n) for n in items)) == [n * 2 for n in items]
    assert store.calls == [[4, 6], [1], [50], [2, 2, 2, 2], [2]]


async def test_a_bad_item_of_a_thousand_costs_few_calls() -> None:
    calls = []

    async def call(items: Sequence[int]) -> list[int | Exception]:
        calls.append(items)
        if 700 in items:
            raise ValueError("bad")
        return list(items)

    answers = await each_its_own(call, range(1000))
    assert [n for n, answer in enumerate(answers) if answer != n] == [700] and isinstance(answers[700], ValueError)
    assert len(calls) <= 21
    assert await each_its_own(call, []) == []
