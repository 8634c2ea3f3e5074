"""Forks after a completed run (F1 to F8, F10)."""

from __future__ import annotations

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import Message, RunOptions, Usage, new_id
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest
from runyard.ports.queries import RunFilter, ThreadFilter

from .world import T, World, call, said, texts, user

pytestmark = pytest.mark.asyncio


class TestForksWithoutWorkers:
    """The tests of :class:`TestForks` that also apply to a store without workers."""

    async def test_fork_is_the_snapshot(self, world: World) -> None:
        """F1, I5: A fork shows the messages of the snapshot in their order, with their ids. The fork does not show later turns
        of the source. The source does not show turns of the fork."""
        for run_id in ("r1", "r2", "r3"):
            await world.turn(run_id)
        before = await world.messages()
        forked = await world.fork("c", after_run_id="r2")
        assert forked.created
        inherited = await world.messages("c")
        assert texts(inherited) == ["r1?", "r1!", "r2?", "r2!"]
        assert [(m.id, m.run_id) for m in inherited] == [(m.id, m.run_id) for m in before[:4]]
        await world.turn("r4")
        await world.turn("own", thread="c")
        assert await world.texts("c") == ["r1?", "r1!", "r2?", "r2!", "own?", "own!"]
        assert await world.texts() == ["r1?", "r1!", "r2?", "r2!", "r3?", "r3!", "r4?", "r4!"]
        assert (await world.messages())[:6] == before

    async def test_fork_names_its_parent_and_cut(self, world: World) -> None:
        """F2: ``forked_at_seq`` is a message's seq, not a completion number."""
        await world.turn("r1")
        await world.turn("r2")
        await world.fork("c", after_run_id="r1")
        thread = await world.threads.thread("c")
        assert thread is not None
        assert (thread.parent_thread_id, thread.forked_after_run_id, thread.forked_at_seq) == (T, "r1", 2)
        children = await world.threads.threads(ThreadFilter(parent_thread_id=T))
        assert [child.thread_id for child in children.items] == ["c"]

    async def test_parent_is_the_thread_that_was_asked(self, world: World) -> None:
        """F2: The parent is the thread that the call forked. The messages may come from a branch or from an ancestor of this
        thread."""
        await world.turn("r1")
        await world.fork("c", after_run_id="r1")
        await world.fork("d", src="c", after_run_id="r1")
        thread = await world.threads.thread("d")
        assert thread is not None and (thread.parent_thread_id, thread.forked_after_run_id) == ("c", "r1")

    async def test_late_completion_never_enters_an_existing_fork(self, world: World) -> None:
        """S2, I5: A run that completes after the cut never enters the fork."""
        cp = world.checkpointer
        for run_id in ("slow", "fast"):
            await cp.claim_run(T, run_id)
        for n, run_id in enumerate(("slow", "fast", "slow", "fast")):
            await cp.append(T, [said(f"{run_id}{n}", run_id=run_id)])
        await cp.mark_run_complete(T, "fast")
        await world.fork("c", after_run_id="fast")
        await world.fork("d", src="c", after_run_id="fast")
        await cp.mark_run_complete(T, "slow")
        for fork in ("c", "d"):
            assert await world.texts(fork) == ["fast1", "fast3"]
        assert await world.cut(after_run_id="fast") == ["fast1", "fast3"]
        assert await world.cut(after_run_id="slow") == ["slow0", "fast1", "slow2", "fast3"]

    async def test_earlier_completion_with_later_messages_is_in(self, world: World) -> None:
        """S3: A run that completed before the run at the cut can contain later messages than the run at the cut. The fork shows
        all messages of both runs, because its high water is the highest message number of all runs that completed up to the
        cut."""
        cp = world.checkpointer
        for run_id in ("a", "b"):
            await cp.claim_run(T, run_id)
        await cp.append(T, [said("a1", run_id="a"), said("b1", run_id="b"), user("plain"), said("b2", run_id="b")])
        await cp.mark_run_complete(T, "b")
        await cp.mark_run_complete(T, "a")
        assert await world.cut(after_run_id="a") == ["a1", "b1", "plain", "b2"]
        assert await world.cut(after_run_id="b") == ["b1", "plain", "b2"]

    async def test_plain_messages_up_to_the_high_water(self, world: World) -> None:
        """F1, F10: A message without a run is in the fork if it comes before the last message of the cut's run."""
        await world.store("legacy 1")
        await world.store("legacy 2")
        await world.turn("r1")
        await world.store("later")
        await world.fork("c", after_run_id="r1")
        messages = await world.messages("c")
        assert texts(messages) == ["legacy 1", "legacy 2", "r1?", "r1!"]
        assert [m.run_id for m in messages] == [None, None, "r1", "r1"]

    async def test_repeated_fork_is_the_same_fork(self, world: World) -> None:
        """F4: A repeated call with the same source, cut and options returns the same fork, even after the source was
        deleted."""
        await world.turn("r1")
        await world.turn("r2")
        assert (await world.fork("c", after_run_id="r1", metadata={"a": 1})).created
        assert not (await world.fork("c", after_run_id="r1", metadata={"a": 1})).created
        for other in ({"after_run_id": "r2", "metadata": {"a": 1}}, {"after_run_id": "r1"}):
            with pytest.raises(errors.ThreadAlreadyExistsError):
                await world.fork("c", **other)
        await world.threads.delete_thread(T)
        assert not (await world.fork("c", after_run_id="r1", metadata={"a": 1})).created

    async def test_extra_of_the_cut(self, world: World) -> None:
        """F3: The fork's extra is a copy of the last extra that the source saved before the cut. The copy has the fork's
        metadata under the key ``fork``."""
        await world.checkpointer.save_extra(T, {"v": 0, "fork": "old"})
        await world.turn("r1", extra={"v": 1})
        await world.turn("r2")
        await world.turn("r3", extra={"v": 3})
        await world.checkpointer.save_extra(T, {"v": 4})
        for run_id, value in (("r1", 1), ("r2", 1), ("r3", 3)):
            forked = await world.fork(f"c-{run_id}", after_run_id=run_id)
            assert forked.thread.extra == {"v": value}
        forked = await world.fork("m", after_run_id="r1", metadata={"why": "test"})
        assert forked.thread.extra == {"v": 1, "fork": {"why": "test"}}
        _, extra = await world.threads.cut_messages(T, Cut(after_run_id="r1"))
        assert extra["v"] == 1

    async def test_extra_without_any_saved_is_the_base(self, world: World) -> None:
        """F3: Without a saved extra, the fork gets a copy of the thread's initial extra."""
        await world.turn("r1", extra={"v": 1})
        await world.fork("c", after_run_id="r1")
        await world.checkpointer.save_extra("c", {"v": 2})
        first = await world.store("plain", thread="c")
        assert (await world.fork("d", src="c", at_message_id=first)).thread.extra == {"v": 1}
        assert (await world.fork("e", src="c", after_run_id="r1")).thread.extra == {"v": 1}
        await world.turn("own", thread="c")
        assert (await world.fork("f", src="c", after_run_id="own")).thread.extra == {"v": 2}

    async def test_extra_of_a_cut_at_an_inherited_message(self, world: World) -> None:
        """F3: A cut at an inherited message has the extra of the ancestor at that message. Later changes of the extra, in the
        ancestor or in the fork, have no effect."""
        await world.turn("r1", extra={"v": 1})
        await world.turn("r2", extra={"v": 2})
        await world.failed("bad")
        await world.fork("c", at_message_id=await world.id_of("bad…"))
        await world.turn("r3", extra={"v": 3})
        await world.turn("own", thread="c", extra={"v": 4})
        for text, value in (("r1!", 1), ("r2?", 2), ("bad?", 2), ("own!", 4)):
            assert (await world.fork(f"d-{text}", src="c", at_message_id=await world.id_of(text, "c"))).thread.extra == {
                "v": value
            }

    async def test_fork_changes_nothing_on_the_source(self, world: World) -> None:
        """F8, I5: A fork is idle, and the source's messages and runs are unchanged."""
        await world.turn("r1")
        before = (await world.messages(), await world.run("r1"))
        await world.fork("c", after_run_id="r1")
        assert (await world.messages(), await world.run("r1")) == before
        assert (await world.runs.runs(RunFilter(thread_id="c"))).items == []
        assert (await world.runs.runs(RunFilter(thread_id=T))).items == [before[1]]

    async def test_forks_of_forks(self, world: World) -> None:
        """F8, B6: Forks of forks work to any depth. In each fork, message numbers grow strictly."""
        await world.turn("r0", thread="f0")
        expected = ["r0?", "r0!"]
        for n in range(1, 12):
            await world.fork(f"f{n}", src=f"f{n - 1}", after_run_id=f"r{n - 1}")
            await world.turn(f"r{n}", thread=f"f{n}")
            expected += [f"r{n}?", f"r{n}!"]
        messages = await world.messages("f11")
        assert texts(messages) == expected
        seqs = [m.seq or 0 for m in messages]
        assert seqs == sorted(set(seqs))
        await world.fork("back", src="f11", after_run_id="r3")
        assert await world.texts("back") == expected[:8]

    async def test_completion_numbers_grow_past_the_inherited(self, world: World) -> None:
        """S7: The numbers of a fork's own messages, and the completion numbers of its own runs, are higher than all inherited
        numbers."""
        for run_id in ("r1", "r2"):
            await world.turn(run_id)
        await world.fork("c", after_run_id="r2")
        await world.turn("own", thread="c")
        inherited = max(m.seq or 0 for m in (await world.messages("c"))[:4])
        assert min(m.seq or 0 for m in (await world.messages("c"))[4:]) > inherited
        assert ((await world.run("own", "c")).completion_seq or 0) > 2

    async def test_fork_of_an_empty_completed_run(self, world: World) -> None:
        """F2: ``forked_at_seq`` is None if the fork sees no message."""
        await world.checkpointer.claim_run(T, "x")
        await world.checkpointer.mark_run_complete(T, "x")
        forked = await world.fork("c", after_run_id="x")
        assert forked.thread.forked_at_seq is None and await world.texts("c") == []
        with pytest.raises(errors.RunAlreadyCompletedError):
            await world.checkpointer.claim_run("c", "x")

    async def test_deleted_ancestors_stay_in_the_lineage(self, world: World) -> None:
        """F12: While a thread shows messages of a deleted ancestor, the lineage has a tombstone for this ancestor. Older
        ancestors stay in the lineage."""
        await world.turn("r1", extra={"secret": 1})
        await world.fork("b", after_run_id="r1")
        await world.turn("r2", thread="b")
        await world.fork("c", "b", after_run_id="r2")
        await world.fork("d", "c", after_run_id="r2")  # c has no messages of its own
        await world.turn("r3", thread="d")
        await world.fork("e", "d", after_run_id="r3")
        await world.threads.update_thread("b", title="Title", tags={"k": "v"}, config={"secret": 1})
        before = (await world.threads.ancestors("e", 100)).items
        assert [thread.thread_id for thread in before] == ["d", "c", "b", T]
        for gone in ("b", "c", "d"):
            await world.threads.delete_thread(gone)
        await world.turn("r9", thread="b")
        page = await world.threads.ancestors("e", 1)
        d, b = page.items
        assert (d.thread_id, b.thread_id, page.next) == ("d", "b", T), "the list ends before a thread that is not deleted"
        assert b.deleted_at is not None and b == before[2].tombstone(b.deleted_at), "only its ids, cut and times stay"
        whole = await world.threads.ancestors("e", 3)
        assert (whole.items, whole.next) == ([d, b, before[3]], None)
        with pytest.raises(errors.ThreadNotFoundError):
            await world.threads.ancestors("d", 1)


