"""The suite that every store must pass. Third parties run it too::

    # tests/test_my_store.py
    import pytest_asyncio
    from backends.conformance import *

    @pytest_asyncio.fixture
    async def backend_factory():
        async def connect(tenant=""):   # every call: one more connection to the same, fresh database
            return await my_store.connect(url, tenant=tenant)
        yield connect

Each test names the rule that it proves. Only the stores are used (``checkpointer``, ``threads``, ``runs``, ``workers``); a
backend's scheduler and event log have suites of their own.
"""

import pytest

MODULES = (
    *(
        "abort",
        "attempts",
        "checkpointer",
        "creation",
        "cuts",
        "deletion",
        "expiry",
        "feed",
        "forks",
        "history",
        "hitl",
        "inheritance",
    ),
    *(
        "keys",
        "lanes",
        "bounds",
        "poison",
        "queues",
        "runs",
        "tenants",
        "transitions",
        "tree",
        "usage",
        "versions",
        "webhooks",
        "workers",
        "world",
        "writers",
    ),
)
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in MODULES))

from .abort import TestAbort  # noqa: E402
from .attempts import TestAttempts  # noqa: E402
from .bounds import TestBounds, TestNesting, TestWholeMessages  # noqa: E402
from .checkpointer import TestCheckpointer, TestExternalRuns, TestRequests  # noqa: E402
from .creation import TestCreation, TestFilters  # noqa: E402
from .cuts import TestMessageCuts  # noqa: E402
from .deletion import TestDeletion, TestRunDeletion  # noqa: E402
from .expiry import TestExpiry  # noqa: E402
from .fanout import TestFanOut  # noqa: E402
from .feed import TestFeed, TestPruning  # noqa: E402
from .forks import TestForks  # noqa: E402
from .history import TestHistory  # noqa: E402
from .hitl import TestHitl  # noqa: E402
from .inheritance import TestInheritance  # noqa: E402
from .keys import TestKeys  # noqa: E402
from .lanes import TestLanes  # noqa: E402
from .limits import TestLimits, TestSlots  # noqa: E402
from .pages import TestPages  # noqa: E402
from .poison import TestPoison  # noqa: E402
from .queues import TestQueues  # noqa: E402
from .runs import TestRuns  # noqa: E402
from .tenants import TestTenants  # noqa: E402
from .transitions import TestTransitions  # noqa: E402
from .tree import TestParallel, TestTree  # noqa: E402
from .usage import TestUsage  # noqa: E402
from .versions import TestVersions  # noqa: E402
from .webhooks import TestWebhooks  # noqa: E402
from .workers import TestWorkers  # noqa: E402
from .world import World, world  # noqa: E402
from .writers import TestCheckpointedWriters, TestWriters  # noqa: E402

__all__ = [
    "TestAbort",
    "TestAttempts",
    "TestBounds",
    "TestCheckpointedWriters",
    "TestCheckpointer",
    "TestCreation",
    "TestDeletion",
    "TestExpiry",
    "TestExternalRuns",
    "TestFanOut",
    "TestFeed",
    "TestFilters",
    "TestForks",
    "TestHistory",
    "TestHitl",
    "TestInheritance",
    "TestKeys",
    "TestLanes",
    "TestLimits",
    "TestMessageCuts",
    "TestNesting",
    "TestPages",
    "TestParallel",
    "TestPoison",
    "TestPruning",
    "TestQueues",
    "TestRequests",
    "TestRunDeletion",
    "TestRuns",
    "TestSlots",
    "TestTenants",
    "TestTransitions",
    "TestTree",
    "TestUsage",
    "TestVersions",
    "TestWebhooks",
    "TestWholeMessages",
    "TestWorkers",
    "TestWriters",
    "World",
    "world",
]
