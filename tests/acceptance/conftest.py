"""Checkpointers for in-process agents: each test that takes one runs on all of them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from runner.agents.keeper import OF_REQUESTS
from runner.checkpointer import MemoryCheckpointer, PostgresCheckpointer
from runner.ports import Checkpointer


class Documented:
    """A checkpointer of somebody else's: the documented methods, and none of runyard's own."""

    def __init__(self) -> None:
        self._kept = MemoryCheckpointer()

    def __getattr__(self, name: str) -> Any:
        if name in OF_REQUESTS:
            raise AttributeError(name)
        return getattr(self._kept, name)


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
