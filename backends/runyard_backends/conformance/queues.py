"""Queues: their waiting runs, and pausing (W8, R12)."""

from __future__ import annotations

import pytest

from runyard import errors
from runyard.domain.limits import Limit
from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo, HitlRequest
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest
from runyard.ports.queries import PageRequest
from runyard.ports.workers import QueueInfo, WorkerInfo

from ..cursors import encode
from .children import child, start_child
from .waits import park, signal, sleep
from .world import T, World, eventually

pytestmark = pytest.mark.asyncio


async def facts(world: World, queue: str = "default") -> QueueInfo:
    (found,) = [info for info in (await world.backend.queues.queues()).items if info.queue == queue]
    return found


class TestQueues:
    async def test_queue_list_of_an_empty_store_is_empty(self, world: World) -> None:
        assert (await world.backend.queues.queues()).items == []

    async def test_queue_counts_the_runs_that_wait(self, world: World) -> None:
        """A queue counts the due runs of all tenants that wait for their lane or for a worker. It counts neither running runs
        nor runs that are not due."""
        other = World(await world.factory(tenant="b"), world.factory)
        await other.accept("r", thread="b")
        await world.start("running")
        for n in range(3):
            await world.accept(f"behind{n}")
        await world.accept("late", thread="late", delay=3600)
        await world.suspended("asks", thread="asks")
        await world.runs.release(await world.start("retried", thread="retried"), delay=3600)
        await world.accept("elsewhere", thread="u", queue="gpu")
        found = await facts(world)
        assert (found.queued, found.deepest, found.suspended, found.workers) == (4, 3, 1, 1)
        assert (found.waiting, found.running, found.scheduled) == (1, 1, 2)
        assert found.oldest is not None and 0 <= found.oldest < 60 and found.paused_at is None
        gpu = await facts(world, "gpu")
        assert (gpu.queued, gpu.waiting, gpu.deepest, gpu.suspended, gpu.workers) == (1, 1, 1, 0, 0)
        assert [info.queue for info in (await world.backend.queues.queues()).items] == ["default", "gpu"]

    async def test_a_queue_tells_what_its_suspended_runs_wait_for(self, world: World) -> None:
        """A run with a pending request counts as waiting for a human, even if it also has other waits. A suspended run that was
        queued again does not count."""
        await world.suspended("asks", thread="asks")
        for thread, *waits in (
            ("sleeps", sleep(timeout=60), signal()),
            ("listens", signal(timeout=60), sleep(timeout=60)),
            ("both", sleep(timeout=60)),
            ("woken", signal()),
        ):
            attempt = await world.start("r", thread=thread)
            await park(world, attempt, *waits, asks=HitlRequest() if thread == "both" else None)
        attempt = await world.start("r", thread="starts")
        await start_child(world, attempt, queue="gpu")
        await park(world, attempt, child())
        await world.runs.signal("woken", "paid", 1, signal_id="s")
        found = await facts(world)
        assert (found.suspended, found.waits_for) == (5, {"human": 2, "timer": 1, "signal": 1, "child": 1})
        assert (await facts(world, "gpu")).waits_for == {}

    async def test_run_that_waits_for_something_else_does_not_wait_for_a_worker(self, world: World) -> None:
        """A run may wait for a permit, for an earlier run of its lane, or for the run at its cut. Such a run does not count as
        waiting for a worker."""
        await world.backend.limits.set_limit(Limit(name="running_per_tenant", most=1))
        await world.start("running")
        await world.accept("without permit", thread="u")
        await world.claim("without permit", thread="u")
        await world.backend.limits.clear_limit("running_per_tenant")
        fork = ForkRequest(src=T, new="fork", cut=Cut(after_run_id="running"))
        job = AcceptRequest(thread_id=T, run_id="job", kind="fork", fork=fork)
        await world.runs.accept(job)
        found = await facts(world)
        assert (found.queued, found.waiting, found.running) == (2, 0, 1)

    async def test_the_oldest_waits_since_it_last_came_to_the_queue(self, world: World) -> None:
        attempt = await world.start("r1")
        assert (await facts(world)).oldest is None
        await world.runs.release(attempt, error=ErrorInfo(code="x", message="x"))

        async def waits() -> bool:
            oldest = (await facts(world)).oldest
            return oldest is not None and oldest >= 0.02

        await eventually(waits)

    async def test_queue_that_only_a_caller_named_has_no_label(self, world: World) -> None:
        """A2: A queue is listed by name in three cases: a live worker serves it, a worker has registered an agent with it, or
        it is paused."""

        async def known() -> set[str]:
            return {info.queue for info in (await world.backend.queues.queues()).items if info.known}

        for queue in ("invented", "served", "agents", "paused"):
            await world.accept("r", thread=queue, queue=queue)
        assert await known() == set()
        await world.workers.register(WorkerInfo(worker_id="w", queues=["served"], agents={"writer": "agents"}))
        await world.backend.queues.pause("paused")
        assert await known() == {"served", "agents", "paused"}
        await world.bury("w")
        assert await known() == {"agents", "paused"}

    async def test_queues_are_listed_a_page_at_a_time(self, world: World) -> None:
        """A3: A page begins after the name of the previous page's last queue. This queue need not exist any more."""
        queues = world.backend.queues
        for queue in ("e", "a", "Z", "ä", "c"):
            await queues.pause(queue)
        await world.accept("r", queue="b")

        async def page(cursor: str | None = None, **fields: bool) -> tuple[str, str | None]:
            found = await queues.queues(PageRequest(limit=2, cursor=cursor), **fields)
            return "".join(info.queue for info in found.items), found.next

        names, first = await page()
        assert names == "Za"
        await queues.resume("a")
        names, second = await page(first)
        assert names == "bc"
        assert await page(second) == ("eä", None)
        names, known = await page(first, known=True)
        assert names == "ce" and await page(known, known=True) == ("ä", None)
        whole = await queues.queues()
        assert ["".join(info.queue for info in whole.items), whole.next] == ["Zbceä", None]
        for wrong in ("x", encode(1), encode("a\0"), encode("\ud800"), encode(["a"])):
            with pytest.raises(errors.InvalidCursorError):
                await page(wrong)

    async def test_workers_that_drain_or_died_serve_nothing(self, world: World) -> None:
        for worker in ("w", "v"):
            await world.workers.register(WorkerInfo(worker_id=worker, queues=["a"]))
        await world.workers.drain("w")
        assert (await facts(world, "a")).workers == 1
        await world.bury("v")
        await world.workers.leave("w")
        assert (await world.backend.queues.queues()).items == []

    async def test_a_paused_queue_accepts_and_no_worker_claims(self, world: World) -> None:
        """R12: After the return of ``pause``, the queue accepts runs, but no worker claims them. ``explain`` names the
        pause."""
        since = await world.backend.queues.pause("default")
        assert await world.backend.queues.pause("default") == since
        await world.accept("r1")
        claim = await world.claim("r1")
        assert (claim.outcome, claim.attempt) == ("paused", None)
        assert await world.status("r1") is RunStatus.QUEUED
        assert (await world.runs.explain(T, "r1")).startswith(f"queue default is paused since {since:%Y-%m-%d}")
        assert (await facts(world)).paused_at == since
        await world.accept("elsewhere", thread="u", queue="gpu")
        assert (await world.claim("elsewhere", thread="u")).outcome == "claimed"
        assert await world.backend.queues.resume("default")
        assert not await world.backend.queues.resume("default")
        assert (await world.claim("r1")).outcome == "claimed"

    async def test_a_paused_queue_lets_runs_go_on_and_end(self, world: World) -> None:
        """R12: Running runs of a paused queue continue. The worker of a run dies. ``explain`` then says that the queue of the
        run is paused. A cancel ends this run."""
        running = await world.start("r1")
        await world.start("r2", thread="u")
        since = await world.backend.queues.pause("default")
        assert (await world.finish(running)).status is RunStatus.COMPLETED
        assert "paused" not in await world.runs.explain("u", "r2")
        await world.bury()
        await world.hire("v")
        why = await world.runs.explain("u", "r2")
        assert why.startswith(
            f"lost its worker w; another worker will take it over; queue default is paused since {since:%Y-%m-%d}"
        )
        assert (await world.claim("r2", thread="u", worker="v")).outcome == "paused"
        await world.runs.cancel("u", "r2")
        assert (await world.claim("r2", thread="u", worker="v")).outcome == "ended"
        assert await world.status("r2", "u") is RunStatus.CANCELLED

    async def test_workers_hear_of_pauses_and_drains_with_their_heartbeat(self, world: World) -> None:
        await world.hire()
        standing = await world.workers.beat("w")
        assert (standing.draining, standing.paused, standing.fits) == (False, frozenset(), True)
        await world.backend.queues.pause("a")
        await world.workers.drain("w")
        standing = await world.workers.beat("w")
        assert (standing.draining, standing.paused) == (True, frozenset({"a"}))
        with pytest.raises(errors.WorkerDeadError):
            await world.workers.drain("nobody")

    async def test_names_are_checked(self, world: World) -> None:
        with pytest.raises(errors.InvalidInputError):
            await world.backend.queues.pause("")
