"""What clients ask of the stores, over HTTP; what workers do goes to the store behind the API."""

from collections.abc import AsyncIterator
from typing import Final

import pytest

from backends.conformance import (  # noqa: F401
    TestAbort,
    TestCreation,
    TestDeletion,
    TestFanOut,
    TestFeed,
    TestFilters,
    TestForks,
    TestHitl,
    TestInheritance,
    TestParallel,
    TestRuns,
    TestTransitions,
    TestTree,
    world,
)
from backends.conformance.world import BackendFactory
from backends.memory import MemoryWorld, connect
from runner.ports import Backend
from tests.http.halves import halves

OTHERWISE: Final = {
    "test_same_answer_again": "an answer that was there before is answered alike",
    "test_f11_the_candidates_come_back_as_they_were": "the API takes no lone surrogates",
    "test_message_text_is_kept_verbatim": "the API takes no lone surrogates",
    "test_run_options_and_metadata_survive": "the API takes no lone surrogates",
}


@pytest.fixture
async def backend_factory(request: pytest.FixtureRequest) -> AsyncIterator[BackendFactory]:
    if reason := OTHERWISE.get(request.node.originalname):
        pytest.skip(reason)
    database = MemoryWorld()

    async def factory(tenant: str = "") -> Backend:
        return await halves(await connect(tenant=tenant, world=database))

    yield factory
