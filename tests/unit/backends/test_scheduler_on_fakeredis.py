"""The scheduler's scripts on fakeredis: the suite of the real server, and its model in short."""

import pytest

from runyard.ports.scheduling import Scheduler
from runyard_backends.memory.events import MemoryEventLog
from runyard_backends.memory.scheduler import MemoryScheduler
from runyard_backends.memory.state import wall_clock
from tests.stateful.scheduler_machine import holds_in_every_order
from tests.support.suites.scheduler import *  # noqa: F403


@pytest.fixture(params=["fakeredis", "memory"])
def any_scheduler(request: pytest.FixtureRequest) -> Scheduler:
    if request.param == "memory":
        return MemoryScheduler(wall_clock, MemoryEventLog())
    found: Scheduler = request.getfixturevalue("scheduler")
    return found


def test_scheduler_against_its_model(redis_url: str) -> None:
    """I1, I2: a few of the histories that tests/stateful tries on a real server."""
    holds_in_every_order(redis_url, examples=5)
