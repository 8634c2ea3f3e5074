"""The Postgres store does what the memory store does."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from runyard.ports.stores import Backend
from runyard_backends.conformance import *  # noqa: F403
from runyard_backends.conformance.world import BackendFactory, World
from tests.support.histories import CACHE_BYTES, short_histories_are_kept
from tests.support.shared_database import SharedDatabase

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def backend_factory(shared_database: SharedDatabase) -> AsyncIterator[BackendFactory]:
    async def factory(tenant: str = "") -> Backend:
        return shared_database.backend(tenant, history_cache_bytes=CACHE_BYTES)

    with short_histories_are_kept():
        yield factory


@pytest_asyncio.fixture(loop_scope="module")
async def world(backend_factory: BackendFactory) -> Any:
    return World(await backend_factory(), backend_factory)
