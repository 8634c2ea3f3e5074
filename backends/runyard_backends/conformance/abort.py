"""The abort of a run that waits for a human (H8). An abort is a cancel with ``keep``: the run's messages stay in the
conversation. The abort also adds a last message."""

from __future__ import annotations

from typing import Any

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.domain.tool_cycles import abort_messages
from runyard.models import HitlRequest, Message, RunOptions, new_id
from runyard.ports.commands import AcceptRequest
from runyard.ports.refs import AttemptToken

from .world import T, World, call, result, said, texts

pytestmark = pytest.mark.asyncio


class TestAbortWithoutWorkers:
    """The tests of :class:`TestAbort` that also apply to a store without workers."""

    async def test_h8_a_run_without_a_worker(self, world: World) -> None:
        """H8, R13: An external run that waits for the answer to a checkpointer's question can be aborted."""
        await world.checkpointer.claim_run(T, "x")
        said_so_far = [message.model_copy(update={"run_id": "x"}) for message in (Message.user("x?"), call("a"))]
        await world.checkpointer.append(T, said_so_far)
        await world.checkpointer.save_pending_request(T, HitlRequest(request_id="q"), run_id="x")
        assert (await world.runs.abort_pending(T, "no")).run is not None
        assert await world.texts() == ["x?", "call:a", "result:a", "aborted: no"]
        assert await world.checkpointer.load_pending(T) is None


