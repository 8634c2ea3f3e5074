"""The documented checkpointer and runs that no worker executes (semantics: R13, R15; design 3.4)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner import errors
from runner.exchange import AcceptRequest, Cut, ForkRequest, Write
from runner.models import HitlRequest, RunOptions, new_id
from runner.ports import RequestStore
from runner.states import RunStatus

from .world import DEADLINE, T, World, call, said, texts, user

pytestmark = pytest.mark.asyncio


class TestCheckpointer:
    async def test_load(self, world: World) -> None:
        """R15, R1: messages, extra, parent; an unknown thread → None."""
        cp = world.checkpointer
        assert await cp.load(T) is None
        await cp.append(T, [user("a"), said("b")])
        await cp.save_extra(T, {"k": 1})
        data = await cp.load(T)
        assert data is not None
        assert (texts(data.messages), data.extra, data.parent_thread_id) == (["a", "b"], {"k": 1}, None)
        await world.turn("r1")
        await cp.fork(T, "c", after_run_id="r1", metadata={"why": 1})
        data = await cp.load("c")
        assert data is not None
        assert (data.parent_thread_id, data.extra["fork"]) == (T, {"why": 1})
        assert texts(data.messages) == ["a", "b", "r1?", "r1!"]
        assert texts(await cp.snapshot(T, after_run_id="r1")) == ["a", "b", "r1?", "r1!"]

    async def test_extra_merges_at_the_top(self, world: World) -> None:
        """R15: existing keys survive."""
        await world.checkpointer.save_extra(T, {"a": {"x": 1}, "b": 1})
        await world.checkpointer.save_extra(T, {"a": {"y": 2}, "c": None})
        data = await world.checkpointer.load(T)
        assert data is not None and data.extra == {"a": {"y": 2}, "b": 1, "c": None}
        with pytest.raises(errors.InvalidInputError):
            await world.checkpointer.save_extra(T, {"a": ["\0"]})

    @pytest.mark.parametrize("request_id", ["", ".", "..", "a\nb", "a\x85", "\u2028", "x" * 256])
    async def test_a_request_has_an_id_that_a_path_can_name(self, world: World, request_id: str) -> None:
        """A2, H3: whoever saves it, nothing is kept that nobody could ask for."""
        request = HitlRequest(request_id=request_id)
        with pytest.raises(errors.InvalidInputError):
            await world.checkpointer.save_pending_request(T, request)
        with pytest.raises(errors.InvalidInputError):
            await keeper(world).save_requests(T, [HitlRequest(), request], run_id="x")
        attempt = await world.start("r1")
        with pytest.raises(errors.InvalidInputError):
            await world.runs.suspend(Write(attempt=attempt), [request])
        assert not (await world.runs.requests()).items

    async def test_pending_request(self, world: World) -> None:
        """R15: request and run id together; None clears both; a request may have no run id."""
        cp = world.checkpointer
        assert await cp.load_pending(T) is None and await cp.load_pending_run_id(T) is None
        request = HitlRequest(request_id=new_id(), payload={"q": "?"})
        await cp.save_pending_request(T, request, run_id="r1")
        pending = await cp.load_pending(T)
        assert pending is not None and (pending[0].request_id, pending[0].payload, pending[1]) == (
            request.request_id,
            {"q": "?"},
            "r1",
        )
        assert await cp.load_pending_run_id(T) == "r1"
        other = HitlRequest(request_id=new_id(), run_id="r1")
        await cp.save_pending_request(T, other)
        assert await cp.load_pending_run_id(T) is None
        await world.runs.respond(1, thread_id=T)
        assert await cp.load_pending(T) is None
        await cp.save_pending_request(T, other)
        loaded = await cp.load_pending_request(T)
        assert loaded is not None and loaded.request_id == other.request_id
        await cp.save_pending_request(T, None)
        assert await cp.load_pending_request(T) is None

    async def test_clearing_leaves_a_suspended_run_alone(self, world: World) -> None:
        """H6: nothing but an answer, a cancel or its deadline ends a run's question."""
        request = await world.suspended("r1")
        await world.checkpointer.save_pending_request(T, None)
        pending = await world.checkpointer.load_pending(T)
        assert pending is not None and (pending[0].request_id, pending[1]) == (request, "r1")

    async def test_what_was_saved_with_the_id_of_a_suspended_run(self, world: World) -> None:
        """R15: it is cleared like any other; H6: the run's own question stays, and is not saved over."""
        cp = world.checkpointer
        question = await world.suspended("r1")
        await cp.save_pending_request(T, HitlRequest(request_id=new_id()), run_id="r1")
        assert len((await world.runs.requests()).items) == 2
        await cp.save_pending_request(T, None)
        with pytest.raises(errors.InvalidInputError):
            await cp.save_pending_request(T, HitlRequest(request_id=question), run_id="r1")
        await cp.save_pending_request(T, None)
        assert [r.request_id for r in (await world.runs.requests()).items] == [question]
        assert await world.status("r1") is RunStatus.SUSPENDED

    async def test_a_run_reads_the_answer_to_what_was_saved_for_it(self, world: World) -> None:
        """I6: a question that waits for nobody any more has its answer in the ledger, or the run would ask for ever."""
        attempt = await world.start("r1")
        request = HitlRequest(request_id=new_id())
        await world.checkpointer.save_pending_request(T, request, run_id="r1")
        await world.runs.respond(1, thread_id=T)
        assert (await world.ask(attempt, request)).status is RunStatus.RUNNING
        assert (await world.runs.ledger(attempt)).requests[request.request_id].answer == 1

    async def test_errors_of_snapshot_and_fork(self, world: World) -> None:
        """R1, F4."""
        cp = world.checkpointer
        with pytest.raises(errors.ThreadNotFoundError):
            await cp.snapshot(T, after_run_id="r1")
        with pytest.raises(errors.ThreadNotFoundError):
            await cp.fork(T, "c", after_run_id="r1")
        await cp.append(T, [user("x")])
        with pytest.raises(errors.RunNotCompletedError):
            await cp.snapshot(T, after_run_id="r1")
        assert issubclass(errors.RunNotCompletedError, errors.CheckpointerError)

    async def test_fork_to_a_thread_that_exists(self, world: World) -> None:
        """F4: the document's fork makes a brand-new thread, so the same fork again is refused; the client's is repeatable."""
        await world.turn("r1")
        await world.checkpointer.fork(T, "c", after_run_id="r1", metadata={"k": 1})
        with pytest.raises(errors.ThreadAlreadyExistsError):
            await world.checkpointer.fork(T, "c", after_run_id="r1", metadata={"k": 1})
        with pytest.raises(errors.ThreadAlreadyExistsError):
            await world.checkpointer.fork(T, T, after_run_id="r1")
        again = await world.fork("c", after_run_id="r1", metadata={"k": 1})
        assert not again.created
        raced = await asyncio.gather(
            *(world.checkpointer.fork(T, "d", after_run_id="r1") for _ in range(5)), return_exceptions=True
        )
        assert raced.count(None) == 1
        assert sum(isinstance(refused, errors.ThreadAlreadyExistsError) for refused in raced) == 4

    async def test_append_of_nothing(self, world: World) -> None:
        """R1: append creates the thread, whatever there is to append."""
        await world.checkpointer.append(T, [])
        data = await world.checkpointer.load(T)
        assert data is not None and data.messages == []
        with pytest.raises(errors.InvalidInputError):
            await world.checkpointer.append("", [])

    async def test_bad_messages(self, world: World) -> None:
        with pytest.raises(errors.InvalidInputError):
            await world.checkpointer.append(T, [user("x"), user("y", id="nope")])
        assert await world.checkpointer.load(T) is None

    @pytest.mark.parametrize("foreign", [SimpleNamespace(role="user", content="y"), {"role": "user"}, "y", 42, None])
    async def test_messages_of_a_foreign_class(self, world: World, foreign: Any) -> None:
        """R15: nothing of a call is stored that brings what is no message of ours; the error says what is taken."""
        for verb in (world.checkpointer.append(T, [user("x"), foreign]), world.threads.store_message(T, foreign)):
            with pytest.raises(errors.InvalidInputError, match=type(foreign).__name__):
                await verb
        assert await world.checkpointer.load(T) is None


