"""The MySQL store behaves like the memory store in all calls that need no workers. The server is MariaDB."""

from collections.abc import AsyncIterator

import pytest

from runyard.ports.stores import Backend
from runyard_backends.conformance.checkpointers import *  # noqa: F403
from runyard_backends.conformance.world import BackendFactory
from runyard_backends.sql.backend import connect_mysql


@pytest.fixture
async def backend_factory(mysql_url: str) -> AsyncIterator[BackendFactory]:
    opened: list[Backend] = []

    async def factory(tenant: str = "") -> Backend:
        opened.append(await connect_mysql(mysql_url, tenant=tenant, max_pool_size=4))
        return opened[-1]

    yield factory
    for backend in opened:
        await backend.close()
