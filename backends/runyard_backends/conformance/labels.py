"""Labels of branches (B9)."""

from __future__ import annotations

import asyncio

import pytest

from runyard import errors
from runyard.domain.validation import MAX_LABEL_LENGTH, MAX_LABELS
from runyard.models import ROOT_ID, ErrorInfo, RunOptions, new_id
from runyard.ports.commands import Write
from runyard.ports.queries import PageRequest

from .world import T, World, said

pytestmark = pytest.mark.asyncio

PARALLEL = RunOptions(parallel=True)


async def labels(world: World, thread: str = T) -> dict[str, tuple[str, int]]:
    """Return, for each label, the text and the depth of the message at which the label is listed."""
    page = await world.threads.branches(thread, labelled=True)
    found = {}
    for leaf in page.items:
        assert leaf.labels == sorted(leaf.labels) and leaf.labels
        [message] = (await world.messages(thread, leaf.message_id))[-1:]
        found.update(dict.fromkeys(leaf.labels, (message.text, leaf.depth)))
    return found


class TestLabelsWithoutWorkers:
    """The tests of :class:`TestLabels` that also apply to a store without workers."""

    async def test_a_label_moves_and_is_removed(self, world: World) -> None:
        """B9: A label is unique in its thread. Setting a label again moves the label. Removing a label twice is no error."""
        one = await world.store("a")
        two = await world.store("b", ROOT_ID)
        for id in (one, one, two):
            await world.threads.set_label(T, "x", id)
        assert await labels(world) == {"x": ("b", 1)}
        for _ in range(2):
            await world.threads.remove_label(T, "x")
        assert await labels(world) == {}
        assert [leaf.labels for leaf in await world.leaves()] == [[], []]

    @pytest.mark.parametrize("erase", [False, True])
    async def test_labels_are_deleted_with_the_thread(self, world: World, erase: bool) -> None:
        """B9: A new thread with the id of a deleted or erased thread has no label."""
        await world.turn("r1")
        await world.fork("c", after_run_id="r1")
        await world.threads.set_label(T, "main")
        await world.threads.set_label("c", "kept")
        await (world.threads.erase_thread(T) if erase else world.threads.delete_thread(T))
        await world.store("a")
        assert await labels(world) == {}
        assert list(await labels(world, "c")) == ["kept"]

    async def test_pages_of_labelled_branches(self, world: World) -> None:
        """B9: A page of labelled branches has no branch without a label. The next page continues after the last branch of the
        page."""
        ids = [await world.store(str(n), ROOT_ID) for n in range(6)]
        for n in (1, 3, 4):
            await world.threads.set_label(T, f"l{n}", ids[n])
        found, cursor = [], None
        while True:
            page = await world.threads.branches(T, PageRequest(limit=2, cursor=cursor), labelled=True)
            found += [leaf.labels for leaf in page.items]
            if (cursor := page.next) is None:
                break
        assert found == [["l1"], ["l3"], ["l4"]]

    async def test_bounds(self, world: World) -> None:
        """B9: A label has 1 to 64 printable characters. A thread has at most 100 labels, even if many are set at once."""
        await world.store("a")
        for wrong in ("", ".", "..", "a\nb", "a\x00", "x" * (MAX_LABEL_LENGTH + 1), "\ud800"):
            with pytest.raises(errors.InvalidInputError):
                await world.threads.set_label(T, wrong)
            with pytest.raises(errors.InvalidInputError):
                await world.threads.remove_label(T, wrong)
        named = ["é" * MAX_LABEL_LENGTH, "a/b?c#d%2e e", *(f"l{n}" for n in range(MAX_LABELS - 3))]
        for label in named:
            await world.threads.set_label(T, label)
        racing = [world.threads.set_label(T, f"race-{n}") for n in range(4)]
        outcomes = await asyncio.gather(*racing, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [errors.InvalidInputError] * 3
        await world.threads.set_label(T, named[0])
        [leaf] = await world.leaves()
        assert len(leaf.labels) == MAX_LABELS and leaf.labels == sorted(leaf.labels) and set(named) < set(leaf.labels)
        await world.threads.remove_label(T, named[1])
        await world.threads.set_label(T, "free")

    async def test_unknown_threads_and_messages(self, world: World) -> None:
        """B9, A1: A label needs a message that the thread shows. Another tenant's thread is unknown."""
        other = World(await world.factory(tenant="other"), world.factory)
        id = await world.store("a")
        await world.store("elsewhere", thread="u")
        with pytest.raises(errors.InvalidInputError):
            await world.threads.set_label(T, "x", "no uuid")
        for unknown in (ROOT_ID, new_id(), await world.id_of("elsewhere", "u")):
            with pytest.raises(errors.MessageNotFoundError):
                await world.threads.set_label(T, "x", unknown)
        for hidden in (
            world.threads.set_label("nope", "x"),
            world.threads.remove_label("nope", "x"),
            other.threads.set_label(T, "x", id),
            other.threads.remove_label(T, "x"),
        ):
            with pytest.raises(errors.ThreadNotFoundError):
                await hidden
        assert await labels(world) == {}
        await other.backend.close()


class TestLabels(TestLabelsWithoutWorkers):
    async def test_a_label_follows_its_branch(self, world: World) -> None:
        """B9: A label is given to the branch of a message, or to the head, and listed with the branch's last message."""
        await world.turn("r1")
        await world.threads.set_label(T, "main")
        await world.turn("r2", parent_id=await world.id_of("r1?"))
        await world.threads.set_label(T, "second", await world.id_of("r2?"))
        await world.threads.set_label(T, "also", await world.id_of("r2!"))
        assert await labels(world) == {"main": ("r1!", 2), "second": ("r2!", 3), "also": ("r2!", 3)}
        await world.turn("r3", parent_id=await world.id_of("r1!"))
        await world.turn("r4", parent_id=await world.id_of("r1?"))
        assert await labels(world) == {"main": ("r3!", 4), "second": ("r2!", 3), "also": ("r2!", 3)}
        listed = {leaf.run_id: leaf.labels for leaf in await world.leaves()}
        assert listed == {"r3": ["main"], "r2": ["also", "second"], "r4": []}

    async def test_the_end_of_a_labelled_branch_is_always_listed(self, world: World) -> None:
        """B9: The end of a labelled branch is listed once, even if another branch begins there."""
        await world.turn("r1")
        await world.threads.set_label(T, "main")
        attempt = await world.start("p", "p?", options=PARALLEL)
        await world.finish(attempt, said("p!"))
        await world.threads.set_label(T, "beside", await world.id_of("p!"))
        assert await labels(world) == {"main": ("r1!", 2), "beside": ("p!", 4)}
        assert sorted(leaf.depth for leaf in await world.leaves()) == [2, 4]
        await world.threads.remove_label(T, "main")
        assert [leaf.depth for leaf in await world.leaves()] == [4]

    async def test_the_run_under_way(self, world: World) -> None:
        """B9: While a run of a branch is live, the branch ends at the last message of this run. If the run fails, the
        branch ends before the run."""
        await world.turn("r1")
        attempt = await world.start("r2", "r2?", parent_id=await world.id_of("r1?"))
        await world.threads.set_label(T, "live", await world.id_of("r2?"))
        assert await labels(world) == {"live": ("r2?", 2)}
        await world.runs.append(attempt, [said("r2…")])
        assert await labels(world) == {"live": ("r2…", 3)}
        await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))
        assert await labels(world) == {"live": ("r1?", 1)}
        with pytest.raises(errors.RunNotCompletedError):
            await world.threads.set_label(T, "failed", await world.id_of("r2…"))
        await world.turn("r3", parent_id=await world.id_of("r1?"))
        assert await labels(world) == {"live": ("r3!", 3)}

    async def test_two_labelled_branches_with_one_end(self, world: World) -> None:
        """B9: Labels of several branches that end at one message are listed at this message."""
        await world.turn("r1")
        await world.threads.set_label(T, "trunk")
        for run_id in ("p1", "p2"):
            attempt = await world.start(run_id, "?", options=PARALLEL)
            await world.threads.set_label(T, run_id, await world.id_of("?"))
            await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))
            await world.runs.delete_run(T, run_id)
        assert await labels(world) == dict.fromkeys(("trunk", "p1", "p2"), ("r1!", 2))
        assert [leaf.labels for leaf in await world.leaves()] == [["p1", "p2", "trunk"]]

    async def test_a_branch_without_a_message(self, world: World) -> None:
        """B9: A labelled branch without a message is not listed. It is listed as soon as it has a message."""
        await world.turn("r1")
        attempt = await world.start("r2", "r2?", parent_id=ROOT_ID)
        await world.threads.set_label(T, "other")
        await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))
        assert await labels(world) == {}
        await world.turn("r3", parent_id=ROOT_ID)
        assert await labels(world) == {"other": ("r3!", 2)}

    async def test_a_fork_has_no_labels(self, world: World) -> None:
        """B9: A fork has none of its source's labels. An inherited message belongs to the fork's first branch."""
        await world.turn("r1")
        await world.threads.set_label(T, "main")
        await world.fork("c", after_run_id="r1")
        assert await labels(world, "c") == {}
        await world.threads.set_label("c", "mine", await world.id_of("r1?"))
        assert await labels(world, "c") == {"mine": ("r1!", 2)}
        await world.turn("own", thread="c")
        await world.turn("other", thread="c", parent_id=await world.id_of("r1?"))
        await world.threads.set_label("c", "again", await world.id_of("r1!"))
        assert await labels(world, "c") == dict.fromkeys(("mine", "again"), ("own!", 4))
        assert await labels(world) == {"main": ("r1!", 2)}


