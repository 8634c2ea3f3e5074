"""Deletion and erasure of threads and runs (D1 to D3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo, HitlRequest, new_id
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest, Write
from runyard.ports.queries import ThreadFilter

from .world import T, World, said, user

pytestmark = pytest.mark.asyncio


class TestDeletionWithoutWorkers:
    """The tests of :class:`TestDeletion` that also apply to a store without workers."""

    async def test_forks_keep_what_they_see(self, world: World) -> None:
        """A fork keeps the messages that it sees when its source is deleted."""
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

    async def test_deleted_fork_leaves_its_source(self, world: World) -> None:
        await world.turn("r1")
        await world.fork("c", after_run_id="r1")
        await world.turn("own", thread="c")
        await world.threads.delete_thread("c")
        assert await world.texts() == ["r1?", "r1!"]
        await world.threads.delete_thread(T)

    async def test_a_new_thread_has_no_forks_of_its_predecessor(self, world: World) -> None:
        """D2, F12: A new thread with the id of a deleted thread does not have the forks of the deleted thread."""
        await world.turn("r1")
        await world.fork("old", after_run_id="r1")
        await world.threads.delete_thread(T)

        async def forks(*, newest_first: bool = False) -> list[str]:
            where = ThreadFilter(parent_thread_id=T, newest_first=newest_first)
            return [thread.thread_id for thread in (await world.threads.threads(where)).items]

        assert await forks() == ["old"]
        await world.turn("r1")
        assert await forks() == await forks(newest_first=True) == []
        for id in ("new", "newer"):
            await world.fork(id, after_run_id="r1")
        assert await forks() == ["new", "newer"] and await forks(newest_first=True) == ["newer", "new"]

    async def test_last_referrers_go(self, world: World) -> None:
        """When a thread and all its forks are deleted, in any order, the store has none of their rows any more."""
        await world.turn("r1")
        for child in ("c", "d"):
            await world.fork(child, after_run_id="r1")
        await world.threads.delete_thread(T)
        await world.threads.delete_thread("c")
        assert await world.texts("d") == ["r1?", "r1!"]
        await world.threads.delete_thread("d")
        await world.turn("r1")
        assert await world.texts() == ["r1?", "r1!"]

    async def test_erase_removes_the_extra_that_forks_inherited(self, world: World) -> None:
        """D3: When a thread is erased, its forks lose the extra that they inherited from the thread. Forks of forks lose this
        extra too. All forks keep their own extra, the extra that they inherited from other threads, and their metadata."""
        await world.turn("r0", thread="root", extra={"kept": 1})
        await world.fork(T, src="root", after_run_id="r0", metadata={"of": "T"})
        await world.turn("r1", extra={"secret": {"ssn": 1}, "changed": "old"})
        await world.fork("c", after_run_id="r1", metadata={"of": "c"})
        await world.turn("r2", extra={"changed": "later"})
        await world.turn("r3", thread="c", extra={"changed": "by c", "own": True})
        await world.fork("d", src="c", after_run_id="r3")
        await world.threads.erase_thread(T)
        by_c = {"kept": 1, "changed": "by c", "own": True}
        extras = [thread.extra if thread else None for thread in [await world.threads.thread(id) for id in ("root", "c", "d")]]
        assert extras == [{"kept": 1}, by_c | {"fork": {"of": "c"}}, by_c]
        assert (await world.fork("e", src="c", after_run_id="r1")).thread.extra == {"kept": 1}
        assert (await world.fork("f", src="d", after_run_id="r3")).thread.extra == by_c


class TestDeletion(TestDeletionWithoutWorkers):
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

    @pytest.mark.parametrize("erase", [False, True])
    async def test_effects_name_the_thread_whose_streams_go(self, world: World, erase: bool) -> None:
        """D2: The effects of a deletion name the thread, but not the forks of the thread. Only the streams of the thread are
        deleted."""
        await world.turn("r1")
        await world.fork("c", after_run_id="r1")
        await world.start("r2")
        key = await world.threads.thread_key(T)
        delete = world.threads.erase_thread if erase else world.threads.delete_thread
        assert (await delete(T, cancel=True)).deleted == [key]

    async def test_forks_can_be_forked_after_the_deletion(self, world: World) -> None:
        """Forks of a deleted thread can be forked. They keep the run ids and completion numbers of visible runs."""
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
        """F3, I5: After the deletion of its source, a fork keeps the extra of its cut. This holds even if the extra comes from
        a run of a branch that the fork does not show."""
        await world.turn("r1", extra={"v": 1})
        asked, answered = [message.id for message in await world.messages()]
        await world.turn("other", parent_id=asked, extra={"v": 2})
        await world.turn("r2", parent_id=answered)
        await world.fork("c", after_run_id="r2")
        before = (await world.fork("d", src="c", after_run_id="r2")).thread.extra
        await world.threads.delete_thread(T)
        assert (await world.fork("e", src="c", after_run_id="r2")).thread.extra == before == {"v": 2}

    async def test_id_may_be_used_again(self, world: World) -> None:
        """D2: A new thread with the id of a deleted thread contains nothing of the deleted thread. The old run ids are free."""
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
        """Deleting a thread with a live run raises ThreadBusyError. With ``cancel``, the deletion cancels the run."""
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
        [ended] = effects.events  # readers of the run's stream receive its end
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

    async def test_erase_leaves_tombstones(self, world: World) -> None:
        """Erasing replaces the thread's own messages by tombstones in all threads that show them."""
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
        assert await world.texts("c") == ["r0?", "r0!", "[erased]", "[erased]", "[erased]", "own?"]
        assert all(m.metadata == {} for m in after[2:])
        assert [(m.id, m.role, m.run_id, m.seq, m.parent_id) for m in after] == [
            (m.id, m.role, m.run_id, m.seq, m.parent_id) for m in before
        ]
        assert (await world.context(attempt))[2:] == ["[erased]", "[erased]", "[erased]", "own?"]
        assert await world.texts("root") == ["r0?", "r0!"]
        assert (await world.finish(attempt, said("x"))).status is RunStatus.COMPLETED


