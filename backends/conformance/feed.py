"""The feed: what was committed, in order, from any cursor (semantics: E5); and how long things are kept (design 3.5)."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from runner import errors
from runner.exchange import AcceptRequest, Cut, ForkRequest, Retention
from runner.models import ErrorInfo, FeedEntry

from .world import T, World, said, user

pytestmark = pytest.mark.asyncio


async def entries(world: World, cursor: str | None = None) -> list[FeedEntry]:
    """All that the feed has after ``cursor``."""
    found: list[FeedEntry] = []
    page = await world.backend.feed.read(cursor, limit=3)
    while page.items:
        found += page.items
        page = await world.backend.feed.read(page.next, limit=3)
    return found


async def told(world: World, cursor: str | None = None) -> list[tuple[str, str, str | None]]:
    return [(entry.type, entry.thread_id, entry.run_id) for entry in await entries(world, cursor)]


class TestFeed:
    async def test_what_is_told(self, world: World) -> None:
        """E5: run ended or suspended, message stored, thread forked, thread deleted."""
        await world.turn("r1")
        await world.failed("r2")
        await world.accept("r3")
        await world.runs.cancel(T, "r3")
        await world.store("plain")
        await world.checkpointer.append(T, [user("appended")])
        request = await world.suspended("r4")
        await world.runs.respond("yes", thread_id=T, request_id=request)
        await world.runs.release(await world.take("r4"), error=ErrorInfo(code="x", message="x"))
        await world.finish(await world.take("r4"), said("done"))
        await world.fork("child", after_run_id="r1")
        await world.threads.delete_thread("child")
        assert await told(world) == [
            ("run.completed", T, "r1"),
            ("run.failed", T, "r2"),
            ("run.cancelled", T, "r3"),
            ("message.stored", T, None),
            ("message.stored", T, None),
            ("run.suspended", T, "r4"),
            ("run.completed", T, "r4"),
            ("thread.forked", "child", None),
            ("thread.deleted", "child", None),
        ]

    async def test_any_entry_continues_the_feed(self, world: World) -> None:
        """E5: cursors are JSON, name a place, and stay valid."""
        for n in range(5):
            await world.store(f"m{n}", thread=f"t{n}")
        found = await entries(world)
        assert [entry.thread_id for entry in found] == [f"t{n}" for n in range(5)]
        assert len({entry.cursor for entry in found}) == 5
        for n, entry in enumerate(found):
            assert await entries(world, json.loads(json.dumps(entry.cursor))) == found[n + 1 :]

    async def test_the_end_is_a_place_too(self, world: World) -> None:
        """E5: what comes after an empty page is not missed."""
        empty = await world.backend.feed.read()
        assert empty.items == [] and empty.next is not None
        await world.store("one")
        assert await told(world, empty.next) == [("message.stored", T, None)]
        behind = await world.backend.feed.read(empty.next, limit=10)
        assert await told(world, behind.next) == []
        await world.store("two")
        assert len(await told(world, behind.next)) == 1

    async def test_a_refused_verb_tells_nothing(self, world: World) -> None:
        attempt = await world.start("r1")
        with pytest.raises(errors.ThreadBusyError):
            await world.store("no")
        with pytest.raises(errors.ThreadBusyError):
            await world.threads.delete_thread(T)
        assert await told(world) == []
        await world.finish(attempt, said("x"))
        await world.finish(attempt, said("x"))
        assert await told(world) == [("run.completed", T, "r1")]

    async def test_tenants_have_feeds_of_their_own(self, world: World) -> None:
        other = World(await world.factory(tenant="other"), world.factory)
        await world.store("mine")
        await other.store("theirs", thread="u")
        assert await told(world) == [("message.stored", T, None)]
        assert await told(other) == [("message.stored", "u", None)]
        await other.backend.close()

    @pytest.mark.parametrize(
        "cursor", ["", "x", "W10=", "WyJhIiwgMV0=", "Wy0xLCAtMV0=", "WzkyMjMzNzIwMzY4NTQ3NzU4MDgsIDBd", "bnVsbA=="]
    )
    async def test_what_is_no_cursor(self, world: World, cursor: str) -> None:
        with pytest.raises(errors.InvalidCursorError):
            await world.backend.feed.read(cursor)


class TestPruning:
    async def test_a_cursor_before_what_was_pruned_is_refused(self, world: World) -> None:
        """E5: never silent loss."""
        start = (await world.backend.feed.read()).next
        await world.store("one")
        await world.store("two")
        first, second = await entries(world)
        await world.count()
        assert not await world.workers.prune(Retention())
        assert await entries(world) == [first, second]
        assert await world.workers.prune(Retention(feed=timedelta(0)), limit=1)
        assert await entries(world) == [second] == await entries(world, first.cursor)
        with pytest.raises(errors.CursorExpiredError):
            await world.backend.feed.read(start)
        assert not await world.workers.prune(Retention(feed=timedelta(0)), limit=2)
        await world.store("three")
        assert len(await entries(world)) == 1 == len(await entries(world, second.cursor))
        with pytest.raises(errors.CursorExpiredError):
            await world.backend.feed.read(first.cursor)

    async def test_tenants_are_pruned_together_and_apart(self, world: World) -> None:
        other = World(await world.factory(tenant="other"), world.factory)
        start = (await other.backend.feed.read()).next
        for each in (world, other):
            await each.store("one")
        await world.count()
        assert await world.workers.prune(Retention(feed=timedelta(0)), limit=1)
        assert await told(world) == [] and len(await told(other, start)) == 1
        await world.workers.prune(Retention(feed=timedelta(0)), limit=1)
        assert await told(other) == []
        await other.backend.close()

    async def test_results_of_fork_jobs_expire(self, world: World) -> None:
        """design 3.5: a result is kept for its time; the run stays, and with it its id (R2)."""
        await world.turn("r1")
        request = ForkRequest(src=T, new="probe", cut=Cut(after_run_id="r1"))
        probe = AcceptRequest(thread_id=T, run_id="probe", kind="fork_once", fork=request, input=user("?"))
        await world.runs.accept(probe)
        await world.finish(await world.take("probe"), result={"text": "!"})
        await world.turn("r2")
        await world.workers.prune(Retention())
        assert (await world.run("probe")).result == {"text": "!"}
        await world.workers.prune(Retention(results=timedelta(0)))
        expired = await world.run("probe")
        assert expired.result is None and expired.ended
        assert not (await world.runs.accept(probe)).created
        assert await world.texts() == ["r1?", "r1!", "r2?", "r2!"]

    async def test_dead_workers_are_forgotten(self, world: World) -> None:
        """A row that goes says no less than a row that is dead: the worker must start afresh."""
        attempt = await world.start("r1")
        await world.hire("alive")
        await world.bury("w")
        await world.workers.prune(Retention())
        assert {worker.worker_id for worker in await world.workers.workers()} == {"w", "alive"}
        await world.workers.prune(Retention(workers=timedelta(0)))
        assert [worker.worker_id for worker in await world.workers.workers()] == ["alive"]
        with pytest.raises(errors.WorkerDeadError):
            await world.workers.beat("w")
        claim = await world.claim("r1", worker="alive")
        assert claim.takeover and claim.attempt is not None and claim.attempt.fence > attempt.fence
