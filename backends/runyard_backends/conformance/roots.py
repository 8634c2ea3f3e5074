"""Several first messages of one thread (B1, B5)."""

from __future__ import annotations

import pytest

from runyard import errors
from runyard.models import ROOT_ID, ErrorInfo, RunOptions
from runyard.ports.commands import Write

from .world import T, World, said, texts, user

pytestmark = pytest.mark.asyncio


class TestRootsWithoutWorkers:
    """The tests of :class:`TestRoots` that also apply to a store without workers."""

    async def test_store_a_second_first_message(self, world: World) -> None:
        """B1: A message with the parent ROOT_ID can be stored in a new thread and in a thread with messages. A repetition
        returns the stored message."""
        first = await world.store("a", ROOT_ID)
        await world.store("b")
        other = user("x")
        stored = await world.threads.store_message(T, other, ROOT_ID)
        assert (stored.parent_id, stored.seq) == (None, 3)
        assert await world.threads.store_message(T, other, ROOT_ID) == stored
        with pytest.raises(errors.InvalidInputError):
            await world.threads.store_message(T, other, first)
        await world.store("y")
        assert await world.texts() == ["x", "y"]
        assert [leaf.depth for leaf in await world.leaves()] == [2, 2]

    async def test_expected_leaf_of_a_second_root(self, world: World) -> None:
        """B1: ``expected_leaf`` is compared with the end of the head, even for a message with the parent ROOT_ID."""
        leaf = await world.store("a")
        with pytest.raises(errors.LeafMovedError):
            await world.store("x", ROOT_ID, expected_leaf=ROOT_ID)
        await world.store("x", ROOT_ID, expected_leaf=leaf)
        assert await world.texts() == ["x"]