class TestRunDeletionWithoutWorkers:
    """The tests of :class:`TestRunDeletion` that also apply to a store without workers."""

    async def test_deleting_a_run_again_changes_nothing(self, world: World) -> None:
        await world.failed("bad")
        for _ in range(2):
            await world.runs.delete_run(T, "bad")
        first = (await world.run("bad")).deleted_at
        await world.runs.delete_run(T, "bad")
        assert (await world.run("bad")).deleted_at == first
        with pytest.raises(errors.RunNotFoundError):
            await world.runs.delete_run(T, "none")
        with pytest.raises(errors.ThreadNotFoundError):
            await world.runs.delete_run("none", "bad")

    async def test_forks_keep_what_they_see(self, world: World) -> None:
        """D1: A fork has its cut at a message of an unsuccessful run. When the content of the run is deleted, the fork keeps
        the run's messages up to this message. The run's later messages are deleted."""
        await world.turn("r1")
        await world.failed("bad")
        asked = await world.id_of("bad?")
        said_ = await world.id_of("bad…")
        await world.fork("c", at_message_id=asked)
        await world.fork("d", src="c", at_message_id=asked)
        await world.runs.delete_run(T, "bad")
        for child in ("c", "d"):
            assert await world.texts(child) == ["r1?", "r1!", "bad?"]
        assert {leaf.run_id for leaf in await world.leaves()} == {"r1"}
        with pytest.raises(errors.MessageNotFoundError):
            await world.messages(leaf=said_)
        await world.turn("own", thread="d")
        assert await world.texts("d") == ["r1?", "r1!", "bad?", "own?", "own!"]
        for child in ("c", "d"):
            await world.threads.delete_thread(child)
        await world.runs.delete_run(T, "bad")  # after this deletion, no thread shows the run's messages
        with pytest.raises(errors.MessageNotFoundError):
            await world.messages(leaf=asked)


