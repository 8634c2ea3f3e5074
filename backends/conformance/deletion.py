"""Deleting and erasing threads (design 3.1)."""

from __future__ import annotations

import pytest

from runner import errors
from runner.states import RunStatus

from .world import T, World, said, user

pytestmark = pytest.mark.asyncio


class TestDeletion:
    async def test_deleted_thread_is_gone(self, world: World) -> None:
        await world.turn("r1")
        await world.suspended("r2")
        await world.threads.delete_thread(T, cancel=True)
        assert await world.threads.thread(T) is None and await world.checkpointer.load(T) is None
        assert await world.runs.run(T, "r1") is None
        assert (await world.runs.runs()).items == [] and (await world.runs.requests(pending=False)).items == []
        assert (await world.threads.threads()).items == []
        for gone in (world.messages(), world.leaves(), world.fork("c"), world.threads.delete_thread(T)):
            with pytest.raises(errors.ThreadNotFoundError):
                await gone

    async def test_forks_keep_what_they_see(self, world: World) -> None:
        """Never a child that loses history; never a foreign-key error."""
        await world.turn("r1")
        await world.fork("c", after_run_id="r1")
        await world.turn("c1", thread="c")
        await world.fork("d", src="c", after_run_id="c1")
        before = {thread: await world.messages(thread) for thread in ("c", "d")}
        await world.threads.delete_thread(T)
        assert {thread: await world.messages(thread) for thread in ("c", "d")} == before
        await world.threads.delete_thread("c")
        assert await world.messages("d") == before["d"]
        thread = await world.threads.thread("d")
        assert thread is not None and thread.parent_thread_id == "c"

    async def test_forks_can_be_forked_after_the_deletion(self, world: World) -> None:
        """Run ids and completion numbers of visible runs stay."""
        for run_id in ("r1", "r2"):
            await world.turn(run_id, extra={"v": run_id})
        await world.failed("bad")
        await world.fork("c", after_run_id="r2")
        await world.threads.delete_thread(T)
        with pytest.raises(errors.RunAlreadyCompletedError):
            await world.checkpointer.claim_run("c", "r1")
        forked = await world.fork("d", src="c", after_run_id="r1")
        assert forked.thread.extra == {"v": "r1"}
        assert await world.texts("d") == ["r1?", "r1!"]
        await world.turn("own", thread="c")
        assert await world.context(await world.start("own2", thread="c")) == ["r1?", "r1!", "r2?", "r2!", "own?", "own!", "hi"]

    async def test_forks_keep_the_extra_of_their_cut(self, world: World) -> None:
        """F3, I5: also where a run on another branch, which no fork sees, saved it last."""
        await world.turn("r1", extra={"v": 1})
        asked, answered = [message.id for message in await world.messages()]
        await world.turn("other", parent_id=asked, extra={"v": 2})
        await world.turn("r2", parent_id=answered)
        await world.fork("c", after_run_id="r2")
        before = (await world.fork("d", src="c", after_run_id="r2")).thread.extra
        await world.threads.delete_thread(T)
        assert (await world.fork("e", src="c", after_run_id="r2")).thread.extra == before == {"v": 2}

    async def test_deleted_fork_leaves_its_source(self, world: World) -> None:
        await world.turn("r1")
        await world.fork("c", after_run_id="r1")
        await world.turn("own", thread="c")
        await world.threads.delete_thread("c")
        assert await world.texts() == ["r1?", "r1!"]
        await world.threads.delete_thread(T)

    async def test_id_may_be_used_again(self, world: World) -> None:
        """design 3: the new thread has nothing of the old, its run ids are free."""
        await world.turn("r1", extra={"v": 1})
        await world.fork("c", after_run_id="r1")
        old = await world.ref("r1")
        await world.threads.delete_thread(T)
        await world.start("r1", "new")
        assert await world.ref("r1") != old
        thread = await world.threads.thread(T)
        assert thread is not None and thread.extra == {}
        assert (await world.claim("r1")).outcome == "claimed"
        assert await world.texts("c") == ["r1?", "r1!"]

    @pytest.mark.parametrize("how", ["queued", "delayed", "running", "suspended"])
    async def test_live_run_refuses(self, world: World, how: str) -> None:
        """A live run → ThreadBusyError, or cancel first, as asked."""
        attempt = None
        match how:
            case "queued":
                await world.accept("r1")
            case "delayed":
                await world.accept("r1", delay=3600)
            case "running":
                attempt = await world.start("r1")
            case _:
                await world.suspended("r1")
        for remove in (world.threads.delete_thread, world.threads.erase_thread):
            with pytest.raises(errors.ThreadBusyError):
                await remove(T)
        effects = await world.threads.delete_thread(T, cancel=True)
        assert len(effects.cancels) == (how == "running")
        [ended] = effects.events  # a reader of the run's stream learns of its end
        assert ended.type == "run.cancelled"
        assert [int(part) > 0 for part in ended.event_id.split("-")] == [True, True]
        assert await world.threads.thread(T) is None
        if attempt is not None:
            with pytest.raises(errors.RunError):
                await world.runs.append(attempt, [said("zombie")])

    async def test_ended_runs_do_not_matter(self, world: World) -> None:
        await world.turn("r1")
        await world.failed("r2")
        await world.accept("r3")
        await world.runs.cancel(T, "r3")
        await world.checkpointer.claim_run(T, "x")
        await world.threads.delete_thread(T)

    async def test_last_referrers_go(self, world: World) -> None:
        """No orphan when every thread of a family is deleted, in any order."""
        await world.turn("r1")
        for child in ("c", "d"):
            await world.fork(child, after_run_id="r1")
        await world.threads.delete_thread(T)
        await world.threads.delete_thread("c")
        assert await world.texts("d") == ["r1?", "r1!"]
        await world.threads.delete_thread("d")
        await world.turn("r1")
        assert await world.texts() == ["r1?", "r1!"]

    async def test_erase_leaves_tombstones(self, world: World) -> None:
        """Privacy: the thread's own messages are replaced wherever they are visible."""
        await world.turn("r0", thread="root")
        await world.fork(T, src="root", after_run_id="r0")
        await world.checkpointer.append(T, [user("secret", metadata={"ssn": 1})])
        await world.turn("r1")
        await world.fork("c", after_run_id="r1")
        attempt = await world.start("own", "own?", thread="c")
        before = await world.messages("c")
        await world.threads.erase_thread(T)
        assert await world.threads.thread(T) is None
        after = await world.messages("c")
        assert await world.texts("c") == ["r0?", "r0!", "[erased]", "[erased]", "[erased]"]
        assert all(m.metadata == {} for m in after[2:])
        assert [(m.id, m.role, m.run_id, m.seq, m.parent_id) for m in after] == [
            (m.id, m.role, m.run_id, m.seq, m.parent_id) for m in before
        ]
        assert (await world.context(attempt))[2:] == ["[erased]", "[erased]", "[erased]", "own?"]
        assert await world.texts("root") == ["r0?", "r0!"]
        assert (await world.finish(attempt, said("x"))).status is RunStatus.COMPLETED
