"""The runs that a fork inherits, and the meaning of their ids in the fork (S6)."""

from __future__ import annotations

import pytest

from runyard import errors
from runyard.models import ErrorInfo, HitlRequest, RunOptions, Usage, new_id
from runyard.ports.commands import AcceptRequest

from .world import T, World, said, user

pytestmark = pytest.mark.asyncio


class TestInheritanceWithoutWorkers:
    """The tests of :class:`TestInheritance` that also apply to a store without workers."""

    async def test_runs_after_the_cut_are_not_inherited(self, world: World) -> None:
        """A run after the cut is not inherited. Its id is free in the fork and can name a new run."""
        for run_id in ("r1", "r2"):
            await world.turn(run_id)
        await world.failed("bad")
        await world.fork("c", after_run_id="r1")
        for run_id in ("r2", "bad"):
            with pytest.raises(errors.RunNotCompletedError):
                await world.fork("d", src="c", after_run_id=run_id)
        await world.turn("r2", thread="c")
        await world.checkpointer.claim_run("c", "bad")
        assert await world.texts("c") == ["r1?", "r1!", "r2?", "r2!"]
        assert (await world.messages("c"))[2].id != (await world.messages())[2].id
        await world.fork("e", src="c", after_run_id="r2")
        assert (await world.messages("e"))[2].id == (await world.messages("c"))[2].id

    async def test_late_completion_is_not_inherited(self, world: World) -> None:
        """A run that completed after the cut is not inherited."""
        cp = world.checkpointer
        for run_id in ("slow", "fast"):
            await cp.claim_run("t", run_id)
        await cp.append("t", [said("slow", run_id="slow"), said("fast", run_id="fast")])
        await cp.mark_run_complete("t", "fast")
        await world.fork("c", after_run_id="fast")
        await cp.mark_run_complete("t", "slow")
        await cp.claim_run("c", "slow")

    async def test_cutting_a_cut_intersects(self, world: World) -> None:
        """A fork of a fork never shows messages that its parent does not show."""
        cp = world.checkpointer
        for run_id in ("a", "b"):
            await cp.claim_run("t", run_id)
        await cp.append("t", [said("a1", run_id="a"), said("b1", run_id="b"), said("a2", run_id="a"), said("b2", run_id="b")])
        await cp.mark_run_complete("t", "a")
        await cp.mark_run_complete("t", "b")
        at = (await world.messages())[2]
        assert at.text == "a2"
        await world.fork("c", at_message_id=at.id)
        assert await world.texts("c") == ["a1", "a2"]
        for n, cut in enumerate(({"at_message_id": at.id}, {"after_run_id": "a"}, {})):
            await world.fork(f"d{n}", src="c", **cut)
            assert await world.texts(f"d{n}") == ["a1", "a2"]
        first = (await world.messages("c"))[0]
        await world.fork("e", src="c", at_message_id=first.id)
        assert await world.texts("e") == ["a1"]

    async def test_inherited_message_said_again(self, world: World) -> None:
        """B1, I3: Storing an inherited message again in the fork returns the inherited message. The fork can store a message of
        the source that it did not inherit."""
        plain = await world.threads.store_message("t", user("plain"))
        await world.turn("r1")
        later = await world.threads.store_message("t", user("later"))
        await world.fork("c", after_run_id="r1")
        assert await world.threads.store_message("c", user("plain", id=plain.id)) == plain
        await world.checkpointer.append("c", [user("plain", id=plain.id), user("later", id=later.id)])
        assert await world.texts("c") == ["plain", "r1?", "r1!", "later"]

    async def test_message_that_its_ancestor_stored_after_the_fork(self, world: World) -> None:
        """B2, B3: After the fork, both threads can store a message under the same id. Each thread then shows its own message,
        as a leaf."""
        await world.turn("r1")
        await world.fork("c", after_run_id="r1")
        message = user("same")
        for thread in ("t", "c"):
            stored = await world.threads.store_message(thread, message)
            assert [(leaf.message_id, leaf.depth) for leaf in await world.leaves(thread)] == [(stored.id, 3)]
            assert await world.texts(thread, leaf=stored.id) == ["r1?", "r1!", "same"]

    async def test_branch_that_continues_an_open_run(self, world: World) -> None:
        """F8, I5: A message can follow a message of an unfinished run. The path to the later message contains both messages,
        even in forks of forks."""
        await world.turn("r1")
        await world.checkpointer.claim_run("t", "x")
        half = said("half", run_id="x")
        await world.checkpointer.append("t", [half])
        after = await world.store("after", half.id)
        path = ["r1?", "r1!", "half", "after"]
        assert await world.texts(leaf=after) == path
        await world.fork("c", at_message_id=after)
        await world.fork("d", src="c", at_message_id=after)
        for thread in ("c", "d"):
            assert await world.texts(thread) == path
            assert await world.texts(thread, leaf=after) == path
            assert [leaf.depth for leaf in await world.leaves(thread)] == [4]


