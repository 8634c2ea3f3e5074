"""A call of a store that is away is repeated until the store answers, within a bound."""

from __future__ import annotations

import asyncio

import pytest

from runyard.errors import BackendUnavailableError, LockedError, StaleFenceError
from runyard.support.store_retries import patiently, until_unlocked


class Store:
    """A store that is away for its first ``away`` calls."""

    def __init__(self, away: float) -> None:
        self.away, self.calls = away, 0

    async def write(self) -> int:
        self.calls += 1
        if self.calls <= self.away:
            raise BackendUnavailableError("away")
        return self.calls


async def test_a_write_is_repeated_until_the_store_answers() -> None:
    assert await patiently(Store(away=2).write) == 3


async def test_a_write_is_given_up_when_the_bound_is_over() -> None:
    store = Store(away=float("inf"))
    with pytest.raises(BackendUnavailableError, match="away"):
        await patiently(store.write, bound=0.2)
    assert 1 < store.calls < 10


async def test_a_write_that_the_store_refuses_is_not_repeated() -> None:
    calls = 0

    async def refused() -> None:
        nonlocal calls
        calls += 1
        raise StaleFenceError("another attempt has the run")

    with pytest.raises(StaleFenceError):
        await patiently(refused)
    assert calls == 1


class TestUntilUnlocked:
    """Q4: a call that needs a lock is repeated, and few calls at once."""

    async def test_a_call_is_repeated_until_the_lock_is_free(self) -> None:
        calls = 0

        async def call() -> int:
            nonlocal calls
            calls += 1
            if calls < 3:
                raise LockedError("locked")
            return calls

        assert await until_unlocked(call, asyncio.Semaphore(1), bound=5) == 3

    async def test_few_calls_are_repeated_at_once(self) -> None:
        places, busy, most, firsts = asyncio.Semaphore(2), 0, 0, 0

        async def call() -> None:
            nonlocal busy, most, firsts
            if firsts < 10:
                firsts += 1
                raise LockedError("locked")
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0)
            busy -= 1

        await asyncio.gather(*(until_unlocked(call, places, bound=5) for _ in range(10)))
        assert most == 2

    async def test_a_call_that_gets_no_place_gives_up_in_time(self) -> None:
        async def call() -> None:
            raise LockedError("locked")

        taken = asyncio.Semaphore(0)
        with pytest.raises(LockedError):
            async with asyncio.timeout(5):
                await until_unlocked(call, taken, bound=0.05)
