"""Usage of runs by the day of their end. Each run counts once, even after a redrive or a deletion."""

from __future__ import annotations

from datetime import UTC, date, timedelta

import pytest

from runyard import errors
from runyard.domain.usage_report import UsageDay, UsageReport, UsageTotal
from runyard.models import ErrorInfo, HitlRequest, Usage
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest, Write
from runyard.ports.workers import Retention

from .world import T, World, now, said, user

pytestmark = pytest.mark.asyncio

USED = Usage(requests=2, input_tokens=30, output_tokens=4, cost=0.25, seconds=1.5)
OTHER = Usage(requests=1, input_tokens=5, output_tokens=1, cost=0.5, seconds=0.25)
PEAK = Usage(requests=2, input_tokens=30, output_tokens=4, cost=0.5, seconds=1.5)
"""For each amount, the larger of the values in USED and OTHER."""
WORSE = Usage(requests=-1)
WRONG = ErrorInfo(code="x", message="x")


async def asked(world: World, agent: str | None = None) -> UsageReport:
    """Return the report from yesterday to tomorrow, because a test may run over midnight."""
    today = now().date()
    return await world.backend.usage.report(today - timedelta(days=1), today + timedelta(days=1), agent=agent)


async def total(world: World, agent: str | None = None) -> UsageTotal:
    """Return the totals of all days."""
    await world.count()
    return (await asked(world, agent)).total


async def thread_usage(world: World) -> Usage:
    thread = await world.threads.thread(T)
    assert thread is not None
    return thread.usage


def of(runs: int, *used: Usage) -> UsageTotal:
    return UsageTotal(runs=runs, **sum(used, start=Usage()).model_dump())


