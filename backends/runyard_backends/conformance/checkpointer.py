"""The checkpointer (R13), and the requests that a checkpointer keeps for an in-process Agent (R14)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import HitlRequest, new_id
from runyard.ports.commands import Write

from .world import T, World, call, said, texts, user

pytestmark = pytest.mark.asyncio


class TestCheckpointerWithoutWorkers:
    """The tests of :class:`TestCheckpointer` that also apply to a store without workers."""

    async def test_load_returns_messages_extra_and_parent(self, world: World) -> None:
        """R15, R1: ``load`` returns messages, extra and parent, or None for an unknown thread."""
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
        """R15: The top-level keys of the given extra replace the stored keys. Other stored keys stay."""
        await world.checkpointer.save_extra(T, {"a": {"x": 1}, "b": 1})
        await world.checkpointer.save_extra(T, {"a": {"y": 2}, "c": None})
        data = await world.checkpointer.load(T)
        assert data is not None and data.extra == {"a": {"y": 2}, "b": 1, "c": None}
        with pytest.raises(errors.InvalidInputError):
            await world.checkpointer.save_extra(T, {"a": ["\0"]})

    async def test_pending_request(self, world: World) -> None:
        """R15: The pending request and its run id are stored together. Saving None removes the request and its run id. The run
        id can be missing."""
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

    async def test_fork_keeps_its_options(self, world: World) -> None:
        """F7: A checkpointer's fork has the title, tags and agent of the call."""
        await world.turn("r1")
        await world.checkpointer.fork(T, "c", after_run_id="r1", title="Copy", tags={"a": "b"}, agent="z")
        fork = await world.threads.thread("c")
        assert fork is not None and (fork.title, fork.tags, fork.agent) == ("Copy", {"a": "b", "title": "Copy"}, "z")

    async def test_errors_of_snapshot_and_fork(self, world: World) -> None:
        """R1, F4: ``snapshot`` and ``fork`` raise the documented errors."""
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
        """F4: The checkpointer's ``fork`` refuses the id of an existing thread, even if an equal call made this thread.
        ``ThreadStore.fork`` can be repeated."""
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
        """R1: ``append`` creates the thread even without messages."""
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
        """R15: A call with an object that is not a runyard message stores nothing, and the error names the accepted type."""
        for verb in (world.checkpointer.append(T, [user("x"), foreign]), world.threads.store_message(T, foreign)):
            with pytest.raises(errors.InvalidInputError, match=type(foreign).__name__):
                await verb
        assert await world.checkpointer.load(T) is None


class TestCheckpointer(TestCheckpointerWithoutWorkers):
    @pytest.mark.parametrize("request_id", ["", ".", "..", "a\nb", "a\x85", "\u2028", "x" * 256])
    async def test_a_request_has_an_id_that_a_path_can_name(self, world: World, request_id: str) -> None:
        """A2, H3: The id of a request must fit into the path of a URL. A call that saves a request with another id is refused
        and stores nothing."""
        request = HitlRequest(request_id=request_id)
        with pytest.raises(errors.InvalidInputError):
            await world.checkpointer.save_pending_request(T, request)
        with pytest.raises(errors.InvalidInputError):
            await world.request_store.save_requests(T, [HitlRequest(), request], run_id="x")
        attempt = await world.start("r1")
        with pytest.raises(errors.InvalidInputError):
            await world.runs.suspend(Write(attempt=attempt), [request])
        assert not (await world.runs.requests()).items

    async def test_clearing_leaves_a_suspended_run_alone(self, world: World) -> None:
        """H6: Removing the pending request does not remove the request of a suspended run. Only an answer, a cancel or the
        deadline closes that request."""
        request = await world.suspended("r1")
        await world.checkpointer.save_pending_request(T, None)
        pending = await world.checkpointer.load_pending(T)
        assert pending is not None and (pending[0].request_id, pending[1]) == (request, "r1")

    async def test_request_saved_under_a_suspended_run_is_cleared_like_any_other(self, world: World) -> None:
        """R15: A request that was saved with the id of a suspended run can be removed. The run's own request stays
        unchanged."""
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
        """I6: If a request is saved for a running run, the run's ledger has the answer, and the run does not ask again."""
        attempt = await world.start("r1")
        request = HitlRequest(request_id=new_id())
        await world.checkpointer.save_pending_request(T, request, run_id="r1")
        await world.runs.respond(1, thread_id=T)
        assert (await world.ask(attempt, request)).status is RunStatus.RUNNING
        assert (await world.runs.ledger(attempt)).requests[request.request_id].answer == 1


