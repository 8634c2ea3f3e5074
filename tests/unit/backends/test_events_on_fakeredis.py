"""The event log's scripts on fakeredis: the suite of the real server."""

import pytest

from runyard.ports.scheduling import EventLog
from runyard_backends.memory.events import MemoryEventLog
from tests.support.suites.events import *  # noqa: F403


@pytest.fixture(params=["fakeredis", "memory"])
def any_log(request: pytest.FixtureRequest) -> EventLog:
    if request.param == "memory":
        return MemoryEventLog()
    found: EventLog = request.getfixturevalue("log")
    return found
