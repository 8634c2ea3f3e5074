"""The context of an attempt. An attempt reads its context as a whole, or in pages from its end.

A store may keep the histories that it read. A kept history must not make a later context wrong. These tests therefore read the
contexts of several runs in one process, and change the thread between two reads.
"""

from __future__ import annotations

import pytest

from runyard import errors
from runyard.domain.messages import by_run
from runyard.models import ErrorInfo, Message, RunOptions, TextPart
from runyard.ports.commands import Write
from runyard.ports.refs import AttemptToken

from .world import T, World, call, result, said, texts, user

pytestmark = pytest.mark.asyncio


async def seen(world: World, run_id: str, *, thread: str = T, **fields: RunOptions | str | None) -> list[str]:
    """Return the messages that a new run sees before its input. The run fails, so that no later run sees its input."""
    attempt = await world.start(run_id, "?", thread=thread, **fields)
    context = await world.context(attempt)
    await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))
    assert context.pop() == "?"
    return context


async def pages(world: World, attempt: AttemptToken, limit: int) -> list[Message]:
    """Read the context from its end, in pages."""
    found: list[Message] = []
    while page := await world.runs.recent(attempt, limit, found[-1] if found else None):
        assert len(page) <= limit
        found += page
    return found


class TestContexts:
    async def test_each_turn_sees_the_turns_before_it(self, world: World) -> None:
        """S5: The context of a run has the messages of the earlier completed runs. The test reads contexts of a thread, of its
        fork and of a branch."""
        expected: list[str] = []
        for n in range(3):
            assert await seen(world, f"x{n}") == expected
            await world.turn(f"r{n}")
            expected += [f"r{n}?", f"r{n}!"]
        await world.fork("fork", after_run_id="r1")
        assert await seen(world, "y0", thread="fork") == expected[:4]
        await world.turn("f", thread="fork")
        assert await seen(world, "y1", thread="fork") == [*expected[:4], "f?", "f!"]
        assert await seen(world, "x3") == expected
        await world.store("beside", await world.id_of("r0!"))
        assert await seen(world, "x4") == [*expected[:2], "beside"]
        await world.turn("b")
        assert await seen(world, "x5") == [*expected[:2], "beside", "b?", "b!"]
        assert await seen(world, "x6", parent_id=await world.id_of("r2!")) == expected

    async def test_a_caller_may_change_its_messages(self, world: World) -> None:
        """I5: Changes to the messages of a context are in no other context."""
        await world.checkpointer.append(T, [user("plain", metadata={"a": {"b": 1}})])
        await world.turn("r1")
        attempt = await world.start("r2", "?")
        before = await world.runs.context(attempt)
        unchanged = [message.model_copy(deep=True) for message in before]
        for message in before:
            message.metadata["changed"] = True
            message.role = "system"
            assert isinstance(message.content[0], TextPart)
            message.content[0].text = "changed"
            message.content.append(TextPart(text="more"))
        before.clear()
        assert await world.runs.context(attempt) == unchanged
        await world.finish(attempt)
        assert (await world.runs.context(await world.start("r3", "?")))[:-1] == unchanged

    async def test_a_run_that_completes_late_is_at_its_place(self, world: World) -> None:
        """S5: A run completes after another context was read. Later contexts have the messages of this run at the place where
        the run began."""
        cp = world.checkpointer
        await world.turn("r1")
        await cp.claim_run(T, "late")
        await cp.append(T, [said("late 1", run_id="late")])
        await world.turn("r2")
        assert await seen(world, "x1") == ["r1?", "r1!", "r2?", "r2!"]
        await cp.append(T, [said("late 2", run_id="late")])
        await cp.mark_run_complete(T, "late")
        assert await seen(world, "x2") == ["r1?", "r1!", "late 1", "late 2", "r2?", "r2!"]

    async def test_a_redriven_run_is_at_its_place(self, world: World) -> None:
        """The messages of a failed run are in no context. After a redrive, the run completes, and its messages are in later
        contexts."""
        await world.turn("r1")
        await world.failed("bad")
        await world.turn("r2")
        assert await seen(world, "x1") == ["r1?", "r1!", "r2?", "r2!"]
        await world.runs.redrive(T, "bad")
        again = await world.take("bad")
        assert await world.context(again) == ["r1?", "r1!", "bad?", "bad…"]
        await world.finish(again, said("bad!"))
        assert await seen(world, "x2") == ["r1?", "r1!", "bad?", "bad…", "bad!", "r2?", "r2!"]

    async def test_a_later_attempt_sees_the_snapshot_of_the_first(self, world: World) -> None:
        """R9: A later attempt of a run sees the same snapshot as the first attempt. Between the two attempts, another run has
        read a longer history."""
        await world.turn("r1")
        attempt = await world.start("slow", "?", options=RunOptions(parallel=True), parent_id=await world.id_of("r1!"))
        assert await world.context(attempt) == ["r1?", "r1!", "?"]
        await world.runs.append(attempt, [said("half")])
        await world.runs.release(attempt)
        await world.turn("r2")
        assert await seen(world, "x") == ["r1?", "r1!", "r2?", "r2!"]
        assert await world.context(await world.take("slow")) == ["r1?", "r1!", "?", "half"]

    async def test_an_erasure_is_in_the_next_context(self, world: World) -> None:
        """After a thread is erased, contexts of its forks have tombstones instead of its messages. Forks of forks have
        tombstones too."""
        await world.turn("root", thread="root")
        await world.fork(T, src="root", after_run_id="root")
        await world.turn("r1")
        await world.fork("child", after_run_id="r1")
        await world.turn("c1", thread="child")
        await world.fork("grandchild", src="child", after_run_id="c1")
        for thread in ("child", "grandchild"):
            assert (await seen(world, "x1", thread=thread))[2:] == ["r1?", "r1!", "c1?", "c1!"]
        await world.threads.erase_thread(T)
        for thread in ("child", "grandchild"):
            expected = ["root?", "root!", "[erased]", "[erased]", "c1?", "c1!"]
            assert await seen(world, "x2", thread=thread) == expected
            assert await seen(world, "x3", thread=thread) == expected
        await world.threads.erase_thread("root")
        assert await seen(world, "x4", thread="grandchild") == ["[erased]"] * 4 + ["c1?", "c1!"]

    @pytest.mark.parametrize("erase", [False, True])
    async def test_a_thread_with_the_id_of_a_deleted_thread_begins_anew(self, world: World, erase: bool) -> None:
        await world.turn("r1")
        assert await seen(world, "x") == ["r1?", "r1!"]
        await (world.threads.erase_thread if erase else world.threads.delete_thread)(T)
        assert await seen(world, "x") == []
        await world.turn("r1")
        assert await seen(world, "y") == ["r1?", "r1!"]

    async def test_threads_of_two_tenants_with_one_id(self, world: World) -> None:
        other = World(world.backend.for_tenant("other"), world.factory)
        await world.turn("r1")
        await other.turn("r2")
        for n in range(2):
            assert await seen(world, f"x{n}") == ["r1?", "r1!"]
            assert await seen(other, f"x{n}") == ["r2?", "r2!"]

    @pytest.mark.parametrize("limit", [1, 2, 3, 100])
    async def test_pages_from_the_end_are_the_context(self, world: World, limit: int) -> None:
        """S5: The pages from the end have the same messages as the whole context. The fork has messages without a run and
        messages of the attempt's run. Its source has a failed run."""
        await world.turn("r1")
        await world.failed("bad")
        tools = await world.start("tools", "?")
        await world.runs.append(tools, [call("a"), result("a")])
        await world.finish(tools, said("done"))
        await world.fork("fork", after_run_id="tools")
        await world.store("plain", thread="fork")
        await world.turn("f", thread="fork")
        attempt = await world.start("now", "now?", thread="fork")
        await world.runs.append(attempt, [call("b"), result("b")])
        whole = await world.runs.context(attempt)
        assert texts(whole)[-3:] == ["now?", "call:b", "result:b"] and len(whole) == 12
        assert by_run(reversed(await pages(world, attempt, limit))) == whole

    async def test_pages_of_a_run_that_was_stored_before_its_claim(self, world: World) -> None:
        """R13: The run's own messages are at the end of the context, even if their numbers are lower than those of the
        snapshot."""
        await world.checkpointer.append(T, [said("early", run_id="x")])
        await world.turn("r1")
        attempt = await world.start("x", "q")
        for limit in (1, 2, 10):
            assert texts(await pages(world, attempt, limit)) == ["q", "early", "r1!", "r1?"]

    async def test_only_the_attempt_reads_from_the_end(self, world: World) -> None:
        """I2: An attempt that is over cannot read the context of its run."""
        old = await world.start("r1")
        await world.runs.release(old)
        await world.take("r1")
        with pytest.raises(errors.StaleFenceError):
            await world.runs.recent(old, 1)
