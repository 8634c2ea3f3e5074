"""Accepts that share their batch with another do what single accepts do.

A single accept takes the long way, and several together may take the plain path (functions/plain_runs.sql). Claims and
completions try the plain path first in any case.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

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
    world,
)
from runyard_backends.conformance.world import BackendFactory
from runyard_backends.postgres.backend import PostgresBackend, connect


def send_twice(backend: PostgresBackend) -> None:
    """Send each request twice in its batch. The second is a repetition of the first, and changes nothing."""
    once = backend.runs._accept_rows

    async def twice(requests: Sequence[AcceptRequest], *, wait: float) -> list[Any]:
        rows = await once([request for request in requests for _ in range(2)], wait=wait)
        assert [row["n"] for row in rows] == list(range(1, len(rows) + 1))
        assert not any(row["created"] for row in rows[1::2])
        return rows[::2]

    backend.runs._accept_rows = twice  # type: ignore[method-assign]


@pytest.fixture
async def backend_factory(app_url: str) -> AsyncIterator[BackendFactory]:
    opened: list[Backend] = []

    async def factory(tenant: str = "") -> Backend:
        backend = await connect(app_url, tenant=tenant, min_pool_size=1, max_pool_size=4)
        send_twice(backend)
        opened.append(backend)
        return backend

    yield factory
    for backend in opened:
        await backend.close()
