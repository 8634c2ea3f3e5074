"""Checkpointers for in-process agents: each test that takes one runs on all of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runyard.checkpointer import MemoryCheckpointer, MySQLCheckpointer, PostgresCheckpointer, SQLiteCheckpointer
from runyard.ports.stores import Checkpointer
from tests.support.checkpointers import Documented


@pytest.fixture(params=["memory", "sqlite", "postgres", "mysql", "documented"])
def cp_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the checkpointer of a test keeps its threads."""
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/agent.db"
        case "postgres" | "mysql":
            return str(request.getfixturevalue(f"{request.param}_url"))
        case kind:
            return str(kind)


@pytest.fixture
async def cp(cp_url: str) -> AsyncIterator[Checkpointer]:
    """An open checkpointer of each kind."""
    match cp_url:
        case "memory":
            yield MemoryCheckpointer()
        case "documented":
            yield Documented()  # type: ignore[misc]
        case url if url.startswith("sqlite:"):
            async with SQLiteCheckpointer(url.removeprefix("sqlite:///")) as sqlite:
                yield sqlite
        case url if url.startswith("mysql:"):
            async with MySQLCheckpointer(url) as mysql:
                yield mysql
        case _:
            async with PostgresCheckpointer(dsn=cp_url) as postgres:
                yield postgres
