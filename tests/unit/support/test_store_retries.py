"""A call of a store that is away is repeated until the store answers, within a bound."""

from __future__ import annotations

import pytest

from runyard.errors import BackendUnavailableError, StaleFenceError
from runyard.support.store_retries import patiently


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
