"""The SQLite store behaves like the memory store in all calls that need no workers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runyard.ports.stores import Backend
from runyard_backends.conformance.checkpointers import *  # noqa: F403
from runyard_backends.conformance.world import BackendFactory
from runyard_backends.sql.backend import connect_sqlite


@pytest.fixture
async def backend_factory(tmp_path: Path) -> AsyncIterator[BackendFactory]:
    opened: list[Backend] = []

    async def factory(tenant: str = "") -> Backend:
        opened.append(await connect_sqlite(f"sqlite:///{tmp_path}/store.db", tenant=tenant))
        return opened[-1]

    yield factory
    for backend in opened:
        await backend.close()
