"""The message tree of one thread (B1 to B6)."""

from __future__ import annotations

import asyncio

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import RunOptions, new_id
from runyard.ports.queries import PageRequest, PathRequest

from ..cursors import encode
from .world import T, World, call, result, said, texts, user

pytestmark = pytest.mark.asyncio

PARALLEL = RunOptions(parallel=True)


async def shape(world: World, thread: str = T) -> set[tuple[str, int]]:
    """Return every leaf's text and depth."""
    found = set()
    for leaf in await world.leaves(thread):
        path = await world.messages(thread, leaf.message_id)
        found.add((texts(path)[-1], leaf.depth))
    return found


class TestTreeWithoutWorkers:
    """The tests of :class:`TestTree` that also apply to a store without workers."""

    async def test_tree_of_the_documented_example(self, world: World) -> None:
        """B1 to B3: N1 to N6 form a path, N7 follows N2, N8 follows N7. The leaves are N6 with depth 6 and N8 with depth 4."""
        ids = [await world.store(f"N{n}") for n in range(1, 7)]
        m7 = await world.store("N7", ids[1])
        m8 = await world.store("N8", m7)
        leaves = await world.leaves()
        assert [(leaf.message_id, leaf.depth) for leaf in leaves] == [(ids[5], 6), (m8, 4)]
        assert [leaf.created_at for leaf in leaves] == sorted(leaf.created_at for leaf in leaves)
        assert await world.texts(leaf=ids[5]) == ["N1", "N2", "N3", "N4", "N5", "N6"]
        assert await world.texts(leaf=m8) == ["N1", "N2", "N7", "N8"]
        assert await world.texts() == ["N1", "N2", "N7", "N8"]
        assert await world.texts(leaf=ids[2]) == ["N1", "N2", "N3"]

    async def test_store_returns_what_is_stored(self, world: World) -> None:
        """B1: A message without a run is stored after the newest visible message. The thread is created if necessary."""
        first = await world.threads.store_message(T, user("a", run_id="ignored", metadata={"k": 1}))
        second = await world.threads.store_message(T, user("b"))
        assert (first.seq, first.parent_id, first.run_id, first.metadata) == (1, None, None, {"k": 1})
        assert (second.seq, second.parent_id) == (2, first.id)
        assert first.created_at is not None
        assert await world.messages() == [first, second]

    async def test_ids_in_capitals_name_the_same_message(self, world: World) -> None:
        first = await world.store("a")
        await world.store("b", first.upper())
        assert await world.texts(leaf=first.upper()) == ["a"]
        assert await world.texts() == ["a", "b"]

    async def test_message_id_must_be_a_uuid(self, world: World) -> None:
        with pytest.raises(errors.InvalidInputError):
            await world.threads.store_message(T, user("x", id="nope"))

    async def test_concurrent_stores_make_no_siblings(self, world: World) -> None:
        """B1: Messages that are stored concurrently without a parent form one path, without siblings."""
        await asyncio.gather(*(world.store(str(n)) for n in range(8)))
        (leaf,) = await world.leaves()
        assert leaf.depth == 8
        messages = await world.messages()
        assert [m.parent_id for m in messages] == [None, *(m.id for m in messages[:-1])]

    async def test_expected_leaf(self, world: World) -> None:
        """B1: An ``expected_leaf`` that is not the newest leaf raises LeafMovedError."""
        first = await world.store("a")
        second = await world.store("b", expected_leaf=first)
        with pytest.raises(errors.LeafMovedError):
            await world.store("c", expected_leaf=first)
        with pytest.raises(errors.InvalidInputError):
            await world.store("c", expected_leaf="nope")
        await world.store("c", second, expected_leaf=second)
        with pytest.raises(errors.LeafMovedError):
            await world.store("x", thread="new", expected_leaf=first)
        assert await world.threads.thread("new") is None

    async def test_pages_never_drop_or_repeat(self, world: World) -> None:
        """B2: With ``limit`` and ``cursor``, pages follow the path in both directions, without gaps and repetitions."""
        ids = [await world.store(f"N{n}") for n in range(7)]
        await world.fork("c", at_message_id=ids[4])
        own = await world.store("own", thread="c")
        for thread, leaf, expected in ((T, None, ids), (T, ids[5], ids[:6]), ("c", None, [*ids[:5], own])):
            for newest_first in (False, True):
                seen: list[str] = []
                cursor: str | None = None
                while True:
                    path = PathRequest(leaf_id=leaf, limit=2, cursor=cursor, newest_first=newest_first)
                    page = await world.threads.messages(thread, path)
                    assert len(page.items) <= 2
                    seen += [m.id for m in page.items]
                    cursor = page.next
                    if cursor is None:
                        break
                assert (seen[::-1] if newest_first else seen) == expected

    async def test_pages_hold_while_the_head_moves(self, world: World) -> None:
        """B2: A later page continues the path of the first page, even if the head moves."""
        ids = [await world.store(f"N{n}") for n in range(4)]
        first = await world.threads.messages(T, PathRequest(limit=2))
        await world.store("elsewhere", ids[0])
        rest = await world.threads.messages(T, PathRequest(limit=10, cursor=first.next))
        assert [m.id for m in rest.items] == ids[2:]

    async def test_failed_run_is_a_side_leaf(self, world: World) -> None:
        """B3: The last message of a failed run is a leaf with the status of the run. No later message follows it."""
        await world.turn("r1")
        await world.failed("r2")
        await world.turn("r3")
        leaves = {leaf.run_id: (leaf.depth, leaf.run_status) for leaf in await world.leaves()}
        assert leaves == {"r2": (4, RunStatus.FAILED), "r3": (4, RunStatus.COMPLETED)}
        third = (await world.messages())[2]
        assert third.parent_id == await world.id_of("r1!")

    async def test_branch_below_a_failed_message(self, world: World) -> None:
        """B1, F6: A run can continue a message of a failed run. The message is then no leaf."""
        await world.failed("bad")
        child = await world.store("so?", await world.id_of("bad…"))
        assert await world.texts(leaf=child) == ["bad?", "bad…", "so?"]
        assert await world.texts() == ["bad?", "bad…", "so?"]
        assert await shape(world) == {("so?", 3)}

    async def test_prefix_of_a_branch_is_fixed(self, world: World) -> None:
        """S2: A run of the older branch completes after the new branch began. The new branch does not show this run."""
        cp = world.checkpointer
        await cp.claim_run(T, "slow")
        await cp.append(T, [said("slow", run_id="slow")])
        plain = await world.store("plain")
        await world.store("end")
        await world.store("branch", plain)
        await cp.mark_run_complete(T, "slow")
        assert await world.texts() == ["plain", "branch"]
        assert await world.texts(leaf=plain) == ["slow", "plain"]

    async def test_branch_in_a_fork(self, world: World) -> None:
        """B6: A branch of a fork can start at an inherited message. Message numbers grow along every path."""
        await world.turn("r1")
        await world.turn("r2")
        await world.fork("c", after_run_id="r2")
        await world.store("other", await world.id_of("r1!", "c"), thread="c")
        messages = await world.messages("c")
        assert texts(messages) == ["r1?", "r1!", "other"]
        assert [m.seq for m in messages] == sorted(m.seq or 0 for m in messages)
        assert await shape(world, "c") == {("r2!", 4), ("other", 3)}
        assert await shape(world) == {("r2!", 4)}

    async def test_leaf_of_an_untouched_fork_is_inherited(self, world: World) -> None:
        """B3: The leaf of an unchanged fork is the inherited leaf."""
        await world.turn("r1")
        await world.fork("c", after_run_id="r1")
        assert await shape(world, "c") == {("r1!", 2)}
        await world.turn("own", thread="c")
        assert await shape(world, "c") == {("own!", 4)}

    async def test_path_of_interleaved_runs(self, world: World) -> None:
        """S8: The messages of two runs alternate. A path has the messages that are visible at its leaf. The chain of parents
        alone does not determine the path."""
        cp = world.checkpointer
        for run_id in ("a", "b"):
            await cp.claim_run(T, run_id)
        await cp.append(T, [said("a1", run_id="a"), said("b1", run_id="b"), said("a2", run_id="a"), said("b2", run_id="b")])
        await cp.mark_run_complete(T, "a")
        await cp.mark_run_complete(T, "b")
        ids = {m.text: m.id for m in await world.messages()}
        assert await world.texts(leaf=ids["b2"]) == ["a1", "b1", "a2", "b2"]
        assert await world.texts(leaf=ids["a2"]) == ["a1", "a2"]
        assert await world.texts() == ["a1", "b1", "a2", "b2"]


