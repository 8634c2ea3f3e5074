"""Limits: refusals, waiting for a permit, and the order of waiting runs (R16)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo, HitlRequest, Limit, RunOptions
from runyard.ports.commands import Write
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.scheduling import Effects

from .world import T, World, said, user

pytestmark = pytest.mark.asyncio


async def limit(world: World, name: str, most: int, subject: str | None = None) -> None:
    await world.backend.limits.set_limit(Limit(name=name, most=most, subject=subject))


async def full(world: World, run_id: str, which: str, **fields: object) -> None:
    with pytest.raises(errors.QueueFullError) as refused:
        await world.accept(run_id, **fields)  # type: ignore[arg-type]
    assert (refused.value.details["limit"], refused.value.http_status) == (which, 429)
    assert refused.value.details["retry_after"] > 0


def submitted(effects: Effects) -> list[str]:
    return [job.run_id for job in effects.jobs]


async def tenant(world: World, name: str) -> World:
    return World(await world.factory(tenant=name), world.factory)


class TestLimits:
    async def test_set_list_clear(self, world: World) -> None:
        store = world.backend.limits
        assert await store.limits() == []
        await limit(world, "queued_per_tenant", 5, "acme")
        await limit(world, "queued_per_tenant", 3)
        await limit(world, "queued", 7)
        await limit(world, "queued", 9)
        assert [(found.name, found.subject, found.most) for found in await store.limits()] == [
            ("queued", None, 9),
            ("queued_per_tenant", None, 3),
            ("queued_per_tenant", "acme", 5),
        ]
        assert await store.clear_limit("queued") and not await store.clear_limit("queued")
        assert await store.clear_limit("queued_per_tenant", "acme")
        assert [found.subject for found in await store.limits()] == [None]

    async def test_queued_per_lane(self, world: World) -> None:
        """R16: The limit per lane counts exactly the waiting runs of the lane. The active run and other lanes do not count."""
        await limit(world, "queued_per_lane", 2)
        attempt = await world.start("r0")
        await world.accept("r1")
        await world.accept("later", delay=3600)
        await full(world, "r2", "queued_per_lane")
        assert not (await world.accept("r1")).created, "R2: a repeated request finds its run although the queue is full"
        assert (await world.accept("side", options=RunOptions(parallel=True))).created
        assert (await world.accept("r2", thread="u")).created
        await world.finish(attempt, said("x"))
        await full(world, "r2", "queued_per_lane")
        await world.take("r1")
        assert (await world.accept("r2")).created
        await full(world, "r3", "queued_per_lane")

    async def test_a_run_that_came_back_closes_no_lane_to_one_that_was_accepted(self, world: World) -> None:
        """R16, I1: A delayed run was accepted, and then a retry fills its lane up to the limit. The delayed run is still
        admitted when it is due."""
        await limit(world, "queued_per_lane", 1)
        attempt = await world.start("r0")
        await world.accept("later", delay=0.01)
        await world.runs.release(attempt)
        while (await world.run("later")).admitted_at is None:
            await world.runs.admit()
        assert await world.status("later") is RunStatus.QUEUED

    async def test_queued_per_tenant_and_in_all(self, world: World) -> None:
        other = await tenant(world, "acme")
        await limit(world, "queued_per_tenant", 2)
        await limit(world, "queued_per_tenant", 3, "acme")
        for each, most in ((world, 2), (other, 3)):
            for n in range(most):
                await each.accept("r", thread=f"t{n}")
            await full(each, "one too many", "queued_per_tenant")
        await limit(world, "queued", 4)
        await world.take("r", thread="t0")
        await full(world, "still", "queued")
        await world.runs.cancel("t1", "r")
        assert (await world.accept("room")).created
        await other.backend.close()

    async def test_a_refusal_leaves_nothing(self, world: World) -> None:
        await limit(world, "queued", 0)
        await full(world, "r1", "queued")
        assert await world.threads.thread(T) is None and await world.runs.run(T, "r1") is None
        await world.backend.limits.clear_limit("queued")
        assert (await world.accept("r1")).created

    async def test_message_size(self, world: World) -> None:
        """R16: The size limit applies to prompts, stored messages and an agent's messages."""
        attempt = await world.start("r0", thread="u")
        await limit(world, "message_bytes", 1000)
        large = "x" * 2000
        for refused in (
            world.accept("r1", large),
            world.store(large),
            world.checkpointer.append(T, [user(large)]),
            world.runs.append(attempt, [said(large)]),
            world.finish(attempt, said("small"), said(large)),
        ):
            with pytest.raises(errors.MessageTooLargeError) as error:
                await refused
            assert error.value.details["most"] == 1000 and error.value.details["size"] > 2000
        assert await world.threads.thread(T) is None
        await world.accept("r1", "x" * 500)
        await world.finish(attempt, said("x" * 500))