class TestAbort(TestAbortWithoutWorkers):
    """The operation ``abort_pending``."""

    async def waiting(
        self, world: World, run_id: str = "r1", *before: Message, requests: int = 1, **fields: Any
    ) -> AttemptToken:
        """Make a run that waits for the answers to ``requests`` requests."""
        attempt = await world.start(run_id, f"{run_id}?", **fields)
        asked = [HitlRequest(request_id=f"{run_id}-{n}") for n in range(requests)]
        assert (await world.ask(attempt, *asked, messages=before)).status is RunStatus.SUSPENDED
        return attempt

    async def test_h8_open_calls_get_results_and_an_assistant_message_ends_it(self, world: World) -> None:
        """H8, R10: Open calls get error results, and an assistant message ends the run. Later runs and forks see the run's
        messages."""
        await self.waiting(world, "r1", call("a", "b", "c"), result("b"))
        await world.accept("r2", "r2?")
        done = await world.runs.abort_pending(T, "too late")
        assert done.run is not None
        assert (done.run.run_id, done.run.status, done.run.completion_seq) == ("r1", RunStatus.CANCELLED, 1)
        assert [job.run_id for job in done.effects.jobs] == ["r2"]
        assert [(event.type, event.event_id) for event in done.effects.events] == [("run.cancelled", done.run.event_id)]

        messages = await world.messages()
        assert texts(messages) == ["r1?", "call:a,b,c", "result:b", "result:a,c", "aborted: too late"]
        assert [m.parent_id for m in messages[1:]] == [m.id for m in messages[:-1]]
        assert {m.run_id for m in messages} == {"r1"}
        closing, last = messages[-2:]
        assert [(part.content, part.is_error) for part in closing.tool_results] == [("aborted: too late", True)] * 2
        assert (last.role, last.stop_reason) == ("assistant", "aborted")
        assert await world.cut(after_run_id="r1") == texts(messages)
        assert await world.context(await world.take("r2")) == [*texts(messages), "r2?"]

    async def test_h8_every_store_says_what_an_agent_alone_says(self, world: World) -> None:
        """H8: The last messages of an abort have the texts of :func:`runyard.domain.tool_cycles.abort_messages` in every
        store."""
        await self.waiting(world, "r1", call("a", "b"), result("b"))
        before = await world.messages(leaf=(await world.leaves())[0].message_id)
        await world.runs.abort_pending(T, "why")
        stored, expected = (await world.messages())[-2:], abort_messages(before, "why")
        for one, other in zip(stored, expected, strict=True):
            assert (one.role, one.content, one.stop_reason) == (other.role, other.content, other.stop_reason)

    async def test_h8_a_second_abort_changes_nothing(self, world: World) -> None:
        """H8: A second abort changes nothing."""
        await self.waiting(world, "r1", call("a"))
        await world.runs.abort_pending(T, "once")
        before = await world.messages(), await world.run("r1")
        for run_id in (None, "r1"):
            again = await world.runs.abort_pending(T, "twice", run_id=run_id)
            assert again.run is None and not again.effects
        assert (await world.messages(), await world.run("r1")) == before

    async def test_h8_the_questions_are_closed(self, world: World) -> None:
        """H8, H3: An abort closes the questions. A late answer is stale."""
        await self.waiting(world, requests=2)
        await world.runs.abort_pending(T, "no")
        assert (await world.runs.requests()).items == []
        with pytest.raises(errors.HitlStaleAnswerError):
            await world.runs.respond(1, thread_id=T, request_id="r1-0")

    async def test_h8_a_run_that_said_nothing(self, world: World) -> None:
        """H8: If the aborted run wrote no message, the last message of the abort follows the user's message."""
        await world.store("anyone?")
        await world.accept("r1", None)
        await world.ask(await world.take("r1"), HitlRequest(request_id=new_id()))
        await world.runs.abort_pending(T, "no")
        assert await world.texts() == ["anyone?", "aborted: no"]
        assert (await world.run("r1")).completion_seq == 1

    @pytest.mark.parametrize("taken", [False, True], ids=["queued", "running"])
    async def test_h8_a_run_that_has_one_answer_and_waits_for_another(self, world: World, taken: bool) -> None:
        """H8, I8: If a queued run has one of two answers, an abort ends the run at once. If a worker executes the run, the
        worker stores nothing more."""
        await self.waiting(world, "r1", call("a"), requests=2)
        await world.runs.respond(1, request_id="r1-0")
        attempt = await world.take("r1") if taken else None
        done = await world.runs.abort_pending(T, "no")
        assert done.run is not None
        if attempt is not None:
            assert done.run.status is RunStatus.RUNNING and [ref.run_id for ref in done.effects.cancels] == ["r1"]
            with pytest.raises(errors.CancelRequestedError):
                await world.runs.append(attempt, [result("a")])
            assert (await world.finish(attempt, result("a"), said("done"))).status is RunStatus.CANCELLED
        assert await world.status("r1") is RunStatus.CANCELLED
        assert await world.texts() == ["r1?", "call:a", "result:a", "aborted: no"]

    async def test_h8_an_earlier_cancel_decides(self, world: World) -> None:
        """R10: A cancel without ``keep=True`` removes the messages of a run from the conversation. A later abort does not
        change this."""
        await self.waiting(world, requests=2)
        await world.runs.respond(1, request_id="r1-0")
        attempt = await world.take("r1")
        await world.runs.cancel(T, "r1")
        await world.runs.abort_pending(T, "no")
        await world.finish(attempt)
        assert await world.texts() == [] and (await world.run("r1")).completion_seq is None

    async def test_h8_i7_what_no_provider_accepts_is_not_kept(self, world: World) -> None:
        """I7: Providers may refuse a run's messages even after its open calls were closed. Such messages are in no context."""
        await self.waiting(world, "r1", call("a"), said("and more"))
        done = await world.runs.abort_pending(T, "no")
        assert done.run is not None and (done.run.status, done.run.completion_seq) == (RunStatus.CANCELLED, None)
        assert await world.texts() == []

    async def test_h8_several_wait(self, world: World) -> None:
        """H8, H3: If several runs wait, the call must name the run to abort."""
        await world.turn("before")
        await self.waiting(world, "r1")
        await self.waiting(world, "r2", options=RunOptions(parallel=True))
        with pytest.raises(errors.HitlAmbiguousError) as caught:
            await world.runs.abort_pending(T, "no")
        assert set(caught.value.details["run_ids"]) == {"r1", "r2"}
        assert (await world.runs.abort_pending(T, "no", run_id="r2")).run is not None
        assert [await world.status(run_id) for run_id in ("r1", "r2")] == [RunStatus.SUSPENDED, RunStatus.CANCELLED]

    async def test_h8_nothing_waits(self, world: World) -> None:
        """H8: A run that does not wait is not aborted."""
        with pytest.raises(errors.ThreadNotFoundError):
            await world.runs.abort_pending(T, "no")
        attempt = await world.start("r1")
        assert (await world.runs.abort_pending(T, "no")).run is None
        with pytest.raises(errors.RunNotFoundError):
            await world.runs.abort_pending(T, "no", run_id="other")
        await world.finish(attempt, said("done"))
        assert await world.texts() == ["hi", "done"]

    @pytest.mark.parametrize("reason", ["nul \0", "lone \ud800", "x" * 5000], ids=["nul", "surrogate", "long"])
    async def test_h8_a_reason_that_cannot_be_stored(self, world: World, reason: str) -> None:
        await self.waiting(world)
        with pytest.raises(errors.InvalidInputError):
            await world.runs.abort_pending(T, reason)
        assert await world.status("r1") is RunStatus.SUSPENDED

    async def test_h8_the_next_prompt_follows(self, world: World) -> None:
        """H8, E5: The next prompt continues after the last message of the abort. The feed reports the abort as a cancel."""
        await self.waiting(world, "r1", call("a"))
        await world.runs.abort_pending(T, "no")
        await world.runs.accept(AcceptRequest(thread_id=T, run_id="r2", input=Message.user("again")))
        await world.finish(await world.take("r2"), said("well"))
        assert (await world.texts())[-3:] == ["aborted: no", "again", "well"]
        types = [entry.type for entry in (await world.backend.feed.read()).items]
        assert types == ["run.suspended", "run.cancelled", "run.completed"]
