"""The suite for a store without workers. It tests the checkpointer with its requests, and threads with their message trees.
Authors of other stores also run this suite::

    # tests/test_my_checkpointer.py
    import pytest_asyncio
    from runyard_backends.conformance.checkpointers import *

    @pytest_asyncio.fixture
    async def backend_factory():
        async def connect(tenant=""):   # all calls in a test open connections to one empty database
            return await my_store.connect(url, tenant=tenant)
        yield connect

The backend needs ``checkpointer``, ``threads``, and the following methods of ``runs``: ``run``, ``runs``, ``requests``,
``request``, ``respond``, ``cancel``, ``abort_pending``, ``delete_run`` and ``last_message_id``. All runs are external. A test
claims and completes them through the checkpointer.
"""

from __future__ import annotations

from typing import Any

import pytest_asyncio

from .abort import TestAbortWithoutWorkers
from .bounds import TestBoundsWithoutWorkers, TestNestingWithoutWorkers
from .checkpointer import TestCheckpointerWithoutWorkers, TestRequests
from .checkpoints import TestCheckpoints, TestNames
from .creation import TestCreationWithoutWorkers, TestFiltersWithoutWorkers
from .cuts import TestMessageCutsWithoutWorkers
from .deletion import TestDeletionWithoutWorkers, TestRunDeletionWithoutWorkers
from .external_runs import TestExternalRunsWithoutWorkers
from .forks import TestForksWithoutWorkers
from .inheritance import TestInheritanceWithoutWorkers
from .labels import TestDepthsWithoutWorkers, TestLabelsWithoutWorkers
from .live_turns import TestLiveTurnWithoutWorkers
from .pages import TestPagesWithoutWorkers
from .roots import TestRootsWithoutWorkers
from .runs import TestRunsWithoutWorkers
from .thread_updates import TestThreadUpdates
from .tree import TestTreeWithoutWorkers
from .world import BackendFactory, CheckpointWorld
from .writers import TestCheckpointedWriters, TestOriginalsWithoutWorkers, TestWritersWithoutWorkers

__all__ = [
    "TestAbortWithoutWorkers",
    "TestBoundsWithoutWorkers",
    "TestCheckpointedWriters",
    "TestCheckpointerWithoutWorkers",
    "TestCheckpoints",
    "TestCreationWithoutWorkers",
    "TestDeletionWithoutWorkers",
    "TestDepthsWithoutWorkers",
    "TestExternalRunsWithoutWorkers",
    "TestFiltersWithoutWorkers",
    "TestForksWithoutWorkers",
    "TestInheritanceWithoutWorkers",
    "TestLabelsWithoutWorkers",
    "TestLiveTurnWithoutWorkers",
    "TestMessageCutsWithoutWorkers",
    "TestNames",
    "TestNestingWithoutWorkers",
    "TestOriginalsWithoutWorkers",
    "TestPagesWithoutWorkers",
    "TestRequests",
    "TestRootsWithoutWorkers",
    "TestRunDeletionWithoutWorkers",
    "TestRunsWithoutWorkers",
    "TestThreadUpdates",
    "TestTreeWithoutWorkers",
    "TestWritersWithoutWorkers",
    "world",
]


@pytest_asyncio.fixture
async def world(backend_factory: BackendFactory) -> Any:
    """Yield a :class:`CheckpointWorld` of the default tenant."""
    backend = await backend_factory()
    yield CheckpointWorld(backend, backend_factory)
    await backend.close()
