"""Fixtures for both packages of cubeloop and for the memory and Postgres stores."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from runyard import Client
from tests.support.cubeloop_packages import NAMES, Package

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.fixture(params=NAMES)
def package(request: pytest.FixtureRequest) -> Package:
    return Package(request.param)


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest) -> "tuple[Databases, str] | None":
    """Postgres and its template, or None for the memory store. Tests on the memory store start no server."""
    if request.param == "memory":
        return None
    return request.getfixturevalue("databases"), request.getfixturevalue("migrated_template")


@pytest.fixture
async def store_url(server: "tuple[Databases, str] | None") -> AsyncIterator[str]:
    if server is None:
        yield f"memory://{uuid4()}"
        return
    databases, template = server
    url = await databases.create(template)
    yield url
    await databases.drop(url)


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[Client]:
    options: dict[str, Any] = {} if store_url.startswith("memory") else {"max_pool_size": 4}
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(Client.connect(store_url, **options))