class TestRequests:
    """The methods of a checkpointer that an in-process Agent needs for its questions (R14)."""

    async def ask(self, world: World, *ids: str, **fields: Any) -> list[HitlRequest]:
        await world.checkpointer.claim_run(T, "x")
        requests = [HitlRequest(request_id=f"{world.backend.tenant}{i}", payload={"question": i}, **fields) for i in ids]
        await world.request_store.save_requests(T, requests, run_id="x")
        return requests

    async def test_kept_beside_each_other(self, world: World) -> None:
        """H5, H10: Parallel requests are stored separately and are in the inbox. Saving the same requests again changes
        nothing."""
        asked = await self.ask(world, "a", "b")
        await world.request_store.answer_request(T, 1, request_id=asked[0].request_id)
        await world.request_store.save_requests(T, asked, run_id="x")
        kept = {r.request_id: (r.run_id, r.answer) for r in await world.request_store.load_requests(T, run_id="x")}
        assert kept == {asked[0].request_id: ("x", 1), asked[1].request_id: ("x", None)}
        assert [r.request_id for r in (await world.runs.requests()).items] == [asked[1].request_id]
        assert await world.request_store.load_requests(T, run_id="other") == []
        assert await world.request_store.load_requests("unknown") == []

    async def test_an_id_of_another_run_or_thread_is_refused(self, world: World) -> None:
        """R14, H1: A call with a request id of another run or thread raises an error and stores nothing."""
        [asked] = await self.ask(world, "a")
        others = HitlRequest(request_id=f"{world.backend.tenant}b")
        for thread_id, run_id in ((T, "y"), ("new", "x"), ("new", "y")):
            with pytest.raises(errors.InvalidInputError, match="taken") as refused:
                await world.request_store.save_requests(thread_id, [others, asked], run_id=run_id)
            assert refused.value.details["request_id"] == asked.request_id
        with pytest.raises(errors.InvalidInputError, match="taken"):
            await world.checkpointer.save_pending_request("new", asked)
        assert await world.checkpointer.load("new") is None
        assert [r.request_id for r in await world.request_store.load_requests(T)] == [asked.request_id]
        with pytest.raises(errors.HitlNoPendingRequestError):
            await world.runs.respond(1, request_id=others.request_id)

    async def test_a_deleted_thread_frees_the_ids_of_its_requests(self, world: World) -> None:
        """R14: A thread had pending and answered requests. After its deletion, requests of another thread may have the same
        ids."""
        asked = await self.ask(world, "a", "b")
        await world.request_store.answer_request(T, 1, request_id=asked[0].request_id)
        await world.threads.delete_thread(T)
        await world.checkpointer.save_pending_request("new", asked[1])
        await world.request_store.save_requests("new", asked[:1], run_id="x")
        kept = await world.request_store.load_requests("new")
        assert {r.request_id: r.answer for r in kept} == dict.fromkeys((r.request_id for r in asked), None)

    async def test_answers_are_applied_once(self, world: World) -> None:
        """H3, H4: An answer is applied once."""
        asked = await self.ask(world, "a", "b", answer_schema={"type": "integer"})
        with pytest.raises(errors.HitlAmbiguousError):
            await world.request_store.answer_request(T, 1)
        with pytest.raises(errors.HitlInvalidAnswerError):
            await world.request_store.answer_request(T, "x", request_id=asked[0].request_id)
        first, again = [await world.request_store.answer_request(T, 1, request_id=asked[0].request_id) for _ in range(2)]
        assert (first.created, again.created, again.request.answer) == (True, False, 1)
        with pytest.raises(errors.HitlAlreadyAnsweredError):
            await world.runs.respond(2, thread_id=T, request_id=asked[0].request_id)

    @pytest.mark.parametrize("run_id", ["", "..", "a\nb", "x" * 256])
    async def test_a_run_has_an_id_that_a_path_can_name(self, world: World, run_id: str) -> None:
        """A2, R13: A run id must fit into the path of a URL. A call with another run id is refused and stores nothing."""
        cp = world.checkpointer
        for call_of in (
            cp.append(T, [user("x", run_id=run_id)]),
            cp.claim_run(T, run_id),
            cp.save_pending_request(T, HitlRequest(), run_id=run_id),
            world.request_store.save_requests(T, [HitlRequest()], run_id=run_id),
        ):
            with pytest.raises(errors.InvalidInputError):
                await call_of
        assert await cp.load(T) is None

    async def test_the_name_of_a_responder_has_a_bound(self, world: World) -> None:
        """A2, H3: Every store accepts the same names of responders. After a refused answer, the request is still pending."""
        [asked] = await self.ask(world, "a")
        answer = {"thread_id": T, "request_id": asked.request_id}
        for names in ({"answered_by": "é" * 1001}, {"on_behalf_of": "é" * 1001}):
            with pytest.raises(errors.InvalidInputError):
                await world.runs.respond(1, **answer, **names)
        responded = await world.runs.respond(1, **answer, answered_by="é" * 1000, on_behalf_of="é" * 1000)
        assert responded.created and responded.request.on_behalf_of == "é" * 1000

    async def test_the_last_answer_is_known(self, world: World) -> None:
        """H4, H5: All requests of a run are answered at the same time. Exactly one of the calls reports that no request is
        left."""
        one, *others = await self.ask(world, "a", "b", "c")
        await world.request_store.save_requests(T, [HitlRequest(request_id=f"{world.backend.tenant}d", payload={})], run_id="y")
        assert not (await world.request_store.answer_request(T, 1, request_id=one.request_id)).last
        answers = [world.request_store.answer_request(T, 1, request_id=other.request_id) for other in others]
        assert sorted(answer.last for answer in await asyncio.gather(*answers)) == [False, True]
        assert not (await world.request_store.answer_request(T, 1, request_id=others[-1].request_id)).last

    async def test_overdue_ones_have_their_own_answer(self, world: World) -> None:
        """H7: Overdue requests get their default answer even without a reconciler."""
        [asked] = await self.ask(world, "a", timeout=0, on_deadline={"answer": "later"})
        [loaded] = await world.request_store.load_requests(T)
        assert (loaded.answer, loaded.answered_by) == ("later", "deadline")
        with pytest.raises(errors.HitlStaleAnswerError):
            await world.request_store.answer_request(T, "late", request_id=asked.request_id)

    async def test_abort(self, world: World) -> None:
        """H8: ``abort_pending`` cancels with keep and closes the requests, in one call. A repetition has no effect."""
        [asked] = await self.ask(world, "a")
        await world.checkpointer.append(T, [user("q", run_id="x"), call("c").model_copy(update={"run_id": "x"})])
        assert (await world.request_store.abort_pending(T, "closed")).run is not None
        assert await world.request_store.load_requests(T) == []
        assert [each.request_id for each in (await world.runs.requests(pending=False)).items] == [asked.request_id]
        with pytest.raises(errors.HitlStaleAnswerError):
            await world.request_store.answer_request(T, 1, request_id=asked.request_id)
        assert await world.status("x") is RunStatus.CANCELLED
        assert (await world.request_store.abort_pending(T, "closed")).run is None
        assert (await world.texts())[-1] == "aborted: closed"

    async def test_end_of_the_run_closes_them(self, world: World) -> None:
        """H3, H7: The end of the run, by completion or by a deadline, closes its requests. A late answer is stale."""
        [asked] = await self.ask(world, "a")
        await world.checkpointer.mark_run_complete(T, "x")
        with pytest.raises(errors.HitlStaleAnswerError):
            await world.request_store.answer_request(T, 1, request_id=asked.request_id)
        await world.checkpointer.claim_run(T, "y")
        late = HitlRequest(request_id=f"{world.backend.tenant}late", timeout=0, on_deadline={"fail": True})
        await world.request_store.save_requests(T, [late], run_id="y")
        with pytest.raises((errors.HitlStaleAnswerError, errors.HitlNoPendingRequestError)):
            await world.request_store.answer_request(T, 1, request_id=late.request_id)
        assert late.request_id not in [r.request_id for r in await world.request_store.load_requests(T)]
        run = await world.run("y")
        assert run.error is not None and (run.status, run.error.code) == (RunStatus.FAILED, "hitl_timeout")

    async def test_a_deadline_closes_a_request_of_an_ended_run(self, world: World) -> None:
        """H7: A request can be saved after its run has ended. The deadline of this request only closes the request, because
        there is no run to fail."""
        await world.checkpointer.claim_run(T, "x")
        await world.checkpointer.mark_run_complete(T, "x")
        late = HitlRequest(request_id=f"{world.backend.tenant}late", timeout=0, on_deadline={"fail": True})
        await world.request_store.save_requests(T, [late], run_id="x")
        assert await world.request_store.load_requests(T) == []
        assert await world.status("x") is RunStatus.COMPLETED