class TestForks(TestForksWithoutWorkers):
    async def test_default_cut_is_the_last_completed_run(self, world: World) -> None:
        """F6: The default cut is after the last completed run."""
        await world.turn("r1")
        await world.turn("r2")
        await world.failed("r3")
        await world.start("r4")
        forked = await world.fork("c")
        assert forked.thread.forked_after_run_id == "r2"
        assert await world.texts("c") == ["r1?", "r1!", "r2?", "r2!"]

    async def test_unsuccessful_runs_never_enter_a_fork(self, world: World) -> None:
        """S1: An unsuccessful run never enters a fork, however runs interleave."""
        await world.failed("bad")
        await world.turn("r1")
        attempt = await world.start("gone")
        await world.runs.append(attempt, [said("gone…")])
        await world.runs.cancel(T, "gone")
        await world.finish(attempt)
        await world.turn("r2")
        live = await world.start("live", "live?")
        assert await world.cut(after_run_id="r2") == ["r1?", "r1!", "r2?", "r2!"]
        await world.finish(live)
        assert await world.cut(after_run_id="r2") == ["r1?", "r1!", "r2?", "r2!"]

    async def test_kept_run_is_a_boundary(self, world: World) -> None:
        """R10: A run that was cancelled with keep can be the cut of a fork."""
        attempt = await world.start("r1")
        await world.runs.append(attempt, [said("half")])
        await world.runs.cancel(T, "r1", keep=True)
        await world.finish(attempt)
        await world.fork("c", after_run_id="r1")
        assert await world.texts("c") == ["hi", "half"]

    async def test_checks_in_order(self, world: World) -> None:
        """F4: A fork checks first the source, then the run at the cut, then the new id."""
        with pytest.raises(errors.ThreadNotFoundError):
            await world.fork("c", src="nope")
        await world.store("legacy")
        with pytest.raises(errors.RunNotCompletedError):
            await world.fork("c")
        await world.failed("bad")
        await world.accept("open")
        await world.turn("taken", thread="c")
        for run_id in ("unknown", "bad", "open"):
            with pytest.raises(errors.RunNotCompletedError) as refused:
                await world.fork("c", after_run_id=run_id)
            code = "cut_run_not_found" if run_id == "unknown" else "run_not_completed"
            assert (refused.value.code, refused.value.http_status) == (code, 404 if run_id == "unknown" else 409)
        await world.runs.cancel(T, "open")
        await world.turn("r1")
        with pytest.raises(errors.ThreadAlreadyExistsError):
            await world.fork("c", after_run_id="r1")
        with pytest.raises(errors.InvalidInputError):
            await world.fork("", after_run_id="r1")

    async def test_a_fork_job_keeps_its_first_prompt(self, world: World) -> None:
        """F5, F7: The attempt of a fork job gets the first prompt of the fork, and the run id of the prompt."""
        await world.turn("r1")
        for run_id, prompt in (("own", "own"), ("none", None)):
            request = ForkRequest(src=T, new=f"{run_id}-fork", cut=Cut(after_run_id="r1"), prompt_run_id=prompt)
            await world.accept(run_id, "and in green?" if prompt else None, kind="fork", fork=request)
            claim = await world.claim(run_id)
            assert claim.run is not None and claim.fork is not None and claim.fork.prompt_run_id == prompt
            assert claim.run.input is None if prompt is None else claim.run.input is not None
        assert await world.texts() == ["r1?", "r1!"]

    async def test_inherited_runs_are_read_through_the_fork(self, world: World) -> None:
        """F8: Inherited runs can be read through the fork. Other runs of the source cannot be read through it."""
        await world.turn("r1")
        await world.fork("c", after_run_id="r1")
        await world.turn("r2")
        await world.fork("d", "c", after_run_id="r1")
        for fork in ("c", "d"):
            assert await world.runs.run(fork, "r1") == await world.run("r1")
            assert await world.runs.run(fork, "r2") is None
        await world.turn("r2", thread="c")
        assert (await world.run("r2", "c")).thread_id == "c"

    async def test_fork_keeps_its_options(self, world: World) -> None:
        """F7: The options of a fork are applied."""
        await world.turn("r1", agent="a", usage=Usage(requests=2))
        await world.threads.update_thread(T, title="source", tags={"k": "v"})
        plain = (await world.fork("c", after_run_id="r1")).thread
        assert (plain.title, plain.tags, plain.agent, plain.usage.requests) == (None, {}, "a", 0)
        options = {"title": "Copy", "tags": {"a": "b"}, "agent": "z", "reset_usage": False}
        full = (await world.fork("d", after_run_id="r1", options=options)).thread
        assert (full.title, full.agent, full.usage.requests) == ("Copy", "z", 2)
        assert full.tags == {"a": "b", "title": "Copy"}
        await world.turn("r2", usage=Usage(requests=5))
        whole = (await world.fork("w", after_run_id="r2", options={"reset_usage": False})).thread
        early = (await world.fork("x", after_run_id="r1", options={"reset_usage": False})).thread
        assert (whole.usage.requests, early.usage.requests) == (7, 2), "the usage of the runs that the fork contains"
        await world.turn("r3", thread="x", usage=Usage(requests=1))
        again = (await world.fork("y", "x", after_run_id="r3", options={"reset_usage": False})).thread
        assert again.usage.requests == 3
        at = await world.id_of("r2?")
        assert (await world.fork("z", at_message_id=at, options={"reset_usage": False})).thread.usage.requests == 2
        for tags in ({"": "x"}, {"k" * 65: "x"}, {"a\n": "x"}):
            with pytest.raises(errors.InvalidInputError):
                await world.fork("e", after_run_id="r1", options={"tags": tags})
        with pytest.raises(errors.InvalidInputError):
            await world.fork("e", after_run_id="r1", options={"title": "a\0"})

    async def test_pending_requests_steps_and_answers_are_not_inherited(self, world: World) -> None:
        """I6: Pending requests, steps and answers are not inherited."""
        await world.turn("r1")
        await world.suspended("r2")
        await world.fork("c", after_run_id="r1")
        assert (await world.runs.requests(thread_id="c")).items == []
        assert await world.checkpointer.load_pending("c") is None

    async def test_fork_job_waits_for_its_run(self, world: World) -> None:
        """F5: The completion of a run submits the fork job that waits for it, without polling."""
        attempt = await world.start("r1")
        fork = ForkRequest(src=T, new="c", cut=Cut(after_run_id="r1"))
        accepted = await world.runs.accept(AcceptRequest(thread_id=T, run_id="job", kind="fork", fork=fork))
        assert accepted.effects.jobs == [] and accepted.run.lane == "job"
        assert (await world.claim("job")).outcome == "waiting"
        ended = await world.finish(attempt, said("x"))
        assert [job.run_id for job in ended.effects.jobs] == ["job"]
        job = await world.take("job")
        assert (await world.threads.fork(fork)).created
        done = await world.finish(job, result={"thread_id": "c"})
        assert done.status is RunStatus.COMPLETED
        run = await world.run("job")
        assert (run.completion_seq, run.result, run.after_run_id) == (None, {"thread_id": "c"}, "r1")
        assert await world.texts() == ["hi", "x"]

    async def test_fork_job_is_judged_when_accepted(self, world: World) -> None:
        """F4, F5: At its acceptance, a fork job is checked and its cut is determined."""

        def request(**cut: str) -> AcceptRequest:
            fork = ForkRequest(src=T, new="c", cut=Cut(**cut))  # type: ignore[arg-type]
            return AcceptRequest(thread_id=T, run_id=new_id(), kind="fork", fork=fork)

        with pytest.raises(errors.ThreadNotFoundError):
            await world.runs.accept(request(after_run_id="r1"))
        await world.failed("bad")
        for cut in ({}, {"after_run_id": "bad"}, {"after_run_id": "unknown"}):
            with pytest.raises(errors.RunNotCompletedError) as refused:
                await world.runs.accept(request(**cut))
            assert (refused.value.code == "cut_run_not_found") is (cut == {"after_run_id": "unknown"})
        await world.turn("r1")
        accepted = await world.runs.accept(request())
        assert accepted.run.after_run_id == "r1" and len(accepted.effects.jobs) == 1
        await world.fork("c", after_run_id="r1", metadata={"other": 1})
        with pytest.raises(errors.ThreadAlreadyExistsError):
            await world.runs.accept(request())

    async def test_open_calls_of_other_branches_do_not_matter(self, world: World) -> None:
        await world.turn("r1")
        attempt = await world.start("p", "p?", options=RunOptions(parallel=True))
        await world.runs.append(attempt, [call("a")])
        assert await world.cut(after_run_id="r1") == ["r1?", "r1!"]

    async def test_tool_payloads_survive(self, world: World) -> None:
        message = Message.assistant("x", metadata={"deep": [1, {"a": None}]}, usage=Usage(requests=1), stop_reason="stop")
        await world.finish(await world.start("r1"), message)
        await world.fork("c", after_run_id="r1")
        (copy,) = [m for m in await world.messages("c") if m.id == message.id]
        assert (copy.metadata, copy.usage, copy.stop_reason) == (message.metadata, message.usage, message.stop_reason)
