"""The schedule of faults is repeatable and strikes as often as promised."""

from __future__ import annotations

import pytest

from tests.chaos.faults import EVERY, counts, schedule


def test_a_seed_always_gives_the_same_faults() -> None:
    assert schedule(7, 60) == schedule(7, 60)
    assert schedule(7, 60) != schedule(8, 60)


@pytest.mark.parametrize("seed", range(5))
def test_ten_minutes_have_their_share_of_each_fault(seed: int) -> None:
    struck = counts(schedule(seed, 600))
    assert struck["kill"] >= 60
    assert struck["pause"] >= 20
    assert struck["flush"] + struck["empty"] >= 10
    assert struck["crash"] >= 10
    assert min(struck["redis_failover"], struck["postgres_failover"]) >= 10


def test_even_a_short_one_has_each_kind() -> None:
    assert counts(schedule(1, 5)).keys() == EVERY.keys()
