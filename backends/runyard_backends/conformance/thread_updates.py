"""Threads: changes of title, tags, extra and config, and the list of threads."""

from __future__ import annotations

import asyncio

import pytest

from runyard import errors
from runyard.domain.size_limits import MAX_EXTRA
from runyard.models import JsonObject, Thread
from runyard.ports.commands import ThreadRequest
from runyard.ports.queries import PageRequest

from .world import T, World

pytestmark = pytest.mark.asyncio


class TestThreadUpdates:
    async def test_update_thread(self, world: World) -> None:
        with pytest.raises(errors.ThreadNotFoundError):
            await world.threads.update_thread(T, title="x")
        await world.store("a")
        await world.threads.update_thread(T, title="One", tags={"k": "v"}, extra={"a": 1, "b": {"c": 1}})
        thread = await world.threads.update_thread(T, extra={"b": 2})
        assert (thread.title, thread.tags, thread.extra) == ("One", {"k": "v", "title": "One"}, {"a": 1, "b": 2})
        thread = await world.threads.update_thread(T, tags={"l": "w"})
        assert thread.tags == {"l": "w", "title": "One"}, "F7: the title stays mirrored"
        assert await world.threads.thread(T) == thread

    async def test_merge_patch_with_none_clears_a_field(self, world: World) -> None:
        """RFC 7396: A field that is None is cleared, even at the top level of extra. A field that is not given stays."""
        await world.store("a")
        before: JsonObject = {"a": 1, "b": {"c": None}, "d": 2}
        await world.threads.update_thread(T, title="One", tags={"k": "v"}, extra=before)
        thread = await world.threads.update_thread(T, extra={"a": None, "b": {"c": None, "e": 1}, "new": None})
        assert thread.extra == {"b": {"c": None, "e": 1}, "d": 2}
        thread = await world.threads.update_thread(T, title=None)
        assert (thread.title, thread.tags) == (None, {"k": "v"}), "F7: the mirrored tag is cleared too"
        thread = await world.threads.update_thread(T, tags=None)
        assert (thread.tags, thread.extra) == ({}, {"b": {"c": None, "e": 1}, "d": 2})
        thread = await world.threads.update_thread(T, title="Two", tags=None, extra=None)
        assert (thread.title, thread.tags, thread.extra) == ("Two", {"title": "Two"}, {})
        thread = await world.threads.update_thread(T)
        assert (thread.title, thread.tags, thread.extra) == ("Two", {"title": "Two"}, {})
        assert await world.threads.thread(T) == thread

    async def test_config_is_merged(self, world: World) -> None:
        """A change of ``config`` is merged like a change of ``extra``. A fork has a copy of the config. ``load`` returns the
        config."""
        await world.threads.create_thread(ThreadRequest(thread_id=T, config={"a": 1, "b": {"c": 1}}))
        await world.turn("r1")
        thread = await world.threads.update_thread(T, config={"a": None, "b": {"d": 2}, "e": 3})
        assert (thread.config, thread.extra) == ({"b": {"d": 2}, "e": 3}, {})
        await world.fork("c", after_run_id="r1")
        assert (await world.threads.update_thread("c", config=None)).config == {}
        data = await world.checkpointer.load(T)
        assert data is not None and data.config == {"b": {"d": 2}, "e": 3}
        for key in "bf":
            await world.threads.update_thread(T, config={key: "x" * (MAX_EXTRA // 2 - 100)})
        with pytest.raises(errors.InvalidInputError, match="config would have"):
            await world.threads.update_thread(T, title="no", config={"g": "x" * 1000})
        stored = await world.threads.thread(T)
        assert stored is not None and (sorted(stored.config), stored.title) == (["b", "e", "f"], None)

    async def test_a_tag_of_the_name_title_stays(self, world: World) -> None:
        """F7: A tag named ``title`` stays if the thread has no title."""
        await world.store("a")
        await world.threads.update_thread(T, tags={"title": "mine"})
        assert (await world.threads.update_thread(T, title=None)).tags == {"title": "mine"}

    async def test_a_change_of_what_has_changed_is_refused(self, world: World) -> None:
        """RFC 9110: A change names the ``updated_at`` that it expects. If the thread has a newer ``updated_at``, the change is
        refused. The comparison and the change are one step."""
        await world.store("a")
        seen = await world.threads.update_thread(T, title="One")
        changed = await world.threads.update_thread(T, title="Two", expected=seen.updated_at)
        assert changed.updated_at > seen.updated_at
        with pytest.raises(errors.PreconditionFailedError):
            await world.threads.update_thread(T, title="Three", expected=seen.updated_at)
        with pytest.raises(errors.PreconditionFailedError):
            await world.threads.delete_thread(T, expected=seen.updated_at)
        with pytest.raises(errors.PreconditionFailedError):
            await world.threads.erase_thread(T, expected=seen.updated_at)
        assert await world.threads.thread(T) == changed and await world.texts() == ["a"]
        await world.threads.delete_thread(T, expected=changed.updated_at)
        assert await world.threads.thread(T) is None

    async def test_of_two_changes_at_once_one_is_made(self, world: World) -> None:
        await world.store("a")
        seen = await world.threads.thread(T)
        assert seen is not None
        answers = await asyncio.gather(
            *(world.threads.update_thread(T, extra={str(n): n}, expected=seen.updated_at) for n in range(8)),
            return_exceptions=True,
        )
        made = [answer for answer in answers if isinstance(answer, Thread)]
        refused = [answer for answer in answers if isinstance(answer, errors.PreconditionFailedError)]
        assert (len(made), len(refused)) == (1, 7)
        assert await world.threads.thread(T) == made[0] and len(made[0].extra) == 1

    async def test_threads_are_listed(self, world: World) -> None:
        for n in range(5):
            await world.store("x", thread=f"t{n}")
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await world.threads.threads(page=PageRequest(limit=2, cursor=cursor))
            seen += [thread.thread_id for thread in page.items]
            cursor = page.next
            if cursor is None:
                break
        assert sorted(seen) == [f"t{n}" for n in range(5)]
