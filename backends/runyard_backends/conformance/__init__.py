"""The suite that every store must pass. Authors of other stores also run this suite::

    # tests/test_my_store.py
    import pytest_asyncio
    from runyard_backends.conformance import *

    @pytest_asyncio.fixture
    async def backend_factory():
        async def connect(tenant=""):   # each call opens a connection to the same, new database
            return await my_store.connect(url, tenant=tenant)
        yield connect

The docstrings cite the rules that the tests check. The tests use every store of the backend, such as ``runs``, ``threads`` and
``webhooks``. Other suites test a backend's scheduler and event log. :mod:`.checkpointers` is the suite of a store without
workers.
"""

import pytest

MODULES = (
    "abort", "agents", "api_keys", "attempt_events", "attempts", "batches", "bounds", "cancels", "chains", "checkpointer",
    "checkpoints", "child_lists", "children", "contexts", "creation", "cuts", "deletion", "ended_waits", "expiry", "explain",
    "external_runs",
    "fan_out", "fan_out_records", "feed", "forks", "history", "inheritance", "labels", "lanes", "limits", "live_turns", "pages",
    "poison", "queues", "requests", "roots", "runs", "steps", "tenants", "thread_updates", "timelines", "transitions",
    "tree", "unread_signals", "usage", "versions", "waits", "webhook_owners", "webhooks", "workers", "world", "writers",
)  # fmt: skip
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in MODULES))

from .abort import TestAbort  # noqa: E402
from .agents import TestAgents, TestAgentsOfJobs  # noqa: E402
from .api_keys import TestKeys  # noqa: E402
from .attempt_events import TestAttemptEvents  # noqa: E402
from .attempts import TestAttempts  # noqa: E402
from .batches import TestBatches  # noqa: E402
from .bounds import TestBounds, TestNesting, TestWholeMessages  # noqa: E402
from .cancels import TestCancels  # noqa: E402
from .chains import TestChains, TestCrashesOfChains  # noqa: E402
from .checkpointer import TestCheckpointer, TestRequests  # noqa: E402
from .checkpoints import TestCheckpoints, TestNames  # noqa: E402
from .child_lists import TestChildLists  # noqa: E402
from .children import TestChildren  # noqa: E402
from .contexts import TestContexts  # noqa: E402
from .creation import TestCreation, TestFilters  # noqa: E402
from .cuts import TestMessageCuts  # noqa: E402
from .deletion import TestDeletion, TestRunDeletion  # noqa: E402
from .ended_waits import TestEndedChildren, TestEndedWaits  # noqa: E402
from .expiry import TestExpiry  # noqa: E402
from .explain import TestExplain  # noqa: E402
from .external_runs import TestExternalRuns  # noqa: E402
from .fan_out import TestFanOut, TestFanOutProgress  # noqa: E402
from .fan_out_records import TestFanOutRecords  # noqa: E402
from .feed import TestFeed, TestPruning  # noqa: E402
from .forks import TestForks  # noqa: E402
from .history import TestHistory  # noqa: E402
from .inheritance import TestInheritance, TestInheritedRuns  # noqa: E402
from .labels import TestDepths, TestLabels  # noqa: E402
from .lanes import TestLanes  # noqa: E402
from .limits import TestLimits, TestPermits  # noqa: E402
from .live_turns import TestLiveTurn  # noqa: E402
from .pages import TestPages  # noqa: E402
from .poison import TestPoison  # noqa: E402
from .queues import TestQueues  # noqa: E402
from .requests import TestHitl  # noqa: E402
from .roots import TestRoots  # noqa: E402
from .runs import TestRuns  # noqa: E402
from .steps import TestSteps  # noqa: E402
from .tenants import TestTenants  # noqa: E402
from .thread_updates import TestThreadUpdates  # noqa: E402
from .timelines import TestFindRun, TestTimelines  # noqa: E402
from .transitions import TestTransitions  # noqa: E402
from .tree import TestParallel, TestTree  # noqa: E402
from .unread_signals import TestUnreadSignals  # noqa: E402
from .usage import TestUsage  # noqa: E402
from .versions import TestVersions  # noqa: E402
from .waits import TestSignals, TestSleep  # noqa: E402
from .webhook_owners import TestWebhookOwners  # noqa: E402
from .webhooks import TestWebhooks  # noqa: E402
from .workers import TestWorkers  # noqa: E402
from .world import World, world  # noqa: E402
from .writers import TestCheckpointedWriters, TestOriginals, TestWriters  # noqa: E402

__all__ = [
    "TestAbort",
    "TestAgents",
    "TestAgentsOfJobs",
    "TestAttemptEvents",
    "TestAttempts",
    "TestBatches",
    "TestBounds",
    "TestCancels",
    "TestChains",
    "TestCheckpointedWriters",
    "TestCheckpointer",
    "TestCheckpoints",
    "TestChildLists",
    "TestChildren",
    "TestContexts",
    "TestCrashesOfChains",
    "TestCreation",
    "TestDeletion",
    "TestDepths",
    "TestEndedChildren",
    "TestEndedWaits",
    "TestExpiry",
    "TestExplain",
    "TestExternalRuns",
    "TestFanOut",
    "TestFanOutProgress",
    "TestFanOutRecords",
    "TestFeed",
    "TestFilters",
    "TestFindRun",
    "TestForks",
    "TestHistory",
    "TestHitl",
    "TestInheritance",
    "TestInheritedRuns",
    "TestKeys",
    "TestLabels",
    "TestLanes",
    "TestLimits",
    "TestLiveTurn",
    "TestMessageCuts",
    "TestNames",
    "TestNesting",
    "TestOriginals",
    "TestPages",
    "TestParallel",
    "TestPermits",
    "TestPoison",
    "TestPruning",
    "TestQueues",
    "TestRequests",
    "TestRoots",
    "TestRunDeletion",
    "TestRuns",
    "TestSignals",
    "TestSleep",
    "TestSteps",
    "TestTenants",
    "TestThreadUpdates",
    "TestTimelines",
    "TestTransitions",
    "TestTree",
    "TestUnreadSignals",
    "TestUsage",
    "TestVersions",
    "TestWebhookOwners",
    "TestWebhooks",
    "TestWholeMessages",
    "TestWorkers",
    "TestWriters",
    "World",
    "world",
]