class TestRoots(TestRootsWithoutWorkers):
    async def test_the_first_message_is_edited(self, world: World) -> None:
        """B4, B5: A prompt with the parent ROOT_ID begins another tree, which becomes the head. The context of the prompt's
        run has no message of the first tree."""
        await world.turn("r1")
        attempt = await world.start("r2", "other", parent_id=ROOT_ID)
        assert await world.context(attempt) == ["other"]
        assert await world.texts() == ["other"]
        await world.finish(attempt, said("r2!"))
        await world.turn("r3")
        messages = await world.messages()
        assert texts(messages) == ["other", "r2!", "r3?", "r3!"]
        assert [m.parent_id for m in messages] == [None, *(m.id for m in messages[:-1])]
        assert {(leaf.run_id, leaf.depth) for leaf in await world.leaves()} == {("r1", 2), ("r3", 4)}
        assert await world.texts(leaf=await world.id_of("r1!")) == ["r1?", "r1!"]

    async def test_head_and_trunk_are_marked(self, world: World) -> None:
        """B3: The list marks two leaves: the leaf that a prompt without a parent continues, and the leaf of the thread's first
        branch. Each of these leaves can be a message of a live run."""

        async def marks() -> dict[str | None, tuple[bool, bool]]:
            return {leaf.run_id: (leaf.head, leaf.trunk) for leaf in await world.leaves()}

        await world.turn("r1")
        assert await marks() == {"r1": (True, True)}
        await world.turn("r2", parent_id=await world.id_of("r1?"))
        assert await marks() == {"r1": (False, True), "r2": (True, False)}
        await world.start("beside", options=RunOptions(parallel=True))
        attempt = await world.start("r3")
        assert await marks() == {"r1": (False, True), "r2": (False, False), "beside": (False, False), "r3": (True, False)}
        await world.finish(attempt, said("r3!"))
        await world.turn("r4", parent_id=await world.id_of("r1!"))
        assert {run_id: mark for run_id, mark in (await marks()).items() if any(mark)} == {"r4": (True, True)}
        await world.fork("c", after_run_id="r3")
        await world.turn("own", thread="c", parent_id=ROOT_ID)
        found = {leaf.run_id: (leaf.head, leaf.trunk) for leaf in await world.leaves("c")}
        assert found == {"r3": (False, True), "own": (True, False)}

    async def test_the_other_tree_is_continued(self, world: World) -> None:
        """B4: A prompt with a parent in the first tree continues that tree."""
        await world.turn("r1")
        await world.turn("r2", parent_id=ROOT_ID)
        await world.turn("r3", parent_id=await world.id_of("r1!"))
        assert await world.texts() == ["r1?", "r1!", "r3?", "r3!"]

    async def test_a_failed_edit_is_repeated_on_its_branch(self, world: World) -> None:
        """B7: A prompt that repeats a failed edit of the first message uses the branch of the failed edit."""
        await world.turn("r1")
        await world.failed("r2", parent_id=ROOT_ID)
        assert await world.texts() == []
        with pytest.raises(errors.RunNotCompletedError):
            await world.fork("c")
        await world.turn("r3", parent_id=ROOT_ID)
        assert await world.texts() == ["r3?", "r3!"]
        assert {(leaf.run_id, leaf.depth) for leaf in await world.leaves()} == {("r1", 2), ("r2", 2), ("r3", 2)}

    @pytest.mark.parametrize("first", [True, False])
    async def test_an_empty_branch_is_busy(self, world: World, first: bool) -> None:
        """B7, B1: A run is live on a branch without a visible message. No message can then be stored at the start of this
        branch."""
        await world.turn("r1")
        parent = ROOT_ID if first else await world.id_of("r1?")
        attempt = await world.start("r2", "again", parent_id=parent)
        with pytest.raises(errors.ThreadBusyError):
            await world.store("x", parent)
        await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))
        await world.store("x", parent)
        assert await world.texts() == (["x"] if first else ["r1?", "x"])

    async def test_parallel_first_messages(self, world: World) -> None:
        """B4: Each parallel prompt with the parent ROOT_ID has its own branch. The head stays the same."""
        await world.turn("r1")
        options = RunOptions(parallel=True)
        attempts = [await world.start(name, name, parent_id=ROOT_ID, options=options) for name in ("one", "two")]
        for attempt in attempts:
            assert await world.context(attempt) == [attempt.run_id]
            await world.finish(attempt, said("done"))
        assert await world.texts() == ["r1?", "r1!"]
        assert [leaf.depth for leaf in await world.leaves()] == [2, 2, 2]

    async def test_in_a_fork(self, world: World) -> None:
        """B5, F1, F6: The first message of a fork can be edited. A fork of the new tree shows only that tree."""
        await world.turn("r1")
        await world.fork("c", after_run_id="r1")
        await world.turn("r2", thread="c", parent_id=ROOT_ID)
        assert await world.texts("c") == ["r2?", "r2!"]
        assert await world.texts(T) == ["r1?", "r1!"]
        await world.fork("d", src="c")
        assert await world.texts("d") == ["r2?", "r2!"]
        await world.fork("e", src="c", after_run_id="r1")
        assert await world.texts("e") == ["r1?", "r1!"]
        await world.fork("f", src="c", at_message_id=await world.id_of("r2?", "c"))
        assert await world.texts("f") == ["r2?"]

    async def test_root_is_no_message(self, world: World) -> None:
        """B1, B2, F6: ROOT_ID is no message. Reads and cuts at ROOT_ID are refused. No message can have this id."""
        await world.turn("r1")
        for read in (world.messages(leaf=ROOT_ID), world.fork("c", at_message_id=ROOT_ID), world.cut(at_message_id=ROOT_ID)):
            with pytest.raises(errors.MessageNotFoundError):
                await read
        with pytest.raises(errors.InvalidInputError):
            await world.threads.store_message(T, user("x", id=ROOT_ID))
        with pytest.raises(errors.NothingToRunError):
            await world.accept("r2", None, parent_id=ROOT_ID)
