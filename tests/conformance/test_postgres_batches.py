"""Accepts that share their batch with another do what single accepts do.

A single accept takes the long way, and several together may take the plain path (functions/plain_runs.sql). Claims and
completions try the plain path first in any case.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import pytest_asyncio

from runyard.ports.commands import AcceptRequest
from runyard.ports.stores import Backend
from runyard_backends.conformance import (  # noqa: F401
    TestAgents,
    TestAgentsOfJobs,
    TestExpiry,
    TestExternalRuns,
    TestInheritance,
    TestLanes,
    TestRoots,
    TestRuns,
    TestTransitions,
    TestTree,
)
from runyard_backends.conformance.world import BackendFactory, World
from runyard_backends.postgres.backend import PostgresBackend
from tests.support.shared_database import SharedDatabase

pytestmark = pytest.mark.asyncio(loop_scope="module")


def send_twice(backend: PostgresBackend) -> None:
    """Send each request twice in its batch. The second is a repetition of the first, and changes nothing."""
    once = backend.runs.accepts.rows

    async def twice(requests: Sequence[AcceptRequest], *, wait: float) -> list[Any]:
        rows = await once([request for request in requests for _ in range(2)], wait=wait)
        assert [row["n"] for row in rows] == list(range(1, len(rows) + 1))
        assert not any(row["created"] for row in rows[1::2])
        return rows[::2]

    backend.runs.accepts.rows = twice  # type: ignore[method-assign]


@pytest_asyncio.fixture(loop_scope="module")
async def backend_factory(shared_database: SharedDatabase) -> BackendFactory:
    async def factory(tenant: str = "") -> Backend:
        backend = shared_database.backend(tenant)
        send_twice(backend)
        return backend

    return factory


@pytest_asyncio.fixture(loop_scope="module")
async def world(backend_factory: BackendFactory) -> World:
    return World(await backend_factory(), backend_factory)
