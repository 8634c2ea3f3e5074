"""Crashes. A run that crashes its processes ends as dead and does not affect other runs."""

from __future__ import annotations

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import HitlRequest, new_id

from .world import T, World, said

pytestmark = pytest.mark.asyncio


class TestPoison:
    async def test_two_crashes_without_progress_isolate_and_the_third_is_death(self, world: World) -> None:
        """After two crashes without progress, the third attempt runs alone. A crash of that attempt makes the run dead. A
        redrive resets the number of crashes."""
        await world.accept("r1")
        await world.crash("r1", 2)
        claim = await world.claim("r1")
        assert claim.alone and claim.attempt is not None and claim.run is not None and claim.run.crash_count == 2
        assert "waiting there to run alone" in await world.runs.explain(T, "r1")
        await world.runs.isolate(claim.attempt)
        await world.runs.append(claim.attempt, [])  # an empty append is no progress
        assert "alone" in await world.runs.explain(T, "r1") and "waiting" not in await world.runs.explain(T, "r1")
        await world.bury()
        claim = await world.claim("r1", worker="w2")
        run = await world.run("r1")
        assert (claim.outcome, run.status, run.crash_count, run.error_count) == ("ended", RunStatus.DEAD, 3, 0)
        assert run.attempt == 3
        assert run.error is not None and run.error.code == "poison"
        [event] = claim.effects.events
        assert event.type == "run.dead" and "poison" in str(event.data["error"])
        assert run.error.message in await world.runs.explain(T, "r1")
        changed = await world.runs.redrive(T, "r1")
        assert changed.run.status is RunStatus.QUEUED and changed.run.crash_count == 0
        assert [job.run_id for job in changed.effects.jobs] == ["r1"]
        claim = await world.claim("r1", worker="w2")
        assert not claim.alone and claim.attempt is not None
        await world.finish(claim.attempt, said("done"))
        assert await world.texts() == ["hi", "done"]

    async def test_run_that_waits_to_run_alone_is_not_blamed(self, world: World) -> None:
        """A crash does not count while the run still waits for its own process, however often this happens."""
        await world.accept("r1")
        await world.crash("r1", 2)
        for worker in ("w1", "w2", "w3"):
            assert (await world.claim("r1", worker=worker)).alone
            assert (await world.run("r1")).crash_count == 2
            await world.bury(worker)
        attempt = await world.take("r1")
        ended = await world.runs.bury(attempt, "killed before it began")
        assert ended.status is RunStatus.QUEUED and [job.run_id for job in ended.effects.jobs] == ["r1"]
        assert (await world.claim("r1")).alone and (await world.run("r1")).crash_count == 2

    async def test_run_that_its_worker_left_behind_is_not_blamed(self, world: World) -> None:
        """A worker that leaves has stopped its attempts. The takeover of its runs is no crash, however often this happens."""
        await world.accept("r1")
        await world.crash("r1", 1)
        for n in range(3):
            claim = await world.claim("r1", worker=f"leaving{n}")
            assert (claim.outcome, claim.takeover) == ("claimed", True)
            await world.workers.leave(f"leaving{n}")
        attempt = await world.take("r1")
        assert (await world.run("r1")).crash_count == 1
        await world.finish(attempt, said("done"))
        assert await world.texts() == ["hi", "done"]

    async def test_progress_before_its_worker_left_resets_the_crashes(self, world: World) -> None:
        await world.accept("r1")
        await world.crash("r1", 2)
        await world.runs.append(await world.take("r1", worker="leaving"), [said("progress")])
        await world.workers.leave("leaving")
        assert not (await world.claim("r1")).alone
        assert (await world.run("r1")).crash_count == 0

    @pytest.mark.parametrize("how", ["append", "step", "suspend"])
    async def test_progress_resets_the_crashes(self, world: World, how: str) -> None:
        """When an attempt commits a write, the run's number of crashes becomes zero."""
        await world.accept("r1")
        await world.crash("r1", 2)
        attempt = await world.take("r1")
        await world.runs.isolate(attempt)
        match how:
            case "append":
                await world.runs.append(attempt, [said("progress")])
                ended = await world.runs.bury(attempt, "killed")
                assert ended.status is RunStatus.QUEUED and (await world.run("r1")).crash_count == 1
            case "step":
                await world.runs.finish_step(attempt, "k", 1)
                await world.bury()
                await world.hire("w2")
            case "suspend":
                await world.ask(attempt, HitlRequest(request_id=new_id()))
                await world.runs.respond(1, thread_id=T)
        claim = await world.claim("r1", worker="w2")
        assert claim.outcome == "claimed" and not claim.alone
        assert (await world.run("r1")).crash_count == (0 if how == "suspend" else 1)

    async def test_a_death_alone_is_buried_once(self, world: World) -> None:
        """A repeated ``bury`` ends the run once, and the lane continues."""
        await world.accept("r1")
        await world.accept("r2")
        await world.crash("r1", 2)
        attempt = await world.take("r1")
        await world.runs.isolate(attempt)
        ended = await world.runs.bury(attempt, "ended by SIGSEGV")
        assert ended.status is RunStatus.DEAD and [job.run_id for job in ended.effects.jobs] == ["r2"]
        assert [(e.type, e.event_id) for e in ended.effects.events] == [("run.dead", ended.event_id)]
        run = await world.run("r1")
        assert run.error is not None and "ended by SIGSEGV" in run.error.message and run.crash_count == 3
        again = await world.runs.bury(attempt, "ended by SIGSEGV")
        assert (again.status, again.event_id, again.effects.jobs) == (RunStatus.DEAD, ended.event_id, [])

    async def test_a_cancel_wins_over_a_burial(self, world: World) -> None:
        """I8, R10: A requested cancel has precedence over the status dead."""
        await world.accept("r1")
        await world.crash("r1", 2)
        attempt = await world.take("r1")
        await world.runs.cancel(T, "r1")
        await world.runs.isolate(attempt)
        ended = await world.runs.bury(attempt, "killed")
        assert ended.status is RunStatus.CANCELLED and [e.type for e in ended.effects.events] == ["run.cancelled"]

    async def test_stale_attempts_neither_isolate_nor_bury(self, world: World) -> None:
        """I2: ``isolate`` and ``bury`` refuse an attempt that is over."""
        old = await world.start("r1")
        await world.bury()
        await world.take("r1", worker="w2")
        for verb in (world.runs.isolate(old), world.runs.bury(old, "killed")):
            with pytest.raises(errors.StaleFenceError):
                await verb
        assert await world.status("r1") is RunStatus.RUNNING