class TestTree(TestTreeWithoutWorkers):
    async def test_a_message_is_stored_once(self, world: World) -> None:
        """B1: A repeated message is stored once, even if other messages follow it. Another message cannot have its id."""
        first = await world.threads.store_message(T, message := user("a", metadata={"k": 1, "l": {}}))
        second = await world.threads.store_message(T, other := user("b"), first.id)
        attempt = await world.start("r1", "live")
        again = await world.threads.store_message(T, message, expected_leaf=None)
        assert (again.id, again.seq, again.parent_id) == (first.id, 1, None)
        assert await world.threads.store_message(T, user("a", id=first.id, metadata={"l": {}, "k": 1})) == first
        assert await world.threads.store_message(T, other, first.id) == second
        for wrong, parent in (
            (user("a", id=message.id), None),
            (user("c", id=message.id, metadata=message.metadata), None),
            (said("a", id=message.id, metadata=message.metadata), None),
            (message, first.id),
            (other, second.id),
        ):
            with pytest.raises(errors.InvalidInputError, match=r"taken|fresh"):
                await world.threads.store_message(T, wrong, parent)
        await world.finish(attempt, said("done"))
        assert await world.texts() == ["a", "b", "live", "done"]
        assert (await world.threads.store_message("u", message)).seq == 1

    async def test_bad_parents(self, world: World) -> None:
        """B1, B2: A parent that is not a UUID is refused [400]. An unknown parent, or a parent of another thread, is not found
        [404]."""
        other = await world.store("x", thread="u")
        with pytest.raises(errors.MessageNotFoundError):
            await world.store("x", new_id())
        assert await world.threads.thread(T) is None
        await world.store("a")
        for parent, error in (("nope", errors.InvalidInputError), (new_id(), errors.MessageNotFoundError)):
            with pytest.raises(error):
                await world.store("x", parent)
            with pytest.raises(error):
                await world.messages(leaf=parent)
            with pytest.raises(error):
                await world.accept("r", parent_id=parent)
        for call_with in (world.store("x", other), world.messages(leaf=other), world.accept("r", parent_id=other)):
            with pytest.raises(errors.MessageNotFoundError):
                await call_with
        with pytest.raises(errors.ThreadNotFoundError):
            await world.messages("nope")
        with pytest.raises(errors.ThreadNotFoundError):
            await world.leaves("nope")

    async def test_store_on_a_busy_branch(self, world: World) -> None:
        """B1: Storing a message raises ThreadBusyError if a run is live on the branch. A live run on another branch does not
        matter."""
        first = await world.store("a")
        second = await world.store("b")
        attempt = await world.start("r1")
        for parent in (None, second):
            with pytest.raises(errors.ThreadBusyError):
                await world.store("x", parent)
        await world.store("aside", first)
        await world.finish(attempt, said("y"))
        await world.store("x")

    async def test_queued_run_is_live_for_storing(self, world: World) -> None:
        """B1: Storing a message on a branch with a queued run raises ThreadBusyError."""
        await world.accept("r1")
        with pytest.raises(errors.ThreadBusyError):
            await world.store("x")

    @pytest.mark.parametrize(
        "cursor", ["nonsense", "", *map(encode, (None, -1, 2**70, 0.5, "x", [], [1, 2, 3], ["x", "y"], {"a": 1}))]
    )
    async def test_bad_cursor(self, world: World, cursor: str) -> None:
        """B2: Every text that is no cursor is refused."""
        await world.store("a")
        for read in (world.threads.threads, world.runs.runs, world.runs.requests, world.backend.feed.read):
            with pytest.raises(errors.InvalidCursorError):
                await read(page=PageRequest(cursor=cursor))
        with pytest.raises(errors.InvalidCursorError):
            await world.threads.messages(T, PathRequest(cursor=cursor))

    async def test_prompt_on_an_older_message_branches(self, world: World) -> None:
        """B4, B5: A prompt on an older message begins a branch. The context of its run is the path to this message. The branch
        becomes the head."""
        for run_id in ("r1", "r2"):
            await world.turn(run_id)
        attempt = await world.start("r3", "again", parent_id=await world.id_of("r1!"))
        assert await world.context(attempt) == ["r1?", "r1!", "again"]
        await world.finish(attempt, said("r3!"))
        assert await world.texts() == ["r1?", "r1!", "again", "r3!"]
        assert await shape(world) == {("r2!", 4), ("r3!", 4)}
        await world.turn("r4")
        assert await world.texts() == ["r1?", "r1!", "again", "r3!", "r4?", "r4!"]

    async def test_regenerate(self, world: World) -> None:
        """B5: A regeneration gives another answer to the same user message."""
        await world.turn("r1")
        attempt = await world.start("r2", None, parent_id=await world.id_of("r1?"))
        assert await world.context(attempt) == ["r1?"]
        await world.finish(attempt, said("better"))
        assert await world.texts() == ["r1?", "better"]
        assert await shape(world) == {("r1!", 2), ("better", 2)}

    async def test_retry_of_a_failed_regenerate_uses_its_branch(self, world: World) -> None:
        """B7: A retry after a failed regeneration uses the same branch, because the branch has no visible message yet."""
        await world.turn("r1")
        question = await world.id_of("r1?")
        await world.failed("r2", parent_id=question)
        assert await world.texts() == ["r1?"]
        attempt = await world.start("r3", "third", parent_id=question)
        await world.finish(attempt, said("r3!"))
        assert await world.texts() == ["r1?", "third", "r3!"]
        assert await shape(world) == {("r1!", 2), ("r2…", 3), ("r3!", 3)}

    async def test_prompt_at_the_end_of_a_branch_continues_it(self, world: World) -> None:
        """B8: A prompt at the end of a branch continues the branch and makes it the head."""
        ids = [await world.store(f"N{n}") for n in range(2)]
        await world.store("other", ids[0])
        await world.turn("r1", parent_id=ids[1])
        assert await world.texts() == ["N0", "N1", "r1?", "r1!"]
        assert await shape(world) == {("other", 2), ("r1!", 4)}

    async def test_without_parent_the_head_is_continued(self, world: World) -> None:
        """B4: A prompt without a parent continues the leaf that is the newest at the claim. The leaf that was the newest at
        the acceptance does not matter."""
        ids = [await world.store(f"N{n}") for n in range(2)]
        first = await world.start("r1", "q", parent_id=ids[0])
        await world.accept("r2", "next")
        await world.finish(first, said("a"))
        assert await world.context(await world.take("r2")) == ["N0", "q", "a", "next"]

    async def test_running_run_is_a_leaf(self, world: World) -> None:
        """B3: The last message of a running run is a leaf. The message before the run stays a leaf until the run completes."""
        await world.turn("r1")
        await world.start("r2", "r2?")
        assert {(leaf.run_id, leaf.depth, leaf.run_status) for leaf in await world.leaves()} == {
            ("r1", 2, RunStatus.COMPLETED),
            ("r2", 3, RunStatus.RUNNING),
        }

    async def test_branch_at_the_inherited_end_of_a_fork(self, world: World) -> None:
        """B3: Each leaf is listed once. The inherited end is a leaf until a visible message follows it."""
        await world.turn("r1")
        await world.fork("c", after_run_id="r1")
        attempt = await world.start("p", "p?", thread="c", options=PARALLEL)
        assert sorted(leaf.depth for leaf in await world.leaves("c")) == [2, 3]
        assert await shape(world, "c") == {("r1!", 2), ("p?", 3)}
        await world.finish(attempt, said("p!"))
        (leaf,) = await world.leaves("c")
        assert leaf.depth == 4 and await world.texts("c") == ["r1?", "r1!"]
        await world.failed("q", thread="c", parent_id=await world.id_of("r1?", "c"))
        assert await shape(world, "c") == {("p!", 4), ("q…", 3)}

    async def test_leaf_with_open_calls_can_be_continued(self, world: World) -> None:
        """R1, R5: A leaf with open calls can be continued by a run that stores the results. This run completes."""
        await world.store("q")
        await world.threads.store_message(T, call("a"))
        ended = await world.finish(await world.start("r1", None), result("a"), said("x"))
        assert ended.status is RunStatus.COMPLETED
        assert await world.texts() == ["q", "call:a", "result:a", "x"]