class TestInheritance(TestInheritanceWithoutWorkers):
    async def test_inherited_run_is_completed_for_the_child(self, world: World) -> None:
        """An inherited run counts as completed. The fork refuses to claim it, to accept it, and to append messages to it. A
        cut after the run is valid."""
        await world.turn("r1")
        await world.turn("r2")
        await world.fork("c", after_run_id="r2")
        for run_id in ("r1", "r2"):
            with pytest.raises(errors.RunAlreadyCompletedError):
                await world.checkpointer.claim_run("c", run_id)
            with pytest.raises(errors.RunAlreadyCompletedError):
                await world.checkpointer.append("c", [said("x", run_id=run_id)])
            with pytest.raises(errors.RunAlreadyCompletedError):
                await world.accept(run_id, thread="c")
            await world.checkpointer.mark_run_complete("c", run_id)
        await world.fork("d", src="c", after_run_id="r1")
        assert await world.texts("d") == ["r1?", "r1!"]

    async def test_sibling_branch_is_not_inherited(self, world: World) -> None:
        """Runs of a sibling branch are not inherited, however low their completion numbers are."""
        await world.turn("r1")
        beside = await world.start("side", "side?", options=RunOptions(parallel=True))
        await world.finish(beside, said("side!"))
        await world.turn("r2")
        await world.fork("c", after_run_id="r2")
        assert await world.texts("c") == ["r1?", "r1!", "r2?", "r2!"]
        with pytest.raises(errors.RunNotCompletedError):
            await world.fork("d", src="c", after_run_id="side")
        await world.checkpointer.claim_run("c", "side")

    async def test_partly_visible_run(self, world: World) -> None:
        """A fork is cut inside a run, and shows a part of the run. A cut of this fork after the run raises ForkBoundaryError. A
        claim of the run in the fork raises RunAlreadyCompletedError if the run completed before the cut."""
        attempt = await world.start("r1", "q")
        (one,) = await world.runs.append(attempt, [said("one")])
        await world.finish(attempt, said("two"))
        await world.fork("c", at_message_id=one.id)
        assert await world.texts("c") == ["q", "one"]
        for src in ("c", "d"):
            with pytest.raises(errors.ForkBoundaryError):
                await world.fork("x", src=src, after_run_id="r1")
            with pytest.raises(errors.RunAlreadyCompletedError):
                await world.checkpointer.claim_run(src, "r1")
            if src == "c":
                await world.fork("d", src="c", at_message_id=one.id)
        await world.turn("own", thread="c")
        await world.fork("e", src="c", after_run_id="own")
        assert await world.texts("e") == ["q", "one", "own?", "own!"]
        with pytest.raises(errors.ForkBoundaryError):
            await world.fork("x", src="e", after_run_id="r1")

    async def test_inherited_message_id_is_taken(self, world: World) -> None:
        """B2: Every operation that stores a message refuses an inherited message id."""
        plain = await world.threads.store_message("t", user("plain"))
        attempt = await world.start("r1")
        (old,) = await world.runs.append(attempt, [said("old")])
        await world.finish(attempt)
        await world.fork("c", after_run_id="r1")
        await world.fork("d", src="c", at_message_id=old.id)
        await world.store("branch", old.id, thread="d")
        for thread in ("c", "d"):
            before = await world.texts(thread)
            claims = [(f"{n}", user("new", id=taken.id)) for n, taken in enumerate((plain, old))]
            for run_id, message in claims:
                await world.runs.accept(AcceptRequest(thread_id=thread, run_id=run_id, input=message))
                assert (await world.claim(run_id, thread=thread)).outcome == "ended"
                error = (await world.run(run_id, thread)).error
                assert error is not None and error.code == "invalid_input"
                with pytest.raises(errors.InvalidInputError):
                    await world.threads.store_message(thread, message)
                with pytest.raises(errors.InvalidInputError):
                    await world.checkpointer.append(thread, [message.model_copy(update={"run_id": "x"})])
            attempt = await world.start("live", thread=thread)
            with pytest.raises(errors.InvalidInputError):
                await world.runs.append(attempt, [said("new", id=plain.id)])
            with pytest.raises(errors.InvalidInputError):
                await world.finish(attempt, said("new", id=old.id))
            await world.finish(attempt, said("fresh"))
            assert await world.texts(thread) == [*before, "hi", "fresh"]

    async def test_open_run_id_is_taken(self, world: World) -> None:
        """A fork is cut inside a failed run, and shows a part of the run. The fork cannot have another run with the run's
        id."""
        await world.turn("r1")
        await world.failed("bad")
        at = await world.id_of("bad…")
        await world.fork("c", at_message_id=at)
        assert await world.texts("c") == ["r1?", "r1!", "bad?", "bad…"]
        with pytest.raises(errors.RunAlreadyClaimedError):
            await world.accept("bad", thread="c")
        with pytest.raises(errors.RunAlreadyClaimedError):
            await world.checkpointer.claim_run("c", "bad")
        with pytest.raises(errors.RunAlreadyClaimedError):
            await world.checkpointer.append("c", [user("x", run_id="bad")])
        with pytest.raises(errors.RunNotCompletedError):
            await world.fork("d", src="c", after_run_id="bad")
        await world.turn("own", thread="c")
        await world.fork("d", src="c", after_run_id="own")
        assert await world.texts("d") == ["r1?", "r1!", "bad?", "bad…", "own?", "own!"]
        await world.fork("e", src="c", after_run_id="r1")
        assert await world.texts("e") == ["r1?", "r1!"]

    async def test_open_run_that_completes_later(self, world: World) -> None:
        """I5: A fork is cut inside a running run. It shows only the messages up to the cut, even after the run has
        completed."""
        attempt = await world.start("live", "q")
        (half,) = await world.runs.append(attempt, [said("half")])
        await world.fork("c", at_message_id=half.id)
        await world.finish(attempt, said("rest"))
        assert await world.texts("c") == ["q", "half"]
        with pytest.raises(errors.RunNotCompletedError):
            await world.fork("d", src="c", after_run_id="live")
        await world.turn("own", thread="c")
        await world.fork("d", src="c", after_run_id="own")
        assert await world.texts("d") == ["q", "half", "own?", "own!"]

    async def test_inherited_through_two_levels_and_a_branch(self, world: World) -> None:
        """A branch of a fork sees the inherited messages. A fork of this branch inherits the runs of the branch."""
        await world.turn("r1")
        await world.turn("r2")
        await world.fork("c", after_run_id="r2")
        await world.turn("c1", thread="c")
        await world.turn("c2", thread="c", parent_id=await world.id_of("r1!", "c"))
        assert await world.texts("c") == ["r1?", "r1!", "c2?", "c2!"]
        await world.fork("d", src="c", after_run_id="c2")
        assert await world.texts("d") == ["r1?", "r1!", "c2?", "c2!"]
        with pytest.raises(errors.RunAlreadyCompletedError):
            await world.checkpointer.claim_run("d", "r1")
        for run_id in ("r2", "c1"):
            await world.checkpointer.claim_run("d", run_id)


