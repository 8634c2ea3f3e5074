"""Versions of the app: claims of a run that another version began (U2)."""

from __future__ import annotations

import pytest

from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo
from runyard.ports.scheduling import requirement

from .world import T, World, said

pytestmark = pytest.mark.asyncio

WAITS = {"app_version": "2", "on_version_mismatch": "wait"}


class TestVersions:
    async def test_the_version_that_accepted_then_the_one_that_ran(self, world: World) -> None:
        await world.hire("one", app_version="1")
        await world.hire("two", app_version="2")
        await world.accept("r1", app_version="0")
        assert (await world.run("r1")).app_version == "0"
        first = await world.claim("r1", worker="one")
        assert first.version_before is None and (await world.run("r1")).app_version == "1"
        assert first.attempt is not None
        await world.runs.release(first.attempt)
        second = await world.claim("r1", worker="two")
        assert second.version_before == "1" and (await world.run("r1")).app_version == "2"

    async def test_a_worker_that_waits_leaves_a_suspended_run_to_its_version(self, world: World) -> None:
        """R12: A worker with ``on_version_mismatch="wait"`` leaves an answered run to the version that began the run. The
        refused claim counts neither as an attempt nor as a crash. A run that has not begun starts on any version."""
        await world.hire("one", app_version="1")
        await world.hire("two", **WAITS)
        await world.hire("w", app_version="1")
        await world.suspended("r1")
        await world.runs.respond(1, thread_id=T)
        before = await world.run("r1")
        claim = await world.claim("r1", worker="two")
        assert (claim.outcome, claim.requires) == ("other_version", requirement(before.agent, "1"))
        assert await world.run("r1") == before
        await world.workers.leave("w")
        await world.workers.leave("one")
        await world.hire("elsewhere", queues=["other"], app_version="1")
        waits = "waiting for a worker of version 1; workers of queue default run 2"
        assert await world.runs.explain(T, "r1") == waits
        await world.accept("fresh", thread="u", app_version="1")
        assert (await world.claim("fresh", thread="u", worker="two")).outcome == "claimed"
        await world.hire("again", app_version="1")
        assert (await world.claim("r1", worker="again")).outcome == "claimed"

    async def test_a_worker_that_waits_leaves_a_crashed_run_to_its_version(self, world: World) -> None:
        """A worker with ``on_version_mismatch="wait"`` leaves a crashed run to the version that began the run. The crash counts
        once. A cancel is applied at once."""
        await world.hire("one", app_version="1")
        await world.hire("two", **WAITS)
        await world.accept("r1")
        await world.take("r1", worker="one")
        await world.bury("one")
        for _ in range(4):
            assert (await world.claim("r1", worker="two")).outcome == "other_version"
        waits = "lost its worker one; waiting for a worker of version 1; workers of queue default run 2"
        assert await world.runs.explain(T, "r1") == waits
        await world.hire("again", app_version="1")
        claim = await world.claim("r1", worker="again")
        assert claim.takeover and claim.run is not None and claim.run.crash_count == 1
        await world.bury("again")
        await world.runs.cancel(T, "r1")
        assert (await world.claim("r1", worker="two")).outcome == "ended"
        assert await world.status("r1") is RunStatus.CANCELLED

    async def test_a_redriven_run_starts_on_any_version(self, world: World) -> None:
        """A redriven run starts on any version, because the cause of the failure is usually repaired in a new version."""
        await world.hire("w", app_version="1")
        await world.hire("two", **WAITS)
        attempt = await world.start("r1")
        await world.runs.release(attempt, error=ErrorInfo(code="x", message="x"))
        assert (await world.claim("r1", worker="two")).outcome == "other_version"
        await world.failed("r2", thread="u")
        await world.runs.redrive("u", "r2")
        claim = await world.claim("r2", thread="u", worker="two")
        assert claim.version_before is None and claim.attempt is not None
        await world.finish(claim.attempt, said("mended"))
        assert (await world.run("r2", "u")).app_version == "2"