class TestExternalRuns:
    async def test_claim_append_complete(self, world: World) -> None:
        """R13: a run of the host's own; it allocates completion numbers."""
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
        """I3: a call whose answer got lost is repeated; under another run id it is another message, and refused."""
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

    async def test_one_id_for_two_runs_in_one_append(self, world: World) -> None:
        """B2: an id names one message, and nothing of the call is stored."""
        message = user("a")
        for other in ("x", None):
            again = message.model_copy(update={"run_id": other})
            with pytest.raises(errors.InvalidInputError):
                await world.checkpointer.append(T, [user("before"), again, message.model_copy(update={"run_id": "y"})])
        assert await world.checkpointer.load(T) is None
        await world.checkpointer.append(T, [message, message])
        assert await world.texts() == ["a"]

    async def test_a_failed_one_is_not_redriven(self, world: World) -> None:
        """design 3.4: an external run is never scheduled, whatever becomes of it."""
        await world.checkpointer.claim_run(T, "x")
        await keeper(world).save_requests(T, [HitlRequest(request_id=new_id(), timeout=0)], run_id="x")
        await world.runs.admit()
        assert await world.status("x") is RunStatus.FAILED
        with pytest.raises(errors.RunEndedError):
            await world.runs.redrive(T, "x")
        assert (await world.claim("x")).outcome == "ended"

    async def test_refusals(self, world: World) -> None:
        """R13."""
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
        """R13, design 3.4."""
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

    async def test_append_is_all_or_nothing(self, world: World) -> None:
        await world.turn("r1")
        with pytest.raises(errors.RunAlreadyCompletedError):
            await world.checkpointer.append(T, [user("fine"), user("late", run_id="r1")])
        assert await world.texts() == ["r1?", "r1!"]

    async def test_unclaimed_messages_are_invisible(self, world: World) -> None:
        """R13: until that run is claimed and completed."""
        cp = world.checkpointer
        await cp.append(T, [user("plain"), said("early", run_id="x")])
        await world.turn("r1")
        assert await world.texts() == ["plain", "r1?", "r1!"]
        assert await loaded(world) == ["plain", "early", "r1?", "r1!"]
        assert await world.cut(after_run_id="r1") == ["plain", "r1?", "r1!"]
        assert len(await world.leaves()) == 1
        await cp.claim_run(T, "x")
        assert {leaf.run_id for leaf in await world.leaves()} == {"x", "r1"}
        await cp.append(T, [said("late", run_id="x")])
        await cp.mark_run_complete(T, "x")
        assert await world.texts() == ["plain", "early", "r1?", "r1!", "late"]
        assert await world.cut(after_run_id="r1") == ["plain", "r1?", "r1!"]
        assert await world.cut(after_run_id="x") == ["plain", "early", "r1?", "r1!", "late"]

    async def test_load_shows_what_nobody_claimed_yet(self, world: World) -> None:
        """R13: as long as no worker has its run; a fork has none of it."""
        cp = world.checkpointer
        await cp.append(T, [user("one", run_id="x"), user("two", run_id="y"), said("more", run_id="x")])
        assert await loaded(world) == ["one", "two", "more"]
        await world.turn("r1")
        await cp.fork(T, "c", after_run_id="r1")
        assert await loaded(world, "c") == ["r1?", "r1!"]
        await world.accept("x", "q")
        assert await loaded(world) == ["one", "two", "more", "r1?", "r1!"]
        attempt = await world.take("x")
        assert await loaded(world) == ["two", "r1?", "r1!"]
        await world.finish(attempt)
        await cp.claim_run(T, "y")
        assert await loaded(world) == ["one", "two", "more", "r1?", "r1!", "q"]

    async def test_a_run_without_messages_keeps_what_it_saw(self, world: World) -> None:
        """F10, F1: its high water is at least the last message that its claim saw, and no later one counts."""
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
        assert await loaded(world, "f") == ["old", "older", "later"]
        assert await world.cut("f", after_run_id="c") == ["old", "older", "later"]
        with pytest.raises(errors.RunAlreadyCompletedError):
            await cp.claim_run("f", "c")

    async def test_a_worker_claims_what_was_unclaimed(self, world: World) -> None:
        """R13, R1: by its first claim the messages are its run's; its context ends with them and its input."""
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
    async def test_what_was_unclaimed_follows_its_run_to_another_branch(self, world: World, parallel: bool) -> None:
        """I5, I3, R13: it is its run's wherever that runs, said again or not, and no other context's."""
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
        """R1, I3: the message is there once, as the run's own."""
        question = user("q")
        await world.turn("r1")
        await world.checkpointer.append(T, [question.model_copy(update={"run_id": "x"}), said("early", run_id="x")])
        options = RunOptions(parallel=parallel)
        await world.runs.accept(AcceptRequest(thread_id=T, run_id="x", input=question, options=options))
        attempt = await world.take("x")
        assert await world.context(attempt) == ["r1?", "r1!", "q", "early"]
        await world.finish(attempt, said("a"))
        assert await world.cut(after_run_id="x") == ["r1?", "r1!", "q", "early", "a"]

    async def test_what_was_unclaimed_is_not_there_before_its_first_claim(self, world: World) -> None:
        """R13, I5: until then its place may change, so that nothing may rest on it."""
        early = said("early", run_id="x")
        await world.checkpointer.append(T, [early])
        await world.accept("x")
        for verb in (world.fork("c", at_message_id=early.id), world.store("s", early.id), world.messages(leaf=early.id)):
            with pytest.raises(errors.MessageNotFoundError):
                await verb
        await world.finish(await world.take("x"))
        assert await world.texts(leaf=early.id) == ["early"]

    async def test_a_worker_answers_for_what_was_unclaimed(self, world: World) -> None:
        """I7, R5, R10: a call that was said before the claim counts as the run's own, whether it completes or is kept."""
        for run_id in ("x", "y"):
            await world.checkpointer.append(T, [call(run_id).model_copy(update={"run_id": run_id})])
        ended = await world.finish(await world.start("x"), said("a"))
        assert ended.status is RunStatus.FAILED and ended.error is not None and ended.error.code == "incomplete_tool_cycle"
        attempt = await world.start("y")
        await world.runs.cancel(T, "y", keep=True)
        assert (await world.finish(attempt, said("a"))).status is RunStatus.CANCELLED
        assert await world.texts() == []

    async def test_never_blocks_and_is_never_scheduled(self, world: World) -> None:
        """design 3.4: prompts, stores and deletion go on beside it; nobody takes it over."""
        await world.checkpointer.claim_run(T, "x")
        assert (await world.claim("x")).outcome in ("busy", "unknown")
        await world.store("stored")
        await world.turn("r1")
        await world.threads.delete_thread(T)

    async def test_cancel_is_immediate(self, world: World) -> None:
        """design 3.4, R10."""
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
        """R13: the Agent does, before it calls."""
        cp = world.checkpointer
        await cp.claim_run(T, "x")
        await cp.append(T, [call("a").model_copy(update={"run_id": "x"})])
        await cp.mark_run_complete(T, "x")
        assert await world.status("x") is RunStatus.COMPLETED

    async def test_context_hands_each_run_over_together(self, world: World) -> None:
        """design 3.2."""
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
        assert await world.texts() == ["a1", "b1", "plain", "a2", "b2"]

    async def test_extra_saved_between_runs_belongs_to_the_next_completion(self, world: World) -> None:
        """design 3.1."""
        cp = world.checkpointer
        await cp.claim_run(T, "x")
        await cp.save_extra(T, {"v": 1})
        await cp.mark_run_complete(T, "x")
        await cp.save_extra(T, {"v": 2})
        assert (await world.fork("c", after_run_id="x")).thread.extra == {"v": 1}

    async def test_completion_that_a_fork_job_waits_for_is_told(self, world: World) -> None:
        """F5: nobody polls, and the call returns nothing."""
        await world.checkpointer.claim_run(T, "x")
        fork = ForkRequest(src=T, new="c", cut=Cut(after_run_id="x"))
        assert not (await world.accept("job", None, kind="fork", fork=fork)).effects.jobs
        async with aclosing(world.backend.notifications()) as told, asyncio.timeout(DEADLINE):
            await anext(told)
            await world.checkpointer.mark_run_complete(T, "x")
            while not (effects := await anext(told)):
                pass
        assert [job.run_id for job in effects.jobs] == ["job"]


