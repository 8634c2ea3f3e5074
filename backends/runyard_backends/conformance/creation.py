"""Threads that are created before they have messages, and lists with filters."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from runyard import errors
from runyard.ports.commands import ThreadRequest
from runyard.ports.queries import PageRequest, RunFilter, ThreadFilter
from runyard.ports.results import Created

from .world import T, World, now

pytestmark = pytest.mark.asyncio


async def create(world: World, thread_id: str = T, **fields: Any) -> Created:
    return await world.threads.create_thread(ThreadRequest(thread_id=thread_id, **fields))


class TestCreationWithoutWorkers:
    """The tests of :class:`TestCreation` that also apply to a store without workers."""

    async def test_the_same_again_is_the_same_thread(self, world: World) -> None:
        """A repeated creation with the same thread id returns the thread, even if the thread has changed."""
        assert (await create(world, title="x")).created
        await world.threads.update_thread(T, title="y")
        again = await create(world, title="x")
        assert not again.created and again.thread.title == "y"

    async def test_another_thread_has_the_id(self, world: World) -> None:
        await create(world, title="x")
        await world.store("hi", thread="lazy")
        await world.turn("r")
        await world.fork("fork", after_run_id="r")
        for taken in (T, "lazy", "fork"):
            with pytest.raises(errors.ThreadAlreadyExistsError):
                await create(world, taken)

    async def test_ten_at_once_make_one(self, world: World) -> None:
        made = await asyncio.gather(*(create(world, title="x") for _ in range(10)))
        assert sum(one.created for one in made) == 1

    async def test_a_deleted_id_is_free(self, world: World) -> None:
        await create(world, title="x")
        await world.threads.delete_thread(T)
        assert (await create(world, title="x")).created

    @pytest.mark.parametrize("fields", [{"tags": {"": "x"}}, {"extra": {"a": "\0"}}, {"title": "\0"}, {"config": {"x": "\0"}}])
    async def test_thread_with_values_that_cannot_be_stored_is_refused(self, world: World, fields: dict[str, Any]) -> None:
        with pytest.raises(errors.InvalidInputError):
            await create(world, **fields)
        assert await world.threads.thread(T) is None


class TestCreation(TestCreationWithoutWorkers):
    async def test_an_empty_thread(self, world: World) -> None:
        """``create_thread`` stores all the given values. A run on the thread uses the thread's agent. A fork copies the
        thread's config and extra."""
        made = await create(world, agent="a", title="Title", tags={"k": "v"}, extra={"e": 1}, config={"workspace": {"id": 7}})
        thread = made.thread
        assert made.created and thread == await world.threads.thread(T)
        assert (thread.agent, thread.title, thread.tags) == ("a", "Title", {"k": "v", "title": "Title"})
        assert (thread.extra, thread.config) == ({"e": 1}, {"workspace": {"id": 7}})
        assert await world.messages() == [] and await world.leaves() == []
        await world.turn("r")
        assert (await world.run("r")).agent == "a"
        fork = (await world.fork("fork", after_run_id="r")).thread
        assert (fork.config, fork.extra) == (thread.config, {"e": 1})


class TestFiltersWithoutWorkers:
    """The tests of :class:`TestFilters` that also apply to a store without workers."""

    async def test_threads_by_agent_and_tags(self, world: World) -> None:
        await create(world, "one", agent="a", tags={"team": "x", "env": "p"})
        await create(world, "two", agent="a", tags={"team": "y"})
        await create(world, "three", agent="b", tags={"team": "x"})

        async def found(**filters: Any) -> list[str]:
            return [thread.thread_id for thread in (await world.threads.threads(ThreadFilter(**filters))).items]

        assert await found(agent="a") == ["one", "two"]
        assert await found(tags={"team": "x"}) == ["one", "three"]
        assert await found(tags={"team": "x", "env": "p"}, agent="a") == ["one"]
        assert await found(tags={"team": "z"}) == []


class TestFilters(TestFiltersWithoutWorkers):
    async def test_runs_by_age_the_newest_first(self, world: World) -> None:
        for n in range(4):
            await world.accept(f"r{n}", thread=f"t{n}")
        runs = (await world.runs.runs()).items
        assert [run.run_id for run in runs] == ["r3", "r2", "r1", "r0"]
        page = await world.runs.runs(page=PageRequest(limit=3))
        assert [run.run_id for run in page.items] == ["r3", "r2", "r1"]
        assert [run.run_id for run in (await world.runs.runs(page=PageRequest(limit=3, cursor=page.next))).items] == ["r0"]
        middle = runs[1].accepted_at
        assert {run.run_id for run in (await world.runs.runs(RunFilter(since=middle))).items} == {
            run.run_id for run in runs if run.accepted_at >= middle
        }
        assert {run.run_id for run in (await world.runs.runs(RunFilter(before=middle))).items} == {
            run.run_id for run in runs if run.accepted_at < middle
        }
        assert (await world.runs.runs(RunFilter(since=now() + timedelta(days=1)))).items == []
