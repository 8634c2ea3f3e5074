"""Checkpointers for in-process agents: each test that takes one runs on all of them."""

from collections.abc import AsyncIterator

import pytest

from runyard.checkpointer import MemoryCheckpointer, PostgresCheckpointer
from runyard.ports.stores import Checkpointer
from tests.support.checkpointers import Documented


@pytest.fixture(params=["memory", "postgres", "documented"])
def cp_url(request: pytest.FixtureRequest) -> str:
    """Where the checkpointer of a test keeps its threads."""
    return str(request.getfixturevalue("postgres_url") if request.param == "postgres" else request.param)


@pytest.fixture
async def cp(cp_url: str) -> AsyncIterator[Checkpointer]:
    """An open checkpointer of each kind."""
    match cp_url:
        case "memory":
            yield MemoryCheckpointer()
        case "documented":
            yield Documented()  # type: ignore[misc]
        case _:
            async with PostgresCheckpointer(dsn=cp_url) as postgres:
                yield postgres
