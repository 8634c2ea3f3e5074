"""Lists of the descendants of a thread's runs (K3)."""

from __future__ import annotations

import pytest

from runyard.domain.threads import ChildRuns
from runyard.domain.waits import MAX_CHILD_DEPTH
from runyard.errors import ThreadNotFoundError

from .children import child, start_child
from .waits import park
from .world import T, World, said

pytestmark = pytest.mark.asyncio


def shown(found: ChildRuns) -> list[tuple[int, str, str, str]]:
    return [(each.depth, each.thread_id, each.run_id, each.started_by_run_id) for each in found.items]


class TestChildLists:
    async def test_k3_children_are_listed_level_by_level(self, world: World) -> None:
        """K3: The list has every level of descendants, and no other runs."""
        attempt = await world.start("r1")
        await start_child(world, attempt, "c1", "one")
        await start_child(world, attempt, "c2", "two", agent="writer")
        inner = await world.take("c1", thread="one")
        await start_child(world, inner, "g1", "deep")
        await start_child(world, await world.take("c2", thread="two"), "g2", "deep")
        await world.finish(await world.take("g1", thread="deep"), said("done"))
        list_ = world.backend.timelines.children
        found = await list_(T, 10)
        assert shown(found) == [
            (1, "one", "c1", "r1"),
            (1, "two", "c2", "r1"),
            (2, "deep", "g1", "c1"),
            (2, "deep", "g2", "c2"),
        ]
        assert not found.truncated and [each.status for each in found.items] == ["running", "running", "completed", "queued"]
        assert {each.started_by_thread_id for each in found.items[:2]} == {T}
        assert [each.agent for each in found.items[:2]] == [None, "writer"]
        assert (found.items[2].finished_at is None, found.items[3].finished_at) == (False, None)
        assert shown(await list_("two", 10)) == [(1, "deep", "g2", "c2")]
        assert await list_("deep", 10) == ChildRuns()
        with pytest.raises(ThreadNotFoundError):
            await list_("none", 10)

    async def test_k3_lists_of_children_are_bounded(self, world: World) -> None:
        attempt = await world.start("r1")
        for n in range(5):
            await start_child(world, attempt, f"c{n}", f"t{n}")
        await start_child(world, await world.take("c0", thread="t0"), "g", "deep")
        list_ = world.backend.timelines.children
        for limit in (1, 5, 6):
            found = await list_(T, limit)
            assert (len(found.items), found.truncated) == (limit, limit < 6)
        assert shown(await list_(T, 6))[-1] == (2, "deep", "g", "c0")

    async def test_k3_lists_reach_the_deepest_children(self, world: World) -> None:
        attempt = await world.start("r1")
        for n in range(MAX_CHILD_DEPTH):
            await start_child(world, attempt, f"c{n}", f"t{n}")
            attempt = await world.take(f"c{n}", thread=f"t{n}")
        found = await world.backend.timelines.children(T, 100)
        assert [each.depth for each in found.items] == list(range(1, MAX_CHILD_DEPTH + 1))

    async def test_a1_deleted_children_and_those_of_other_tenants_are_not_listed(self, world: World) -> None:
        """A1: The list omits a deleted child. For another tenant, the thread is unknown."""
        attempt = await world.start("r1")
        await start_child(world, attempt, "c1", "one")
        await start_child(world, attempt, "c2", "two")
        await world.finish(await world.take("c1", thread="one"), said("done"))
        await world.threads.delete_thread("one")
        await park(world, attempt, child("c2", "two"))
        assert shown(await world.backend.timelines.children(T, 10)) == [(1, "two", "c2", "r1")]
        other = World(await world.factory(tenant="other"), world.factory)
        with pytest.raises(ThreadNotFoundError):
            await other.backend.timelines.children(T, 10)
        await other.turn("r1")
        assert await other.backend.timelines.children(T, 10) == ChildRuns()
        await other.backend.close()
