"""The scheduler on a real server against its model."""

import pytest

from tests.stateful.scheduler_machine import holds_in_every_order
from tests.support.long_form import LONG


@pytest.mark.slow
def test_scheduler_against_its_model(redis_url: str) -> None:
    """I1, I2: one holder per lane, nothing lost, a stale owner changes nothing, in every order of respond, suspend and
    release."""
    holds_in_every_order(redis_url, examples=40 if LONG else 15)