class TestPermits:
    async def test_a_run_waits_for_a_permit_of_its_agent(self, world: World) -> None:
        """R16: A run without a permit of its agent waits in the queue. ``explain`` names the permit. When a permit is free,
        this run gets it."""
        await limit(world, "running_per_agent", 1, "writer")
        first = await world.start("r1", thread="a", agent="writer")
        await world.accept("r2", thread="b", agent="writer")
        assert (await world.claim("r2", thread="b")).outcome == "limited"
        assert await world.runs.explain("b", "r2") == "waiting for a permit of agent writer (limit 1)"
        assert (await world.workers.waiting(unchanged=timedelta(0))).jobs == [], (
            "the run is not lost, so the reconciler does not submit it"
        )
        assert await world.workers.still_waiting([await world.ref("r2", "b")], unchanged=timedelta(0)) == []
        assert submitted(await world.backend.limits.review_limits()) == []
        await world.start("free", thread="c", agent="reader")
        ended = await world.finish(first, said("x"))
        assert submitted(ended.effects) == ["r2"]
        second = await world.take("r2", thread="b")
        assert submitted((await world.finish(second, said("x"))).effects) == []

    @pytest.mark.parametrize("how", ["suspend", "release", "fail", "cancel", "respond"])
    async def test_whatever_ends_an_attempt_frees_its_permit(self, world: World, how: str) -> None:
        await limit(world, "running_per_tenant", 1)
        attempt = await world.start("r1", thread="a")
        await world.accept("r2", thread="b")
        assert (await world.claim("r2", thread="b")).outcome == "limited"
        if how in ("suspend", "respond"):
            effects = (await world.ask(attempt, HitlRequest(request_id="q"))).effects
        elif how == "release":
            effects = (await world.runs.release(attempt, delay=60)).effects
        elif how == "fail":
            effects = (await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))).effects
        else:
            await world.runs.cancel("a", "r1")
            effects = (await world.finish(attempt, said("x"))).effects
        assert "r2" in submitted(effects)
        await world.take("r2", thread="b")
        if how == "respond":
            await world.runs.respond("yes", request_id="q")
            assert (await world.claim("r1", thread="a")).outcome == "limited"

    async def test_run_that_waits_for_a_permit_comes_before_a_new_one(self, world: World) -> None:
        """R16: Runs that wait for a permit come before new runs."""
        await limit(world, "running_per_agent", 1, "default")
        first = await world.start("r1", thread="a")
        for n, thread in enumerate("bcd"):
            await world.accept(f"w{n}", thread=thread)
            assert (await world.claim(f"w{n}", thread=thread)).outcome == "limited"
        await world.finish(first, said("x"))
        await world.accept("new", thread="e")
        assert (await world.claim("new", thread="e")).outcome == "limited"
        assert (await world.claim("w1", thread="c")).outcome == "limited"
        assert submitted(await world.backend.limits.review_limits()) == ["w0"]
        await world.runs.cancel("b", "w0")
        await world.take("w1", thread="c")

    async def test_the_line_is_fair_between_tenants_and_ordered_by_priority(self, world: World) -> None:
        """R16: Tenants take turns. The priorities of their runs do not change this order. A tenant's own runs are ordered by
        priority."""
        few = await tenant(world, "few")
        await limit(world, "running_per_agent", 1, "default")
        running = await world.start("r", thread="running")
        for n in range(6):
            await _wait_in_line(world, f"many{n}", priority="high" if n % 2 else "normal")
        for n in range(2):
            await _wait_in_line(few, f"few{n}", priority="low")
        assert await _served(world, running) == ["many1", "few0", "many3", "few1", "many5", "many0", "many2", "many4"]
        await few.backend.close()

    async def test_late_run_with_priority_waits_for_its_tenants_turn(self, world: World) -> None:
        """R16: A run of high priority starts before the other waiting runs of its tenant, even if their jobs were submitted
        earlier. Another tenant with an earlier turn still comes first."""
        few = await tenant(world, "few")
        await limit(world, "running_per_agent", 1, "default")
        running = await world.start("r", thread="running")
        for run in ("a", "b"):
            await _wait_in_line(world, run)
        await _wait_in_line(few, "few")
        assert submitted((await world.finish(running, said("x"))).effects) == ["a"]
        await _wait_in_line(world, "urgent", priority="high")
        claim = await world.claim("a", thread="a")
        assert (claim.outcome, submitted(claim.effects)) == ("limited", ["urgent"]), (
            "the refused claim offers the run that may start"
        )
        urgent = await world.take("urgent", thread="urgent")
        assert await _served(world, urgent) == ["few", "a", "b"]
        await few.backend.close()

    async def test_a_tenant_that_left_the_line_has_no_turn(self, world: World) -> None:
        """R16: A tenant without waiting runs has no turn. A cancel of its last waiting run removes its turn. Its next run waits
        behind the other tenants."""
        few = await tenant(world, "few")
        await limit(world, "running_per_agent", 1, "default")
        running = await world.start("r", thread="running")
        await _wait_in_line(few, "gone")
        await _wait_in_line(world, "a")
        await few.runs.cancel("gone", "gone")
        await world.backend.limits.review_limits()
        await _wait_in_line(few, "back")
        assert await _served(world, running) == ["a", "back"]
        await few.backend.close()

    async def test_two_limits_at_once(self, world: World) -> None:
        """R16: A run that needs two permits does not block the runs that wait for one of them."""
        other = await tenant(world, "other")
        await limit(world, "running_per_agent", 2, "default")
        await limit(world, "running_per_tenant", 1)
        mine, theirs = await world.start("r1", thread="a"), await other.start("r1", thread="a")
        await _wait_in_line(world, "mine")
        await _wait_in_line(other, "theirs")
        ended = await other.finish(theirs, said("x"))
        found = set(submitted(ended.effects))
        while found and (await other.run("theirs", "theirs")).status is RunStatus.QUEUED:
            claims = await world.runs.claim("w", await _refs(world, other, found))
            found = {run for claim in claims for run in submitted(claim.effects)} or found
        assert (await other.status("theirs", "theirs")) is RunStatus.RUNNING
        assert "mine" in submitted((await world.finish(mine, said("x"))).effects)
        await world.take("mine", thread="mine")
        await other.backend.close()

    async def test_a_limit_that_is_raised_or_cleared_lets_go(self, world: World) -> None:
        await limit(world, "running_per_tenant", 0)
        for n in range(3):
            await _wait_in_line(world, f"r{n}")
        await limit(world, "running_per_tenant", 2)
        assert submitted(await world.backend.limits.review_limits()) == ["r0", "r1"]
        await world.backend.limits.clear_limit("running_per_tenant")
        assert submitted(await world.backend.limits.review_limits()) == ["r0", "r1", "r2"]
        for n in range(3):
            await world.take(f"r{n}", thread=f"r{n}")
        assert submitted(await world.backend.limits.review_limits()) == []

    async def test_run_that_cannot_be_claimed_leaves_the_line_to_others(self, world: World) -> None:
        """R16: A run of a paused queue does not block the runs behind it."""
        await limit(world, "running_per_tenant", 1)
        attempt = await world.start("r")
        await _wait_in_line(world, "paused", queue="other")
        await _wait_in_line(world, "next")
        await world.backend.queues.pause("other")
        assert submitted((await world.finish(attempt, said("x"))).effects) == ["paused"]
        claim = await world.claim("paused", thread="paused")
        assert (claim.outcome, submitted(claim.effects)) == ("paused", ["next"])
        await world.take("next", thread="next")

    async def test_a_takeover_keeps_its_permit(self, world: World) -> None:
        await limit(world, "running_per_tenant", 1)
        await world.start("r1")
        await world.hire("w2")
        await world.bury("w")
        assert (await world.claim("r1", worker="w2")).takeover


async def _wait_in_line(world: World, run_id: str, **fields: object) -> None:
    await world.accept(run_id, thread=run_id, **fields)  # type: ignore[arg-type]
    claim = await world.claim(run_id, thread=run_id)
    assert claim.outcome == "limited", claim


async def _served(world: World, attempt: AttemptToken) -> list[str]:
    """End ``attempt`` and each following run, until no run waits. Return the run ids in the order in which the runs start."""
    order = []
    while jobs := (await world.finish(attempt, said("x"))).effects.jobs:
        [job] = jobs
        order.append(job.run_id)
        (claim,) = await world.runs.claim("w", [job.ref])
        assert claim.attempt is not None, claim
        attempt = claim.attempt
    return order


async def _refs(one: World, other: World, runs: Sequence[str] | set[str]) -> list[RunRef]:
    return [await (one if run == "mine" else other).ref(run, run) for run in runs]