class TestParallel:
    async def test_own_branch_that_is_not_the_head(self, world: World) -> None:
        """B4: A parallel run has its own branch and lane and is not the head."""
        await world.turn("r1")
        attempt = await world.start("p", "p?", options=PARALLEL)
        assert await world.context(attempt) == ["r1?", "r1!", "p?"]
        await world.turn("r2")
        await world.finish(attempt, said("p!"))
        assert await world.texts() == ["r1?", "r1!", "r2?", "r2!"]
        assert await shape(world) == {("r2!", 4), ("p!", 4)}
        assert await world.cut(after_run_id="p") == ["r1?", "r1!", "p?", "p!"]

    async def test_two_runs_at_the_end_of_a_branch_open_two_branches(self, world: World) -> None:
        """B4: Two parallel runs at the end of one branch open two branches."""
        await world.turn("r1")
        leaf = await world.id_of("r1!")
        one = await world.start("p1", "p1?", options=PARALLEL, parent_id=leaf)
        two = await world.start("p2", "p2?", options=PARALLEL, parent_id=leaf)
        await world.finish(one, said("p1!"))
        await world.finish(two, said("p2!"))
        assert await world.texts() == ["r1?", "r1!"]
        assert await shape(world) == {("p1!", 4), ("p2!", 4)}

    async def test_prompt_at_its_end_takes_its_lane(self, world: World) -> None:
        """B8: Each branch belongs to one lane. A prompt at the end of a parallel branch is therefore admitted to the lane of
        this branch."""
        await world.turn("r1")
        await world.turn("p", options=PARALLEL)
        end = await world.id_of("p!")
        await world.start("main", "main?")
        one = await world.start("q1", "q1?", parent_id=end)
        assert (await world.run("q1")).lane == "p"
        await world.accept("q2", parent_id=end)
        assert (await world.claim("q2")).outcome == "behind"
        await world.finish(one, said("q1!"))
        assert await world.texts(leaf=await world.id_of("q1!")) == ["r1?", "r1!", "p?", "p!", "q1?", "q1!"]
        attempt = await world.take("q2")
        assert await world.context(attempt) == ["r1?", "r1!", "p?", "p!", "hi"]

    async def test_its_own_leaf_while_it_runs(self, world: World) -> None:
        """B3: A parallel run has its own leaf while it runs."""
        await world.turn("r1")
        await world.start("p", "p?", options=PARALLEL)
        assert await shape(world) == {("r1!", 2), ("p?", 3)}

    async def test_inside_an_external_interleaving(self, world: World) -> None:
        """S8: A parallel run starts from all visible messages of the branch, not only from the path to one message."""
        cp = world.checkpointer
        for run_id in ("a", "b"):
            await cp.claim_run(T, run_id)
        await cp.append(T, [said("b1", run_id="b"), said("a1", run_id="a")])
        await cp.mark_run_complete(T, "a")
        await cp.mark_run_complete(T, "b")
        attempt = await world.start("p", "p?", options=PARALLEL)
        assert await world.context(attempt) == ["b1", "a1", "p?"]