class TestRunDeletion(TestRunDeletionWithoutWorkers):
    """Deletion of the content of an ended run whose messages no later run sees. The run's row stays (R2)."""

    async def test_deleted_run_leaves_only_its_record(self, world: World) -> None:
        await world.turn("r1")
        request = new_id()
        await world.ask(await world.start("bad", "secret", metadata={"ssn": 1}), HitlRequest(request_id=request))
        await world.runs.respond("secret", request_id=request)
        attempt = await world.take("bad")
        await world.runs.start_step(attempt, "step")
        await world.runs.finish_step(attempt, "step", "secret")
        error = ErrorInfo(code="x", message="secret", traceback="secret")
        await world.runs.fail(Write(attempt=attempt, messages=[said("secret")], extra={"secret": 1}), error)
        before = await world.run("bad")
        await world.runs.delete_run(T, "bad")
        run = await world.run("bad")
        assert (run.status, run.finished_at, run.attempt) == (RunStatus.FAILED, before.finished_at, before.attempt)
        assert run.deleted_at is not None and (run.input, run.error, run.result, run.metadata) == (None, None, None, {})
        assert [r.run_id for r in (await world.runs.runs()).items] == ["r1"]
        assert {leaf.run_id for leaf in await world.leaves()} == {"r1"}
        assert await world.texts() == ["r1?", "r1!"]
        assert await world.runs.request(request) is None and (await world.runs.requests(pending=False)).items == []
        assert [attempt.error for attempt in (await world.runs.attempts(T, "bad")).items] == [None] * run.attempt
        await world.turn("r2")
        assert await world.texts() == ["r1?", "r1!", "r2?", "r2!"]

    async def test_the_same_request_finds_it(self, world: World) -> None:
        """R2: After the content of a run was deleted, the request of this run can be repeated. The repetition returns the run
        and executes nothing. Another request with the same id is refused."""
        message = user("secret")
        request = AcceptRequest(thread_id=T, run_id="bad", input=message)
        await world.runs.accept(request)
        await world.runs.fail(Write(attempt=await world.take("bad")), ErrorInfo(code="x", message="x"))
        await world.runs.delete_run(T, "bad")
        deleted = await world.run("bad")
        again = await world.runs.accept(request)
        assert not again.created and again.run == deleted
        assert (await world.claim("bad")).outcome != "claimed"
        with pytest.raises(errors.RunConflictError):
            await world.accept("bad", "other")
        with pytest.raises(errors.RunEndedError):
            await world.runs.redrive(T, "bad")
        await world.runs.accept(replace(request, run_id="good"))  # the id of its message is free
        assert (await world.claim("good")).outcome == "claimed"

    @pytest.mark.parametrize("how", ["queued", "delayed", "running", "suspended", "completed", "kept"])
    async def test_run_that_lives_or_counts_is_not_deleted(self, world: World, how: str) -> None:
        """A live run is not deleted. A run whose messages are in the context of later runs is not deleted either. The error
        names the call to use instead."""
        await world.store("before")
        match how:
            case "queued":
                await world.accept("r1")
            case "delayed":
                await world.accept("r1", delay=3600)
            case "running":
                await world.start("r1")
            case "suspended":
                await world.suspended("r1")
            case "completed":
                await world.turn("r1")
            case _:
                await world.suspended("r1")
                await world.runs.cancel(T, "r1", keep=True)
        before = await world.run("r1")
        instead = "delete or erase" if how in ("completed", "kept") else "cancel it"
        with pytest.raises(errors.RunInUseError, match=instead) as refused:
            await world.runs.delete_run(T, "r1")
        assert refused.value.details["run_id"] == "r1" and await world.run("r1") == before

    async def test_cancelled_runs_and_jobs(self, world: World) -> None:
        await world.turn("r1")
        await world.suspended("waits")
        await world.runs.cancel(T, "waits")
        await world.accept("never")
        await world.runs.cancel(T, "never")
        job = AcceptRequest(thread_id=T, run_id="job", kind="fork_once", fork=ForkRequest(src=T, new="p", cut=Cut()))
        await world.runs.accept(replace(job, input=user("secret")))
        await world.finish(await world.take("job"), result={"text": "secret"})
        assert await world.status("job") is RunStatus.COMPLETED
        for run_id in ("waits", "never", "job"):
            await world.runs.delete_run(T, run_id)
            run = await world.run(run_id)
            assert run.deleted_at is not None and (run.input, run.result) == (None, None)
        assert await world.texts() == ["r1?", "r1!"]

    async def test_branches_keep_what_they_see(self, world: World) -> None:
        """B1: A run is deleted, and another run of the same thread continues from one of its messages. The messages of the
        deleted run stay."""
        await world.turn("r1")
        await world.failed("bad")
        last = await world.id_of("bad…")
        await world.turn("on", parent_id=last)
        leaf = await world.id_of("on!")
        before = await world.texts(leaf=leaf)
        await world.runs.delete_run(T, "bad")
        assert await world.texts(leaf=leaf) == before == ["r1?", "r1!", "bad?", "bad…", "on?", "on!"]

    async def test_run_whose_message_another_is_to_go_on_from_is_not_deleted(self, world: World) -> None:
        """A run is not deleted while a queued run begins after one of its messages. The claim of the queued run needs this
        message."""
        await world.turn("r1")
        await world.failed("bad")
        last = await world.id_of("bad…")
        await world.accept("on", parent_id=last)
        with pytest.raises(errors.RunInUseError) as refused:
            await world.runs.delete_run(T, "bad")
        assert refused.value.details["used_by"] == "on"
        await world.runs.cancel(T, "on")
        await world.runs.delete_run(T, "bad")
        with pytest.raises(errors.MessageNotFoundError):
            await world.messages(leaf=last)
        with pytest.raises(errors.MessageNotFoundError):
            await world.accept("late", parent_id=last)

    @pytest.mark.parametrize("other", ["queued", "running", "suspended", "external", "fork"])
    async def test_run_beside_others_that_go_on_is_deleted(self, world: World, other: str) -> None:
        """Other live runs and jobs on the thread do not prevent the deletion."""
        await world.turn("r1")
        await world.failed("bad")
        match other:
            case "queued":
                await world.accept("r2")
            case "running":
                await world.start("r2")
            case "suspended":
                await world.suspended("r2")
            case "external":
                await world.checkpointer.claim_run(T, "r2")
            case _:
                fork = ForkRequest(src=T, new="c", cut=Cut(after_run_id="r1"))
                await world.runs.accept(AcceptRequest(thread_id=T, run_id="r2", kind="fork", fork=fork))
        await world.runs.delete_run(T, "bad")
        assert (await world.run("bad")).deleted_at is not None

    @pytest.mark.parametrize("by", ["id", "number"])
    async def test_run_that_a_queued_job_has_yet_to_fork_from_is_not_deleted(self, world: World, by: str) -> None:
        """A run is not deleted while a queued fork job has its cut at one of the run's messages. The cut names the message by
        id or number."""
        await world.turn("r1")
        await world.failed("bad")
        [*_, last] = await world.messages(leaf=await world.id_of("bad…"))
        cut = Cut(at_message_id=last.id) if by == "id" else Cut(at_seq=last.seq)
        fork = ForkRequest(src=T, new="c", cut=cut)
        await world.runs.accept(AcceptRequest(thread_id=T, run_id="job", kind="fork", fork=fork))
        with pytest.raises(errors.RunInUseError) as refused:
            await world.runs.delete_run(T, "bad")
        assert refused.value.details["used_by"] == "job"
        await world.runs.cancel(T, "job")
        await world.runs.delete_run(T, "bad")