class TestRequests:
    """What an in-process Agent needs of a checkpointer for its questions (R14)."""

    async def ask(self, world: World, *ids: str, **fields: Any) -> list[HitlRequest]:
        await world.checkpointer.claim_run(T, "x")
        requests = [HitlRequest(request_id=f"{world.backend.tenant}{i}", payload={"question": i}, **fields) for i in ids]
        await keeper(world).save_requests(T, requests, run_id="x")
        return requests

    async def test_kept_beside_each_other(self, world: World) -> None:
        """H5, H10: parallel questions, in the inbox of everybody; saved again they stay as they are."""
        asked = await self.ask(world, "a", "b")
        await keeper(world).answer_request(T, 1, request_id=asked[0].request_id)
        await keeper(world).save_requests(T, asked, run_id="x")
        kept = {r.request_id: (r.run_id, r.answer) for r in await keeper(world).load_requests(T, run_id="x")}
        assert kept == {asked[0].request_id: ("x", 1), asked[1].request_id: ("x", None)}
        assert [r.request_id for r in (await world.runs.requests()).items] == [asked[1].request_id]
        assert await keeper(world).load_requests(T, run_id="other") == []
        assert await keeper(world).load_requests("unknown") == []

    async def test_answers_are_applied_once(self, world: World) -> None:
        """H3, H4."""
        asked = await self.ask(world, "a", "b", answer_schema={"type": "integer"})
        with pytest.raises(errors.HitlAmbiguousError):
            await keeper(world).answer_request(T, 1)
        with pytest.raises(errors.HitlInvalidAnswerError):
            await keeper(world).answer_request(T, "x", request_id=asked[0].request_id)
        first, again = [await keeper(world).answer_request(T, 1, request_id=asked[0].request_id) for _ in range(2)]
        assert (first.created, again.created, again.request.answer) == (True, False, 1)
        with pytest.raises(errors.HitlAlreadyAnsweredError):
            await world.runs.respond(2, thread_id=T, request_id=asked[0].request_id)

    async def test_the_last_answer_is_known(self, world: World) -> None:
        """H4, H5: of answers that come at once to what a run asked together, one finds that nothing waits any more."""
        one, *others = await self.ask(world, "a", "b", "c")
        await keeper(world).save_requests(T, [HitlRequest(request_id=f"{world.backend.tenant}d", payload={})], run_id="y")
        assert not (await keeper(world).answer_request(T, 1, request_id=one.request_id)).last
        answers = [keeper(world).answer_request(T, 1, request_id=other.request_id) for other in others]
        assert sorted(answer.last for answer in await asyncio.gather(*answers)) == [False, True]
        assert not (await keeper(world).answer_request(T, 1, request_id=others[-1].request_id)).last

    async def test_overdue_ones_have_their_own_answer(self, world: World) -> None:
        """H7: also where no reconciler is."""
        [asked] = await self.ask(world, "a", timeout=0, on_deadline={"answer": "later"})
        [loaded] = await keeper(world).load_requests(T)
        assert (loaded.answer, loaded.answered_by) == ("later", "deadline")
        with pytest.raises(errors.HitlStaleAnswerError):
            await keeper(world).answer_request(T, "late", request_id=asked.request_id)

    async def test_abort(self, world: World) -> None:
        """H8: a cancel with keep, in one call; again it is a no-op."""
        await self.ask(world, "a")
        await world.checkpointer.append(T, [user("q", run_id="x"), call("c").model_copy(update={"run_id": "x"})])
        assert (await keeper(world).abort_pending(T, "closed")).run is not None
        assert await keeper(world).load_requests(T) == []
        assert await world.status("x") is RunStatus.CANCELLED
        assert (await keeper(world).abort_pending(T, "closed")).run is None
        assert (await world.texts())[-1] == "aborted: closed"

    async def test_end_of_the_run_closes_them(self, world: World) -> None:
        """H3, H7: by completion, or by the deadline that ends it; a late answer is stale."""
        [asked] = await self.ask(world, "a")
        await world.checkpointer.mark_run_complete(T, "x")
        with pytest.raises(errors.HitlStaleAnswerError):
            await keeper(world).answer_request(T, 1, request_id=asked.request_id)
        await world.checkpointer.claim_run(T, "y")
        late = HitlRequest(request_id=f"{world.backend.tenant}late", timeout=0, on_deadline={"fail": True})
        await keeper(world).save_requests(T, [late], run_id="y")
        with pytest.raises((errors.HitlStaleAnswerError, errors.HitlNoPendingRequestError)):
            await keeper(world).answer_request(T, 1, request_id=late.request_id)
        assert late.request_id not in [r.request_id for r in await keeper(world).load_requests(T)]
        run = await world.run("y")
        assert run.error is not None and (run.status, run.error.code) == (RunStatus.FAILED, "hitl_timeout")


def keeper(world: World) -> RequestStore:
    return cast(RequestStore, world.checkpointer)


async def loaded(world: World, thread: str = T) -> list[str]:
    data = await world.checkpointer.load(thread)
    assert data is not None
    return texts(data.messages)
