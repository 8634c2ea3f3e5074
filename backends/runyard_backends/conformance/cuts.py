"""Cuts at a message, tool cycles and repair (F6)."""

from __future__ import annotations

import pytest

from runyard import errors
from runyard.models import new_id

from .world import World, call, result, said, user

pytestmark = pytest.mark.asyncio


class TestMessageCutsWithoutWorkers:
    """The tests of :class:`TestMessageCuts` that also apply to a store without workers."""

    async def test_inclusive_cut(self, world: World) -> None:
        """F6, F2: A cut can be at any visible message and includes this message. ``forked_after_run_id`` of such a fork is
        None."""
        await world.turn("r1")
        await world.turn("r2")
        for n, message in enumerate(await world.messages()):
            forked = await world.fork(f"c{n}", at_message_id=message.id)
            assert await world.texts(f"c{n}") == ["r1?", "r1!", "r2?", "r2!"][: n + 1]
            assert (forked.thread.forked_after_run_id, forked.thread.forked_at_seq) == (None, message.seq)
            await world.fork(f"s{n}", at_seq=message.seq)
            assert await world.texts(f"s{n}") == ["r1?", "r1!", "r2?", "r2!"][: n + 1]

    async def test_unknown_messages(self, world: World) -> None:
        await world.turn("r1")
        await world.turn("other", thread="u")
        for unknown in (new_id(), await world.id_of("other!", "u")):
            with pytest.raises(errors.MessageNotFoundError):
                await world.fork("c", at_message_id=unknown)
        with pytest.raises(errors.MessageNotFoundError):
            await world.fork("c", at_seq=99)
        with pytest.raises(errors.InvalidInputError):
            await world.fork("c", at_message_id="nope")

    async def test_messages_after_the_cut_are_not_there(self, world: World) -> None:
        """F6: A message after the cut is unknown in the fork. A fork of the fork cannot have its cut at this message."""
        await world.turn("r1")
        await world.turn("r2")
        await world.fork("c", after_run_id="r1")
        with pytest.raises(errors.MessageNotFoundError):
            await world.fork("d", src="c", at_message_id=await world.id_of("r2!"))

    async def test_messages_of_an_unclaimed_run_are_not_there(self, world: World) -> None:
        message = said("ghost", run_id="ghost")
        await world.checkpointer.append("t", [user("x"), message])
        with pytest.raises(errors.MessageNotFoundError):
            await world.fork("c", at_message_id=message.id)

    async def test_cut_at_a_plain_message_shows_everything_completed(self, world: World) -> None:
        """S4: A cut is made at a message without a run. It shows the earlier messages of all runs that have completed at this
        time."""
        cp = world.checkpointer
        await cp.claim_run("t", "x")
        message = user("plain")
        await cp.append("t", [said("x1", run_id="x"), message, said("x2", run_id="x")])
        assert await world.cut(at_message_id=message.id) == ["plain"]
        await world.fork("before", at_message_id=message.id)
        await cp.mark_run_complete("t", "x")
        assert await world.cut(at_message_id=message.id) == ["x1", "plain"]
        await world.fork("after", at_message_id=message.id)
        assert await world.texts("before") == ["plain"]
        assert await world.texts("after") == ["x1", "plain"]
        assert await world.cut("before", at_message_id=message.id) == ["plain"]
        assert await world.cut("after", at_message_id=message.id) == ["x1", "plain"]

    async def test_repair_without_open_calls_adds_nothing(self, world: World) -> None:
        await world.turn("r1")
        await world.fork("c", at_message_id=await world.id_of("r1!"), repair=True)
        assert await world.texts("c") == ["r1?", "r1!"]


class TestMessageCuts(TestMessageCutsWithoutWorkers):
    async def test_cut_in_a_failed_run_shows_its_context_and_itself(self, world: World) -> None:
        """F6: A cut in a failed run shows the run's context, and the run's messages up to the cut. The cut shows no runs that
        complete later."""
        cp = world.checkpointer
        await world.turn("r1")
        await cp.claim_run("t", "beside")
        attempt = await world.start("bad", "bad?")
        await cp.append("t", [said("beside", run_id="beside")])
        await cp.mark_run_complete("t", "beside")
        (last,) = await world.runs.append(attempt, [said("bad…")])
        await world.runs.cancel("t", "bad")
        await world.finish(attempt)
        await world.fork("c", at_message_id=last.id)
        assert await world.texts("c") == ["r1?", "r1!", "bad?", "bad…"]

    async def test_inside_a_tool_cycle(self, world: World) -> None:
        """F6: A cut inside a tool cycle raises ForkBoundaryError. The error names the nearest valid cuts before and after the
        refused cut."""
        attempt = await world.start("r1", "q")
        calls, partial, rest, last = call("a", "b"), result("a"), result("b"), said("done")
        await world.finish(attempt, calls, partial, rest, last)
        question = (await world.messages())[0].id
        for inside in (calls, partial):
            with pytest.raises(errors.ForkBoundaryError) as caught:
                await world.fork("c", at_message_id=inside.id)
            assert (caught.value.details["before"], caught.value.details["after"]) == (question, rest.id)
        await world.fork("c", at_message_id=rest.id)

    async def test_boundary_without_an_end(self, world: World) -> None:
        attempt = await world.start("r1", None, parent_id=await world.store("q"))
        (calls,) = await world.runs.append(attempt, [call("a")])
        with pytest.raises(errors.ForkBoundaryError) as caught:
            await world.fork("c", at_message_id=calls.id)
        assert caught.value.details["after"] is None
        assert caught.value.details["before"] == (await world.messages())[0].id

    async def test_repair_closes_open_calls(self, world: World) -> None:
        """F6: With ``repair``, the fork gets error results for open calls. The source stays unchanged."""
        attempt = await world.start("r1", "q")
        _, partial = await world.runs.append(attempt, [call("a", "b"), result("a")])
        forked = await world.fork("c", at_message_id=partial.id, repair=True)
        messages = await world.messages("c")
        assert [m.role for m in messages] == ["user", "assistant", "tool", "tool"]
        (closing,) = messages[-1].tool_results
        assert (closing.call_id, closing.is_error, messages[-1].run_id) == ("b", True, None)
        assert messages[-1].parent_id == partial.id and forked.thread.forked_at_seq == partial.seq
        assert len(await world.messages(leaf=partial.id)) == 3
        attempt = await world.start("own", "go on", thread="c")
        assert (await world.context(attempt))[-2:] == ["result:b", "go on"]

    async def test_prompt_inside_a_tool_cycle(self, world: World) -> None:
        """F6: A prompt after a message with open tool calls is refused. A cut at this message is also refused."""
        attempt = await world.start("r1", "q")
        calls = call("a")
        await world.finish(attempt, calls, result("a"), said("done"))
        with pytest.raises(errors.ForkBoundaryError):
            await world.accept("r2", parent_id=calls.id)
        assert await world.runs.run("t", "r2") is None
