"""External runs, which are claimed, written and completed through the checkpointer (R13, R15, R17)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import HitlRequest, RunOptions, new_id
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest

from .world import DEADLINE, T, World, call, said, texts, user

pytestmark = pytest.mark.asyncio


class TestExternalRunsWithoutWorkers:
    """The tests of :class:`TestExternalRuns` that also apply to a store without workers."""

    async def test_claim_append_complete(self, world: World) -> None:
        """R13: The host claims and completes an external run. The run gets one completion number."""
        cp = world.checkpointer
        await cp.claim_run(T, "x")
        run = await world.run("x")
        assert (run.kind, run.status, run.lane) == ("external", RunStatus.RUNNING, "x")
        await cp.append(T, [user("q", run_id="x"), said("a", run_id="x")])
        assert await world.texts() == []
        data = await cp.load(T)
        assert data is not None and texts(data.messages) == ["q", "a"]
        await cp.mark_run_complete(T, "x")
        assert (await world.run("x")).completion_seq == 1
        assert await world.texts() == ["q", "a"]
        await cp.mark_run_complete(T, "x")
        assert (await world.run("x")).completion_seq == 1

    async def test_repeated_append_is_stored_once(self, world: World) -> None:
        """I3: The messages of a repeated append are stored once. A message of another run cannot have the id of a stored
        message."""
        cp = world.checkpointer
        await cp.claim_run(T, "x")
        messages = [user("plain"), user("q", run_id="x"), user("unclaimed", run_id="y")]
        await cp.append(T, messages)
        await cp.append(T, [*messages, said("a", run_id="x")])
        for message in messages:
            with pytest.raises(errors.InvalidInputError):
                await cp.append(T, [said("new"), message.model_copy(update={"run_id": "z"})])
        await cp.mark_run_complete(T, "x")
        await cp.claim_run(T, "y")
        await cp.mark_run_complete(T, "y")
        assert await world.texts() == ["plain", "q", "unclaimed", "a"]

    async def test_append_with_one_id_for_two_runs_is_refused(self, world: World) -> None:
        """B2: A call that has one id for two messages is refused and stores nothing."""
        message = user("a")
        for other in ("x", None):
            again = message.model_copy(update={"run_id": other})
            with pytest.raises(errors.InvalidInputError):
                await world.checkpointer.append(T, [user("before"), again, message.model_copy(update={"run_id": "y"})])
        assert await world.checkpointer.load(T) is None
        await world.checkpointer.append(T, [message, message])
        assert await world.texts() == ["a"]

    async def test_append_is_all_or_nothing(self, world: World) -> None:
        await world.turn("r1")
        with pytest.raises(errors.RunAlreadyCompletedError):
            await world.checkpointer.append(T, [user("fine"), user("late", run_id="r1")])
        assert await world.texts() == ["r1?", "r1!"]

    async def test_unclaimed_messages_are_invisible(self, world: World) -> None:
        """R13: Messages of an unclaimed run are in no context. After the run was claimed and has completed, later contexts have
        them."""
        cp = world.checkpointer
        await cp.append(T, [user("plain"), said("early", run_id="x")])
        await world.turn("r1")
        assert await world.texts() == ["plain", "r1?", "r1!"]
        assert await world.loaded() == ["plain", "early", "r1?", "r1!"]
        assert await world.cut(after_run_id="r1") == ["plain", "r1?", "r1!"]
        assert len(await world.leaves()) == 1
        await cp.claim_run(T, "x")
        assert {leaf.run_id for leaf in await world.leaves()} == {"x", "r1"}
        await cp.append(T, [said("late", run_id="x")])
        await cp.mark_run_complete(T, "x")
        assert await world.texts() == ["plain", "early", "r1?", "r1!", "late"]
        assert await world.cut(after_run_id="r1") == ["plain", "r1?", "r1!"]
        assert await world.cut(after_run_id="x") == ["plain", "early", "r1?", "r1!", "late"]

    async def test_a_run_without_messages_keeps_what_it_saw(self, world: World) -> None:
        """F10, F1: A run without messages completes. A snapshot after this run includes the messages that the run saw at its
        claim. It also includes the messages of the runs that completed earlier on the branch, and the messages that these runs
        saw."""
        cp = world.checkpointer
        await cp.append(T, [user("old"), said("older")])
        for run_id in ("a", "b"):
            await cp.claim_run(T, run_id)
        await cp.append(T, [user("later")])
        await cp.claim_run(T, "c")
        await cp.append(T, [user("last")])
        for run_id in ("c", "a", "b"):
            await cp.mark_run_complete(T, run_id)
        assert await world.cut(after_run_id="c") == ["old", "older", "later"]
        assert await world.cut(after_run_id="b") == ["old", "older", "later"]
        await cp.fork(T, "f", after_run_id="c")
        assert await world.loaded("f") == ["old", "older", "later"]
        assert await world.cut("f", after_run_id="c") == ["old", "older", "later"]
        with pytest.raises(errors.RunAlreadyCompletedError):
            await cp.claim_run("f", "c")

    async def test_cancel_is_immediate(self, world: World) -> None:
        """R10, R17: An external run is cancelled at once."""
        cp = world.checkpointer
        for run_id, keep in (("x", False), ("y", True)):
            await cp.claim_run(T, run_id)
            await cp.append(T, [user(run_id, run_id=run_id), call(run_id).model_copy(update={"run_id": run_id})])
            changed = await world.runs.cancel(T, run_id, keep=keep)
            assert changed.run.status is RunStatus.CANCELLED and changed.effects.cancels == []
        assert await world.texts() == ["y", "call:y", "result:y"]
        with pytest.raises(errors.RunAlreadyCompletedError):
            await cp.append(T, [user("late", run_id="x")])

    async def test_completion_does_not_judge_tool_cycles(self, world: World) -> None:
        """R13: The completion of an external run does not check tool cycles. The ``Agent`` checks them before it completes the
        run."""
        cp = world.checkpointer
        await cp.claim_run(T, "x")
        await cp.append(T, [call("a").model_copy(update={"run_id": "x"})])
        await cp.mark_run_complete(T, "x")
        assert await world.status("x") is RunStatus.COMPLETED

    async def test_extra_saved_between_runs_belongs_to_the_next_completion(self, world: World) -> None:
        """F3: Extra that is saved between runs belongs to the next completion."""
        cp = world.checkpointer
        await cp.claim_run(T, "x")
        await cp.save_extra(T, {"v": 1})
        await cp.mark_run_complete(T, "x")
        await cp.save_extra(T, {"v": 2})
        assert (await world.fork("c", after_run_id="x")).thread.extra == {"v": 1}


class TestExternalRuns(TestExternalRunsWithoutWorkers):
    async def test_a_failed_one_is_not_redriven(self, world: World) -> None:
        """R17: A failed external run is not redriven, because external runs are never scheduled."""
        await world.checkpointer.claim_run(T, "x")
        await world.request_store.save_requests(T, [HitlRequest(request_id=new_id(), timeout=0)], run_id="x")
        await world.runs.admit()
        assert await world.status("x") is RunStatus.FAILED
        with pytest.raises(errors.RunEndedError):
            await world.runs.redrive(T, "x")
        assert (await world.claim("x")).outcome == "ended"

    async def test_checkpointer_refuses_calls_that_break_its_rules(self, world: World) -> None:
        """R13: The checkpointer refuses a call if the status of the run does not allow the call."""
        cp = world.checkpointer
        with pytest.raises(errors.RunNotClaimedError):
            await cp.mark_run_complete(T, "x")
        await cp.claim_run(T, "x")
        with pytest.raises(errors.RunNotClaimedError):
            await cp.mark_run_complete(T, "other")
        with pytest.raises(errors.RunAlreadyClaimedError):
            await cp.claim_run(T, "x")
        with pytest.raises(errors.RunConflictError):
            await world.accept("x")
        await cp.mark_run_complete(T, "x")
        with pytest.raises(errors.RunAlreadyCompletedError):
            await cp.claim_run(T, "x")
        with pytest.raises(errors.RunAlreadyCompletedError):
            await cp.append(T, [user("late", run_id="x")])

    async def test_runs_that_a_worker_owns(self, world: World) -> None:
        """R13, R17: A checkpointer cannot claim or complete a run of workers, and cannot append messages to it."""
        cp = world.checkpointer
        attempt = await world.start("r1")
        for verb in (cp.claim_run(T, "r1"), cp.mark_run_complete(T, "r1"), cp.append(T, [user("x", run_id="r1")])):
            with pytest.raises(errors.RunAlreadyClaimedError):
                await verb
        await world.finish(attempt, said("x"))
        await cp.mark_run_complete(T, "r1")
        with pytest.raises(errors.RunAlreadyCompletedError):
            await cp.claim_run(T, "r1")
        await world.failed("bad")
        with pytest.raises(errors.RunAlreadyCompletedError):
            await cp.claim_run(T, "bad")
        with pytest.raises(errors.RunNotClaimedError):
            await cp.mark_run_complete(T, "bad")

    async def test_load_shows_what_nobody_claimed_yet(self, world: World) -> None:
        """R13: ``load`` returns unclaimed messages until a worker claims their run. A fork contains no unclaimed messages."""
        cp = world.checkpointer
        await cp.append(T, [user("one", run_id="x"), user("two", run_id="y"), said("more", run_id="x")])
        assert await world.loaded() == ["one", "two", "more"]
        await world.turn("r1")
        await cp.fork(T, "c", after_run_id="r1")
        assert await world.loaded("c") == ["r1?", "r1!"]
        await world.accept("x", "q")
        assert await world.loaded() == ["one", "two", "more", "r1?", "r1!"]
        attempt = await world.take("x")
        assert await world.loaded() == ["two", "r1?", "r1!"]
        await world.finish(attempt)
        await cp.claim_run(T, "y")
        assert await world.loaded() == ["one", "two", "more", "r1?", "r1!", "q"]

    async def test_a_worker_claims_what_was_unclaimed(self, world: World) -> None:
        """R13, R1: When a worker claims a run for the first time, the run's unclaimed messages become messages of the run. The
        context ends with these messages and the run's input."""
        await world.checkpointer.append(T, [said("early", run_id="x")])
        await world.turn("r1")
        attempt = await world.start("x", "q")
        assert await world.context(attempt) == ["r1?", "r1!", "early", "q"]
        await world.finish(attempt, said("a"))
        assert await world.texts() == ["early", "r1?", "r1!", "q", "a"]
        said_by_x = [m for m in await world.messages() if m.run_id == "x"]
        assert [m.parent_id for m in said_by_x[1:]] == [m.id for m in said_by_x[:-1]]
        assert await world.cut(after_run_id="x") == ["early", "r1?", "r1!", "q", "a"]

    @pytest.mark.parametrize("parallel", [False, True], ids=["the head moved", "parallel"])
    async def test_unclaimed_message_follows_its_run_to_another_branch(self, world: World, parallel: bool) -> None:
        """I5, I3, R13: When a run is claimed, its unclaimed messages move to the branch of the run. If the run appends them
        again, they are stored once. Contexts of other branches do not contain them."""
        await world.turn("r1")
        early = [said("early", run_id="x"), said("more", run_id="x")]
        await world.checkpointer.append(T, early)
        if not parallel:
            await world.store("aside", await world.id_of("r1?"))
        before = await world.texts()
        attempt = await world.start("x", "q", options=RunOptions(parallel=parallel))
        assert await world.context(attempt) == [*before, "early", "more", "q"]
        assert texts(await world.runs.append(attempt, early[:1])) == ["early"]
        assert (await world.finish(attempt, early[1], said("a"))).status is RunStatus.COMPLETED
        assert await world.cut(after_run_id="x") == [*before, "early", "more", "q", "a"]
        path = await world.messages(leaf=await world.id_of("a"))
        assert [m.parent_id for m in path] == [None, *(m.id for m in path[:-1])]
        assert [m.seq for m in path] == sorted({m.seq or 0 for m in path})
        await world.store("last", await world.id_of("r1!"))
        assert await world.context(await world.start("next")) == ["r1?", "r1!", "last", "hi"]

    @pytest.mark.parametrize("parallel", [False, True], ids=["one branch", "parallel"])
    async def test_a_prompt_that_was_stored_under_its_run_before(self, world: World, parallel: bool) -> None:
        """R1, I3: A message is appended under a run id, and then accepted as the prompt of this run. It is stored once, as the
        run's own message."""
        question = user("q")
        await world.turn("r1")
        await world.checkpointer.append(T, [question.model_copy(update={"run_id": "x"}), said("early", run_id="x")])
        options = RunOptions(parallel=parallel)
        await world.runs.accept(AcceptRequest(thread_id=T, run_id="x", input=question, options=options))
        attempt = await world.take("x")
        assert await world.context(attempt) == ["r1?", "r1!", "q", "early"]
        await world.finish(attempt, said("a"))
        assert await world.cut(after_run_id="x") == ["r1?", "r1!", "q", "early", "a"]

    async def test_unclaimed_message_is_in_no_context_before_its_first_claim(self, world: World) -> None:
        """R13, I5: No call can refer to a message of an unclaimed run, because the place of the message may change at the first
        claim."""
        early = said("early", run_id="x")
        await world.checkpointer.append(T, [early])
        await world.accept("x")
        for verb in (world.fork("c", at_message_id=early.id), world.store("s", early.id), world.messages(leaf=early.id)):
            with pytest.raises(errors.MessageNotFoundError):
                await verb
        await world.finish(await world.take("x"))
        assert await world.texts(leaf=early.id) == ["early"]

    async def test_a_worker_answers_for_what_was_unclaimed(self, world: World) -> None:
        """I7, R5, R10: A tool call that was stored before the claim belongs to the run. The completion of the run checks this
        tool call. A cancel with ``keep`` closes this tool call."""
        for run_id in ("x", "y"):
            await world.checkpointer.append(T, [call(run_id).model_copy(update={"run_id": run_id})])
        ended = await world.finish(await world.start("x"), said("a"))
        assert ended.status is RunStatus.FAILED and ended.error is not None and ended.error.code == "incomplete_tool_cycle"
        attempt = await world.start("y")
        await world.runs.cancel(T, "y", keep=True)
        assert (await world.finish(attempt, said("a"))).status is RunStatus.CANCELLED
        assert await world.texts() == []

    async def test_never_blocks_and_is_never_scheduled(self, world: World) -> None:
        """R17: An external run blocks no prompt, store or deletion, and no worker takes it over."""
        await world.checkpointer.claim_run(T, "x")
        assert (await world.claim("x")).outcome in ("busy", "unknown")
        await world.store("stored")
        await world.turn("r1")
        await world.threads.delete_thread(T)

    async def test_context_hands_each_run_over_together(self, world: World) -> None:
        """S5: In a context, the messages of each run are together."""
        cp = world.checkpointer
        for run_id in ("a", "b"):
            await cp.claim_run(T, run_id)
        await cp.append(
            T, [said("a1", run_id="a"), said("b1", run_id="b"), user("plain"), said("a2", run_id="a"), said("b2", run_id="b")]
        )
        await cp.mark_run_complete(T, "b")
        await cp.mark_run_complete(T, "a")
        attempt = await world.start("r1", "q")
        assert await world.context(attempt) == ["a1", "a2", "b1", "b2", "plain", "q"]
        assert await world.texts() == ["a1", "b1", "plain", "a2", "b2", "q"]

    async def test_completion_that_a_fork_job_waits_for_is_told(self, world: World) -> None:
        """F5: A fork job may wait for an external run. When that run completes, the store notifies the workers, because
        ``mark_run_complete`` returns no effects."""
        await world.checkpointer.claim_run(T, "x")
        fork = ForkRequest(src=T, new="c", cut=Cut(after_run_id="x"))
        assert not (await world.accept("job", None, kind="fork", fork=fork)).effects.jobs
        async with aclosing(world.backend.notifications()) as notified, asyncio.timeout(DEADLINE):
            await anext(notified)
            await world.checkpointer.mark_run_complete(T, "x")
            while not (effects := await anext(notified)):
                pass
        assert [job.run_id for job in effects.jobs] == ["job"]
