"""What clients ask of the stores, over HTTP; what workers do goes to the store behind the API."""

from collections.abc import AsyncIterator

import pytest

from runyard.ports.stores import Backend
from runyard_backends import conformance
from runyard_backends.conformance import (  # noqa: F401
    TestAbort,
    TestAgents,
    TestAttemptEvents,
    TestAttempts,
    TestBatches,
    TestCancels,
    TestCreation,
    TestDeletion,
    TestDepths,
    TestExternalRuns,
    TestFeed,
    TestFilters,
    TestForks,
    TestHistory,
    TestInheritance,
    TestLabels,
    TestLanes,
    TestLimits,
    TestMessageCuts,
    TestNesting,
    TestOriginals,
    TestPages,
    TestParallel,
    TestPermits,
    TestPoison,
    TestPruning,
    TestQueues,
    TestRunDeletion,
    TestSteps,
    TestTenants,
    TestThreadUpdates,
    TestTransitions,
    TestTree,
    TestUsage,
    TestVersions,
    TestWebhookOwners,
    TestWebhooks,
    TestWorkers,
    TestWriters,
    world,
)
from runyard_backends.conformance.world import BackendFactory
from runyard_backends.memory import MemoryWorld, connect
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

    test_repeated_answer_is_one_answer = None
    test_answer_keeps_who_gave_it_and_for_whom = None


class TestRuns(conformance.TestRuns):
    """The API takes no lone surrogates."""

    test_message_text_is_kept_verbatim = None
    test_run_options_and_metadata_survive = None
