"""Cancels of queued runs and of running runs, and cancels with keep (R10)."""

from __future__ import annotations

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo, Message
from runyard.ports.commands import Write

from .world import T, World, call, result, said, texts

pytestmark = pytest.mark.asyncio


class TestCancels:
    async def test_cancel_before_start_wins(self, world: World) -> None:
        """R10: A run that is cancelled before it starts never starts."""
        await world.accept("r1")
        changed = await world.runs.cancel(T, "r1")
        assert changed.run.status is RunStatus.CANCELLED
        assert [event.type for event in changed.effects.events] == ["run.cancelled"]
        assert (await world.claim("r1")).outcome == "ended"
        assert (await world.runs.cancel(T, "r1")).run.status is RunStatus.CANCELLED

    async def test_acknowledged_cancel_stops_writes(self, world: World) -> None:
        """I8: After a requested cancel, appends are refused. The end of the attempt cancels the run and stores nothing."""
        attempt = await world.start("r1")
        await world.runs.append(attempt, [said("before")])
        changed = await world.runs.cancel(T, "r1")
        assert changed.effects.cancels == [await world.ref("r1")]
        assert await world.workers.cancelling("w") == [await world.ref("r1")]
        with pytest.raises(errors.CancelRequestedError):
            await world.runs.append(attempt, [said("after")])
        with pytest.raises(errors.CancelRequestedError):
            await world.runs.start_step(attempt, "k")
        ended = await world.finish(attempt, said("after"))
        assert ended.status is RunStatus.CANCELLED
        assert await world.texts() == []
        assert await world.texts(leaf=(await world.leaves())[0].message_id) == ["hi", "before"]

    @pytest.mark.parametrize("verb", ["complete", "fail", "suspend", "release", "takeover"])
    async def test_keep_repairs_and_counts(self, world: World, verb: str) -> None:
        """R10: A cancel with keep closes open calls with error results. The run's messages stay in the conversation."""
        attempt = await world.start("r1")
        await world.runs.append(attempt, [call("a", "b"), result("a")])
        await world.runs.cancel(T, "r1", keep=True)
        match verb:
            case "complete":
                await world.finish(attempt, said("unheard"))
            case "fail":
                await world.runs.fail(Write(attempt=attempt, messages=[said("unheard")]), ErrorInfo(code="x", message="x"))
            case "suspend":
                await world.runs.suspend(Write(attempt=attempt, messages=[said("unheard")]), [])
            case "release":
                await world.runs.release(attempt)
            case _:
                await world.bury("w")
                assert (await world.claim("r1", worker="w2")).outcome == "ended"
        run = await world.run("r1")
        assert run.status is RunStatus.CANCELLED and run.completion_seq == 1
        messages = await world.messages()
        assert texts(messages) == ["hi", "call:a,b", "result:a", "result:b"]
        assert messages[-1].tool_results[0].is_error and messages[-1].tool_results[0].content == "cancelled"
        assert messages[-1].run_id == "r1"
        assert await world.cut(after_run_id="r1") == texts(messages)

    async def test_keep_of_a_run_that_said_nothing(self, world: World) -> None:
        """R10: A run that is cancelled with keep and has no messages gets no completion number."""
        await world.accept("r1")
        changed = await world.runs.cancel(T, "r1", keep=True)
        assert changed.run.status is RunStatus.CANCELLED and changed.run.completion_seq is None

    @pytest.mark.parametrize("said_then", [[result("x")], [call("a"), said("and more")]], ids=["stray result", "gap"])
    async def test_keep_of_what_no_provider_accepts(self, world: World, said_then: list[Message]) -> None:
        """I7, R10: Providers may refuse a run's messages even after its open calls were closed. A cancel with ``keep`` does not
        keep such messages, and no later run sees them."""
        attempt = await world.start("r1")
        await world.runs.append(attempt, said_then)
        await world.runs.cancel(T, "r1", keep=True)
        await world.finish(attempt)
        run = await world.run("r1")
        assert run.status is RunStatus.CANCELLED and run.completion_seq is None
        assert await world.texts() == []

    async def test_first_cancel_decides(self, world: World) -> None:
        attempt = await world.start("r1")
        await world.runs.cancel(T, "r1")
        await world.runs.cancel(T, "r1", keep=True)
        await world.finish(attempt)
        assert (await world.run("r1")).completion_seq is None
