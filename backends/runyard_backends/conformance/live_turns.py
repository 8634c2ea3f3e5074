"""The messages of a live run in the paths of a thread, and the status of each message's run (B2)."""

from __future__ import annotations

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import Message, RunOptions
from runyard.ports.queries import PathRequest

from .world import T, World, said, texts

pytestmark = pytest.mark.asyncio


def statuses(messages: list[Message]) -> list[str | None]:
    return [str(message.run_status) if message.run_status else None for message in messages]


class TestLiveTurnWithoutWorkers:
    """The tests of :class:`TestLiveTurn` that also apply to a store without workers."""

    async def test_a_failed_turn_leaves_the_path(self, world: World) -> None:
        """B2, R7: When the run fails, the head's path loses the run's messages. The path to the run's last message still has
        them."""
        await world.turn("r1")
        await world.failed("r2")
        assert await world.texts() == ["r1?", "r1!"]
        side = await world.messages(leaf=await world.id_of("r2…"))
        assert texts(side) == ["r1?", "r1!", "r2?", "r2…"]
        assert statuses(side) == ["completed", "completed", "failed", "failed"]

    async def test_status_is_no_field_of_a_caller(self, world: World) -> None:
        """B2: A message without a run has no status, even if the caller sets one."""
        stored = await world.threads.store_message(T, Message.user("a", run_status=RunStatus.FAILED))
        assert stored.run_status is None
        assert statuses(await world.messages()) == [None]


class TestLiveTurn(TestLiveTurnWithoutWorkers):
    async def test_the_path_ends_with_the_turn_under_way(self, world: World) -> None:
        """B2: The path of the newest leaf has the messages of the live run, from the claim of the run to its end."""
        await world.turn("r1")
        attempt = await world.start("r2", "r2?")
        assert await world.texts() == ["r1?", "r1!", "r2?"]
        await world.runs.append(attempt, [said("thinking")])
        assert await world.texts() == ["r1?", "r1!", "r2?", "thinking"]
        assert statuses(await world.messages()) == ["completed", "completed", "running", "running"]
        await world.finish(attempt, said("r2!"))
        assert await world.texts() == ["r1?", "r1!", "r2?", "thinking", "r2!"]
        assert statuses(await world.messages()) == ["completed"] * 5

    async def test_a_suspended_turn_is_shown(self, world: World) -> None:
        """B2: The path has the messages of a run that waits for a human. After the answer, the path still has these messages
        while the run waits for a worker."""
        await world.suspended("r1", "q")
        assert await world.texts() == ["r1?"]
        assert statuses(await world.messages()) == ["suspended"]
        await world.runs.respond("yes", thread_id=T)
        assert statuses(await world.messages()) == ["queued"]
        await world.finish(await world.take("r1"), said("r1!"))
        assert await world.texts() == ["r1?", "r1!"]

    async def test_a_kept_cancel_has_its_status(self, world: World) -> None:
        """B2, R10: The messages of a run that was cancelled with ``keep`` stay in the path. They have the status cancelled."""
        attempt = await world.start("r1", "r1?")
        await world.runs.cancel(T, "r1", keep=True)
        await world.finish(attempt, said("late"))
        assert statuses(await world.messages()) == ["cancelled"]

    async def test_a_turn_on_another_branch_is_not_shown(self, world: World) -> None:
        """B2, B4: The newest leaf's path has no messages of a run on another branch or in another lane."""
        first = await world.store("a")
        await world.store("b")
        await world.start("r1", "r1?")
        await world.start("beside", "beside?", options=RunOptions(parallel=True))
        assert await world.texts() == ["a", "b", "r1?"]
        await world.store("aside", first)
        assert await world.texts() == ["a", "aside"]

    async def test_a_waiting_prompt_is_not_shown(self, world: World) -> None:
        """B2: The tree does not show a prompt before its first attempt."""
        await world.store("a")
        await world.accept("r1", "r1?")
        assert await world.texts() == ["a"]

    async def test_pages_show_the_turn_in_both_directions(self, world: World) -> None:
        """B2: Pages in both directions show the live run. They miss no message if the run completes between two pages."""
        for text in "abc":
            await world.store(text)
        for newest_first in (False, True):
            name = f"run-{newest_first}"
            attempt = await world.start(name, f"{name}?")
            whole = await world.texts()
            seen: list[str] = []
            cursor: str | None = None
            while True:
                page = await world.threads.messages(T, PathRequest(limit=2, cursor=cursor, newest_first=newest_first))
                seen += texts(page.items)
                if not cursor:
                    await world.finish(attempt, said(f"{name}!"))
                if (cursor := page.next) is None:
                    break
            assert (seen[::-1] if newest_first else seen[: len(whole)]) == whole
            assert newest_first or seen[len(whole) :] == [f"{name}!"]

    async def test_the_context_of_a_branch_has_no_live_messages_of_others(self, world: World) -> None:
        """B4: The path shows the messages of a live run. These messages enter no other run's context."""
        first = await world.store("a")
        await world.start("r1", "r1?")
        other = await world.start("r2", "r2?", parent_id=first, options=RunOptions(parallel=True))
        assert await world.context(other) == ["a", "r2?"]

    async def test_status_of_an_inherited_message(self, world: World) -> None:
        """B2, B3: A fork shows the present status of inherited runs, and of the run inside which it was cut."""
        await world.turn("r1")
        attempt = await world.start("r2", "r2?")
        await world.fork("c", at_message_id=await world.id_of("r2?"))
        assert statuses(await world.messages("c")) == ["completed", "completed", "running"]
        await world.finish(attempt, said("r2!"))
        assert statuses(await world.messages("c")) == ["completed", "completed", "completed"]
        assert [leaf.run_status for leaf in await world.leaves("c")] == [RunStatus.COMPLETED]

    async def test_a_finished_parallel_branch_is_a_leaf(self, world: World) -> None:
        """B3, B4: The list of leaves has the leaf of a parallel run during the run and after its end. The path of the run can
        be read with this leaf."""
        await world.turn("r1")
        options = RunOptions(parallel=True)
        beside = await world.start("beside", "beside?", options=options)
        assert {leaf.run_id for leaf in await world.leaves()} >= {"beside"}
        await world.turn("r2")
        await world.finish(beside, said("beside!"))
        await world.failed("lost", options=options)
        leaves = {leaf.run_id: leaf for leaf in await world.leaves()}
        assert set(leaves) == {"r2", "beside", "lost"}
        path = await world.messages(leaf=leaves["beside"].message_id)
        assert texts(path) == ["r1?", "r1!", "beside?", "beside!"]
        assert await world.texts() == ["r1?", "r1!", "r2?", "r2!"]

    async def test_a_parallel_run_on_an_empty_thread_is_a_leaf(self, world: World) -> None:
        """B3, B4: The messages of parallel runs on an empty thread are leaves of the thread."""
        options = RunOptions(parallel=True)
        one, two = await world.start("one", "one?", options=options), await world.start("two", "two?", options=options)
        await world.finish(one, said("one!"))
        await world.finish(two, said("two!"))
        assert {(leaf.run_id, leaf.depth) for leaf in await world.leaves()} == {("one", 2), ("two", 2)}
        with pytest.raises(errors.NothingToRunError):
            await world.accept("more", None)