class TestDepthsWithoutWorkers:
    """The tests of :class:`TestDepths` that also apply to a store without workers."""

    async def test_a_run_that_completes_late(self, world: World) -> None:
        """B3: A leaf's depth is the number of messages on its path. A branch began before a run completed. The branch does not
        have the messages of the run, even if they are older than the branch."""
        cp = world.checkpointer
        await world.store("a")
        await cp.claim_run(T, "late")
        await cp.append(T, [said("l1", run_id="late"), said("l2", run_id="late")])
        base = await world.store("b")
        await world.store("c")
        one = await world.store("x", base)
        await world.threads.set_label(T, "trunk", base)
        await cp.mark_run_complete(T, "late")
        two = await world.store("y", base)
        depths = {leaf.message_id: leaf.depth for leaf in await world.leaves()}
        assert depths == {one: 3, two: 5, (await world.messages(leaf=await world.id_of("c")))[-1].id: 5}

    async def test_branches_at_messages_of_runs_that_did_not_complete(self, world: World) -> None:
        """B3: A branch begins at a message of a failed run. Its depth counts the run's messages up to this message, but no
        later messages of the run."""
        await world.turn("r1")
        await world.failed("r2")
        for text in ("r2?", "r2…"):
            await world.store(f"after {text}", await world.id_of(text))
        found = {}
        for leaf in await world.leaves():
            path = await world.messages(T, leaf.message_id)
            assert leaf.depth == len(path)
            found[path[-1].text] = leaf.depth
        assert found == {"r1!": 2, "after r2?": 4, "after r2…": 5} or found == {"after r2?": 4, "after r2…": 5}

    async def test_paths_tell_where_leaves_part(self, world: World) -> None:
        """B3: The paths of two leaves have the same segments up to the message at which they separate. The path of a fork
        begins with the segments of its source."""
        ids = [await world.store(f"N{n}") for n in range(4)]
        await world.store("other", ids[1])
        number = (await world.messages(T, ids[1]))[-1].seq
        trunk, branch = await world.leaves()
        assert [each.segment for each in branch.path[:-1]] == [trunk.path[0].segment]
        assert branch.path[0].until_seq == number
        assert trunk.path[-1].until_seq is None or trunk.path[-1].until_seq > (number or 0)
        assert branch.path[-1].segment != trunk.path[-1].segment
        await world.fork("child", at_message_id=ids[1])
        await world.store("of the child", thread="child")
        [child] = await world.leaves("child")
        assert (child.path[0].segment, child.path[0].until_seq) == (trunk.path[0].segment, number)
        assert child.path[-1].segment not in {each.segment for each in (*trunk.path, *branch.path)}


class TestDepths(TestDepthsWithoutWorkers):
    async def test_forks_of_branches(self, world: World) -> None:
        """B3: The depth of each leaf is the length of its path, in forks of forks and on branches of branches."""
        await world.turn("r1")
        for n in range(2, 6):
            await world.turn(f"r{n}", parent_id=await world.id_of(f"r{n - 1}?"))
        await world.failed("f")
        await world.fork("c", at_message_id=await world.id_of("r4!"))
        await world.turn("c1", thread="c")
        await world.turn("c2", thread="c", parent_id=await world.id_of("r2?", "c"))
        await world.turn("c3", thread="c", parent_id=ROOT_ID)
        await world.fork("d", src="c", at_message_id=await world.id_of("c2?", "c"))
        await world.store("own", thread="d")
        for thread, count in ((T, 6), ("c", 3), ("d", 1)):
            leaves = await world.leaves(thread)
            assert len(leaves) == count
            for leaf in leaves:
                assert leaf.depth == len(await world.messages(thread, leaf.message_id))