class TestInheritedRuns:
    """Reads of inherited runs through a fork."""

    async def test_a_run_is_read_through_a_fork_that_has_it_whole(self, world: World) -> None:
        """F8: An inherited run can be read through a fork that shows all its messages. A fork with a cut inside the run does
        not find the run."""
        attempt = await world.start("r1", "q")
        (one,) = await world.runs.append(attempt, [said("one")])
        await world.fork("live", at_message_id=one.id)
        await world.runs.finish_step(attempt, "step", "secret")
        await world.finish(attempt, said("two"), result="secret", usage=Usage(requests=3))
        await world.fork("part", at_message_id=one.id)
        await world.turn("own", thread="part")
        await world.fork("part of part", src="part", after_run_id="own")
        await world.fork("whole", at_message_id=(await world.messages())[-1].id)
        for fork in ("live", "part", "part of part"):
            assert await world.texts(fork) == ["q", "one", "own?", "own!"][: 2 if fork == "live" else 4]
            assert await world.runs.run(fork, "r1") is None
            for read in (world.runs.explain, world.runs.attempts, world.backend.timelines.timeline):
                with pytest.raises(errors.RunNotFoundError):
                    await read(fork, "r1")
        assert await world.runs.run("whole", "r1") == await world.run("r1")
        assert (await world.backend.timelines.timeline("whole", "r1")).answer == "two"

    async def test_a_failed_run_is_not_read_through_a_fork(self, world: World) -> None:
        """F8: A failed run cannot be read through a fork, even if the fork shows all its messages."""
        await world.turn("r1")
        await world.failed("bad")
        await world.fork("c", at_message_id=await world.id_of("bad…"))
        assert await world.texts("c") == ["r1?", "r1!", "bad?", "bad…"]
        assert await world.runs.run("c", "bad") is None

    async def test_a_run_without_messages(self, world: World) -> None:
        """F7, F8: A fork inherits a run without messages, and its usage."""
        await world.turn("r1", usage=Usage(requests=1))
        parent = await world.store("hello")
        await world.finish(await world.start("empty", None), usage=Usage(requests=2))
        await world.fork("c", after_run_id="empty", options={"reset_usage": False})
        await world.fork("d", src="c", after_run_id="empty", options={"reset_usage": False})
        await world.fork("before", at_message_id=parent, options={"reset_usage": False})
        for fork in ("c", "d"):
            assert await world.runs.run(fork, "empty") == await world.run("empty")
            thread = await world.threads.thread(fork)
            assert thread is not None and thread.usage.requests == 3

    @pytest.mark.parametrize("erase", [False, True], ids=["delete", "erase"])
    async def test_a_deleted_source_leaves_no_content_of_its_runs(self, world: World, erase: bool) -> None:
        """D2, D3: After the deletion of the source, a fork keeps the messages. It also keeps the status, the usage and the
        times of the last attempt of each run. A run of an erased source has no input."""
        attempt = await world.start("r1", "secret input", metadata={"k": "secret"})
        await world.runs.release(attempt, error=ErrorInfo(code="x", message="secret"))
        attempt = await world.take("r1")
        await world.runs.finish_step(attempt, "step", "secret")
        await world.ask(
            attempt, HitlRequest(request_id=new_id(), payload={"question": "secret"}, timeout=0.0, on_deadline={"answer": 1})
        )
        await world.runs.admit()
        attempt = await world.take("r1")
        await world.finish(attempt, said("answer"), result="secret", usage=Usage(requests=1))
        await world.fork("c", after_run_id="r1")
        before = await world.run("r1", "c")
        assert before.result == "secret" and before.metadata == {"k": "secret"} and before.input is not None
        await (world.threads.erase_thread if erase else world.threads.delete_thread)(T)
        after = await world.run("r1", "c")
        assert (after.result, after.error, after.metadata) == (None, None, {})
        assert (after.status, after.usage, after.finished_at) == (before.status, before.usage, before.finished_at)
        assert (after.input.text if after.input else None) == (None if erase else "secret input")
        made = (await world.runs.attempts("c", "r1")).items
        assert [(each.fence, each.outcome, each.error) for each in made] == [(attempt.fence, "completed", None)]
        found = await world.backend.timelines.timeline("c", "r1")
        assert [entry.type for entry in found.entries] == ["message", "attempt", "message"]
        assert ("secret" in found.model_dump_json()) is not erase
        assert "secret" not in found.model_dump_json().replace("secret input", "")