class TestUsage:
    async def test_every_end_counts(self, world: World) -> None:
        await world.turn("completed", usage=USED)
        await world.turn("free")
        await world.runs.fail(Write(attempt=await world.start("failed"), usage=OTHER), WRONG)
        await world.accept("cancelled")
        await world.runs.cancel(T, "cancelled")
        assert await total(world) == of(4, USED, OTHER)
        await world.accept("dead")
        await world.crash("dead", 3)
        await world.claim("dead", worker="last")
        await world.checkpointer.claim_run(T, "external")
        await world.checkpointer.mark_run_complete(T, "external")
        assert await total(world) == of(6, USED, OTHER)

    async def test_a_run_counts_when_it_ends(self, world: World) -> None:
        """A run counts when it ends. Usage from before a suspension is included."""
        attempt = await world.start("r1")
        await world.ask(attempt, HitlRequest(request_id="q"), usage=USED)
        await world.store("apart", thread="u")
        assert await total(world) == of(0)
        await world.runs.respond("yes", request_id="q")
        await world.finish(await world.take("r1"), said("done"), usage=OTHER)
        assert await total(world) == of(1, USED, OTHER)

    async def test_usage_of_an_attempt_before_a_retry_counts_once(self, world: World) -> None:
        """The usage of an attempt that ends with a release counts. A repeated release counts once."""
        attempt = await world.start("r1")
        for _ in range(2):
            await world.runs.release(attempt, error=WRONG, usage=USED)
        await world.runs.release(await world.take("r1"), usage=OTHER)
        assert (await world.run("r1")).usage == USED + OTHER
        assert await total(world) == of(0)
        await world.runs.release(await world.take("r1"))
        await world.finish(await world.take("r1"), said("done"), usage=OTHER)
        assert (await world.run("r1")).usage == USED + OTHER + OTHER
        assert await total(world) == of(1, USED, OTHER, OTHER)

    async def test_usage_counts_with_the_messages_and_steps_of_an_attempt(self, world: World) -> None:
        """Each write carries the total usage of the attempt at the time of the write. The stored usage is raised to this total,
        amount by amount. A repeated or late write therefore changes nothing."""
        attempt = await world.start("r1")
        message = said("a")
        for stated, counted in ((OTHER, OTHER), (USED, PEAK), (OTHER, PEAK)):
            await world.runs.append(attempt, [message], first_event=2, usage=stated)
            assert (await world.run("r1")).usage == counted
        for _ in range(2):
            await world.runs.finish_step(attempt, "s", 1, usage=USED + OTHER)
            assert (await world.run("r1")).usage == USED + OTHER
        await world.runs.finish_step(attempt, "s2", 1)
        await world.runs.append(attempt, [said("b")], first_event=3)
        for call in (
            world.runs.append(attempt, [said("c")], usage=WORSE),
            world.runs.finish_step(attempt, "s3", 1, usage=WORSE),
        ):
            with pytest.raises(errors.InvalidInputError):
                await call
        assert await world.texts() == ["hi", "a", "b"]
        await world.bury()
        await world.finish(await world.take("r1", worker="v"), said("done"), usage=OTHER)
        assert await total(world) == of(1, USED, OTHER, OTHER)
        assert await thread_usage(world) == (await world.run("r1")).usage == USED + OTHER + OTHER

    @pytest.mark.parametrize("ends", ["cancelled", "kept", "dead"])
    async def test_usage_of_a_lost_attempt_counts_if_no_other_follows(self, world: World, ends: str) -> None:
        attempt = await world.start("r1")
        await world.runs.append(attempt, [said("a")], first_event=2, usage=USED)
        if ends == "dead":
            await world.bury()
            await world.crash("r1", 2)
        else:
            await world.runs.cancel(T, "r1", keep=ends == "kept")
            await world.bury()
        await world.claim("r1", worker="last")
        assert (await world.run("r1")).status == ("dead" if ends == "dead" else "cancelled")
        assert await total(world) == of(1, USED)
        assert await thread_usage(world) == (USED if ends == "kept" else Usage())

    @pytest.mark.parametrize("verb", ["complete", "fail", "suspend", "release", "release from outside"])
    async def test_usage_of_a_cancelled_attempt_counts(self, world: World, verb: str) -> None:
        """I8: The usage of a cancelled attempt counts. Nothing else of the attempt's last write is stored."""
        attempt = await world.start("r1")
        await world.runs.cancel(T, "r1")
        write = Write(attempt=attempt, messages=[said("late")], usage=USED)
        for _ in range(2):
            match verb:
                case "complete":
                    await world.runs.complete([write])
                case "fail":
                    await world.runs.fail(write, WRONG)
                case "suspend":
                    await world.runs.suspend(write, [HitlRequest(request_id="q")])
                case "release":
                    await world.runs.release(attempt, usage=USED)
                case _:
                    await world.runs.release(attempt, first_event=None, usage=USED)
        run = await world.run("r1")
        assert (run.status, run.usage) == ("cancelled", USED)
        assert await world.texts() == []
        assert await total(world) == of(1, USED)

    async def test_usage_that_is_no_amount_releases_nothing(self, world: World) -> None:
        attempt = await world.start("r1")
        with pytest.raises(errors.InvalidInputError):
            await world.runs.release(attempt, usage=Usage(requests=-1))
        assert await world.status("r1") == "running"

    @pytest.mark.parametrize("counted_between", [True, False])
    async def test_a_run_that_is_redriven_counts_once(self, world: World, counted_between: bool) -> None:
        await world.runs.fail(Write(attempt=await world.start("r1"), usage=USED), WRONG)
        for _ in range(2):
            if counted_between:
                await world.count()
            await world.runs.redrive(T, "r1")
            await world.runs.fail(Write(attempt=await world.take("r1"), usage=OTHER), WRONG)
        await world.runs.redrive(T, "r1")
        await world.finish(await world.take("r1"), said("done"))
        assert (await world.run("r1")).usage == USED + OTHER + OTHER
        assert await total(world) == of(1, USED, OTHER, OTHER)

    async def test_a_repeated_end_counts_once(self, world: World) -> None:
        attempt = await world.start("r1")
        for _ in range(2):
            await world.finish(attempt, said("done"), usage=USED)
            await world.count()
        assert await total(world) == of(1, USED)

    @pytest.mark.parametrize("counted_before", [True, False])
    async def test_deletion_changes_no_total(self, world: World, counted_before: bool) -> None:
        await world.turn("r1", usage=USED)
        await world.runs.fail(Write(attempt=await world.start("r2"), usage=OTHER), WRONG)
        if counted_before:
            await world.count()
        await world.runs.delete_run(T, "r2")
        await world.threads.erase_thread(T)
        assert await total(world) == of(2, USED, OTHER)

    async def test_usage_of_a_run_that_deletion_cancels_counts(self, world: World) -> None:
        await world.ask(await world.start("r1"), HitlRequest(), usage=USED)
        await world.threads.delete_thread(T, cancel=True)
        assert await total(world) == of(1, USED)

    async def test_usage_of_a_run_without_an_agent_is_of_the_default_agent(self, world: World) -> None:
        """The usage of a run without an agent counts for the agent ``default``. Limits per agent also count such a run for
        ``default``."""
        await world.turn("r1", thread="one", agent="writer", usage=USED)
        await world.turn("r2", thread="two", agent="writer", usage=USED)
        await world.turn("r3", thread="three", usage=OTHER)
        assert await total(world) == of(3, USED, USED, OTHER)
        assert await total(world, "writer") == of(2, USED, USED)
        assert await total(world, "default") == of(1, OTHER)
        assert await total(world, "nobody") == of(0)
        assert (await asked(world, "writer")).agent == "writer"

    async def test_a_run_that_no_worker_took_is_of_no_agent(self, world: World) -> None:
        """A run that no worker claimed counts for no agent. A caller could name any agent."""
        await world.accept("r1", agent="invented")
        await world.runs.cancel(T, "r1")
        assert await total(world) == of(1)
        assert await total(world, "invented") == of(0)

    async def test_tenants_are_counted_apart(self, world: World) -> None:
        """A1: No tenant sees another tenant's usage."""
        other = World(await world.factory(tenant="other"), world.factory)
        await world.turn("r1", usage=USED)
        assert await total(other) == of(0)
        await other.turn("r1", usage=OTHER)
        assert await total(other) == of(1, OTHER)
        assert await total(world) == of(1, USED)
        await other.backend.close()

    async def test_jobs_count(self, world: World) -> None:
        await world.turn("r1", usage=USED)
        fork = ForkRequest(src=T, new="probe", cut=Cut(after_run_id="r1"))
        await world.runs.accept(AcceptRequest(thread_id=T, run_id="probe", kind="fork_once", fork=fork, input=user("?")))
        await world.finish(await world.take("probe"), result={"text": "!"}, usage=OTHER)
        await world.fork("child", after_run_id="r1", options={"reset_usage": False})
        assert await total(world) == of(2, USED, OTHER)

    async def test_usage_days_are_utc_and_include_both_ends(self, world: World) -> None:
        """Days are in UTC. The report lists each day, including the first and the last."""
        await world.turn("r1", usage=USED)
        finished = (await world.run("r1")).finished_at
        assert finished is not None
        await world.count()
        day, one = finished.astimezone(UTC).date(), timedelta(days=1)
        used = UsageDay(day=day, runs=1, **USED.model_dump())
        found = await world.backend.usage.report(day - one, day + one)
        assert found.days == [UsageDay(day=day - one), used, UsageDay(day=day + one)]
        assert (found.since, found.until, found.agent) == (day - one, day + one, None)
        assert found.counted_until is not None and found.counted_until >= finished
        assert (await world.backend.usage.report(day, day)).days == [used]
        for before in (day - one, day + one):
            elsewhere = await world.backend.usage.report(before, before)
            assert elsewhere.total == of(0) and elsewhere.days == [UsageDay(day=before)]

    async def test_the_last_30_days_are_usual(self, world: World) -> None:
        await world.turn("r1", usage=USED)
        await world.count()
        found = await world.backend.usage.report()
        assert (len(found.days), found.total) == (30, of(1, USED))
        assert abs(found.until - now().date()) <= timedelta(days=1)
        assert (await world.backend.usage.report(until=date(2024, 3, 1))).since == date(2024, 2, 1)
        assert (await world.backend.usage.report(found.until)).days == found.days[-1:]

    async def test_a_report_is_bounded(self, world: World) -> None:
        assert len((await world.backend.usage.report(date(2024, 1, 1), date(2024, 12, 31))).days) == 366
        for since, until in (
            (date(2024, 1, 1), date(2025, 1, 1)),
            (date(2024, 1, 2), date(2024, 1, 1)),
            (date(2024, 1, 1), None),
            (date(8000, 1, 1), None),
        ):
            with pytest.raises(errors.InvalidInputError):
                await world.backend.usage.report(since, until)

    async def test_amounts_of_any_size(self, world: World) -> None:
        most = 2**63 - 1
        for n in range(3):
            await world.turn(f"r{n}", usage=Usage(requests=1, input_tokens=most))
        assert (await total(world)).input_tokens == 3 * most

    async def test_counted_in_parts(self, world: World) -> None:
        """``count`` counts a limited number of feed entries, and the next call continues after them."""
        other = World(await world.factory(tenant="other"), world.factory)
        for each in (world, other):
            for n in range(4):
                await each.turn(f"r{n}", usage=USED)
        for _ in range(20):
            await world.backend.usage.count(1)
        for each in (world, other):
            assert await total(each) == of(4, *[USED] * 4)
        await other.backend.close()

    async def test_run_that_is_not_counted_is_not_pruned(self, world: World) -> None:
        for n in range(3):
            await world.turn(f"r{n}", usage=USED)
            await world.workers.prune(Retention(feed=timedelta(0)))
        assert await total(world) == of(3, USED, USED, USED)
        await world.workers.prune(Retention(feed=timedelta(0)))
        assert (await world.backend.feed.read()).items == []
        assert await total(world) == of(3, USED, USED, USED)
