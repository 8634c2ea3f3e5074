"""The feed: committed events in order, reads from any cursor, and the retention (E5)."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from runyard import errors
from runyard.models import ErrorInfo, FeedEntry
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest
from runyard.ports.queries import PageRequest
from runyard.ports.workers import Retention

from .world import T, World, said, user

pytestmark = pytest.mark.asyncio


async def entries(world: World, cursor: str | None = None) -> list[FeedEntry]:
    """Return all entries of the feed after ``cursor``."""
    found: list[FeedEntry] = []
    page = await world.backend.feed.read(PageRequest(limit=3, cursor=cursor))
    while page.items:
        found += page.items
        page = await world.backend.feed.read(PageRequest(limit=3, cursor=page.next))
    return found


async def reported(world: World, cursor: str | None = None) -> list[tuple[str, str, str | None]]:
    return [(entry.type, entry.thread_id, entry.run_id) for entry in await entries(world, cursor)]


class TestFeed:
    async def test_entries_say_what_was_forked_and_which_messages_a_run_has(self, world: World) -> None:
        """E5, F2: An entry of a fork has its source and its cut. An entry of a run has the run's messages."""
        await world.turn("r1")
        await world.turn("r2")
        await world.fork("child", after_run_id="r1")
        first, second, forked = await entries(world)
        stored = await world.messages()
        assert (first.first_seq, first.last_seq, first.last_message_id) == (1, 2, stored[1].id)
        assert (second.first_seq, second.last_seq, second.last_message_id) == (3, 4, stored[3].id)
        assert (forked.parent_thread_id, forked.forked_after_run_id, forked.forked_at_seq) == (T, "r1", 2)
        assert forked.last_message_id is None and first.parent_thread_id is None
        await world.threads.delete_thread("child")
        assert (await entries(world))[2].parent_thread_id is None

    async def test_feed_has_every_type_of_entry(self, world: World) -> None:
        """E5: The feed reports ended and suspended runs, stored messages, forked threads and deleted threads."""
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
        assert await reported(world) == [
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
        """E5: The cursor of each entry continues the feed after that entry. The cursor can be stored as JSON and stays
        valid."""
        for n in range(5):
            await world.store(f"m{n}", thread=f"t{n}")
        found = await entries(world)
        assert [entry.thread_id for entry in found] == [f"t{n}" for n in range(5)]
        assert len({entry.cursor for entry in found}) == 5
        for n, entry in enumerate(found):
            assert await entries(world, json.loads(json.dumps(entry.cursor))) == found[n + 1 :]

    async def test_feed_continues_from_the_cursor_of_an_empty_page(self, world: World) -> None:
        """E5: A read from the cursor of an empty page misses no later entry."""
        empty = await world.backend.feed.read()
        assert empty.items == [] and empty.next is not None
        await world.store("one")
        assert await reported(world, empty.next) == [("message.stored", T, None)]
        behind = await world.backend.feed.read(PageRequest(limit=10, cursor=empty.next))
        assert await reported(world, behind.next) == []
        await world.store("two")
        assert len(await reported(world, behind.next)) == 1

    async def test_a_refused_verb_tells_nothing(self, world: World) -> None:
        attempt = await world.start("r1")
        with pytest.raises(errors.ThreadBusyError):
            await world.store("no")
        with pytest.raises(errors.ThreadBusyError):
            await world.threads.delete_thread(T)
        assert await reported(world) == []
        await world.finish(attempt, said("x"))
        await world.finish(attempt, said("x"))
        assert await reported(world) == [("run.completed", T, "r1")]

    async def test_tenants_have_feeds_of_their_own(self, world: World) -> None:
        other = World(await world.factory(tenant="other"), world.factory)
        await world.store("mine")
        await other.store("theirs", thread="u")
        assert await reported(world) == [("message.stored", T, None)]
        assert await reported(other) == [("message.stored", "u", None)]
        await other.backend.close()

    @pytest.mark.parametrize(
        "cursor", ["", "x", "W10=", "WyJhIiwgMV0=", "Wy0xLCAtMV0=", "WzkyMjMzNzIwMzY4NTQ3NzU4MDgsIDBd", "bnVsbA=="]
    )
    async def test_feed_refuses_a_cursor_that_is_none(self, world: World, cursor: str) -> None:
        with pytest.raises(errors.InvalidCursorError):
            await world.backend.feed.read(PageRequest(cursor=cursor))


class TestPruning:
    async def test_a_cursor_before_what_was_pruned_is_refused(self, world: World) -> None:
        """E5: A cursor before pruned entries is refused, so that the reader notices the loss."""
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
            await world.backend.feed.read(PageRequest(cursor=start))
        assert not await world.workers.prune(Retention(feed=timedelta(0)), limit=2)
        await world.store("three")
        assert len(await entries(world)) == 1 == len(await entries(world, second.cursor))
        with pytest.raises(errors.CursorExpiredError):
            await world.backend.feed.read(PageRequest(cursor=first.cursor))

    async def test_tenants_are_pruned_together_and_apart(self, world: World) -> None:
        other = World(await world.factory(tenant="other"), world.factory)
        start = (await other.backend.feed.read()).next
        for each in (world, other):
            await each.store("one")
        await world.count()
        assert await world.workers.prune(Retention(feed=timedelta(0)), limit=1)
        assert await reported(world) == [] and len(await reported(other, start)) == 1
        await world.workers.prune(Retention(feed=timedelta(0)), limit=1)
        assert await reported(other) == []
        await other.backend.close()

    async def test_results_of_fork_jobs_expire(self, world: World) -> None:
        """D4: The result of a fork job is deleted after its retention. The run and its id stay."""
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
        """A worker whose row was deleted counts as dead. The store refuses its heartbeat, and other workers take over its
        runs."""
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
