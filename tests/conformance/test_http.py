"""What clients ask of the stores, over HTTP; what workers do goes to the store behind the API."""

from collections.abc import AsyncIterator

import pytest

from backends import conformance
from backends.conformance import (  # noqa: F401
    TestAbort,
    TestAttempts,
    TestCreation,
    TestDeletion,
    TestExternalRuns,
    TestFeed,
    TestFilters,
    TestForks,
    TestHistory,
    TestInheritance,
    TestLanes,
    TestLimits,
    TestMessageCuts,
    TestNesting,
    TestPages,
    TestParallel,
    TestPoison,
    TestPruning,
    TestQueues,
    TestRunDeletion,
    TestSlots,
    TestTenants,
    TestTransitions,
    TestTree,
    TestUsage,
    TestVersions,
    TestWebhooks,
    TestWorkers,
    TestWriters,
    world,
)
from backends.conformance.world import BackendFactory
from backends.memory import MemoryWorld, connect
from runner.ports import Backend
from tests.http.halves import halves


@pytest.fixture
async def backend_factory() -> AsyncIterator[BackendFactory]:
    database = MemoryWorld()

    async def factory(tenant: str = "") -> Backend:
        return await halves(await connect(tenant=tenant, world=database))

    yield factory


class TestFanOut(conformance.TestFanOut):
    """The API takes no lone surrogates."""

    test_f11_the_candidates_come_back_as_they_were = None


class TestHitl(conformance.TestHitl):
    """An answer that was there before is answered as it was then. The server knows who answers."""

    test_same_answer_again = None
    test_who_answered_and_for_whom = None


class TestRuns(conformance.TestRuns):
    """The API takes no lone surrogates."""

    test_message_text_is_kept_verbatim = None
    test_run_options_and_metadata_survive = None
