"""Pages of lists. A page is limited in bytes and has no large values. A caller that follows ``next`` gets all entries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from runyard import Client
from runyard.errors import InvalidCursorError
from runyard.models import LARGE_VALUE_BYTES, ErrorInfo, HitlRequest, RunOptions
from runyard.ports.commands import AcceptRequest, ThreadRequest, Write
from runyard.ports.queries import PageRequest, PathRequest, ThreadFilter
from runyard.ports.results import PAGE_BYTES, Page

from .world import T as THREAD
from .world import World, said, user

T = TypeVar("T")

PIECE = 200_000
"""Bytes of a value that is too large for a list but allowed in every store."""
MANY = PAGE_BYTES // PIECE + 5


async def pages(ask: Callable[[str | None], Awaitable[Page[T]]]) -> list[list[T]]:
    """Read every page. The last page has no ``next``."""
    found, cursor = list[list[T]](), None
    while True:
        page = await ask(cursor)
        found.append(page.items)
        if (cursor := page.next) is None:
            return found


async def listed(world: World, where: ThreadFilter) -> list[str]:
    """Return the ids of the threads that match, from pages of two."""
    found = await pages(lambda at: world.threads.threads(where, PageRequest(limit=2, cursor=at)))
    return [thread.thread_id for page in found for thread in page]


class TestPagesWithoutWorkers:
    """The tests of :class:`TestPages` that also apply to a store without workers."""

    @pytest.mark.parametrize("newest_first", [False, True])
    async def test_messages_come_in_pages_of_so_many_bytes(self, world: World, newest_first: bool) -> None:
        ids = [(await world.threads.store_message(THREAD, user("x" * PIECE))).id for _ in range(MANY)]
        path = PathRequest(limit=1000, newest_first=newest_first)
        found = await pages(lambda at: world.threads.messages(THREAD, replace(path, cursor=at)))
        assert len(found) == 2 and all(len(page) * PIECE <= PAGE_BYTES for page in found)
        assert [message.id for page in found for message in page] == (ids[::-1] if newest_first else ids)

    @pytest.mark.parametrize("newest_first", [False, True])
    async def test_threads_come_in_both_orders(self, world: World, newest_first: bool) -> None:
        for n in range(7):
            await create(world, f"t{n}", agent="ab"[n % 2], tags={"third": str(n % 3)})
        for where, fitting in (
            (ThreadFilter(), [0, 1, 2, 3, 4, 5, 6]),
            (ThreadFilter(agent="a"), [0, 2, 4, 6]),
            (ThreadFilter(tags={"third": "0"}), [0, 3, 6]),
            (ThreadFilter(agent="a", tags={"third": "0"}), [0, 6]),
        ):
            assert await listed(world, replace(where, newest_first=newest_first)) == [
                f"t{n}" for n in (fitting[::-1] if newest_first else fitting)
            ]

    @pytest.mark.parametrize("where", [ThreadFilter(), ThreadFilter(agent="a"), ThreadFilter(tags={"all": "yes"})])
    @pytest.mark.parametrize("newest_first", [False, True])
    async def test_threads_come_and_go_between_pages(self, world: World, newest_first: bool, where: ThreadFilter) -> None:
        """The last thread of a page is deleted, and a new thread is made, before the next page is read. Each remaining thread
        is listed once. The new thread is listed last if the list begins at the oldest thread. Otherwise it is not listed."""
        for n in range(6):
            await create(world, f"t{n}", agent="a", tags={"all": "yes"})
        where, seen = replace(where, newest_first=newest_first), list[str]()
        cursor: str | None = None
        for turn in range(10):
            page = await world.threads.threads(where, PageRequest(limit=2, cursor=cursor))
            seen += [thread.thread_id for thread in page.items]
            if (cursor := page.next) is None:
                break
            if turn == 0:
                await world.threads.delete_thread(seen[-1])
                await create(world, "new", agent="a", tags={"all": "yes"})
        everything = [f"t{n}" for n in range(6)]
        assert seen == (everything[::-1] if newest_first else [*everything, "new"])

    @pytest.mark.parametrize("newest_first", [False, True])
    async def test_a_cursor_of_the_other_order_is_refused(self, world: World, newest_first: bool) -> None:
        for n in range(4):
            await create(world, f"t{n}")
        page = await world.threads.threads(ThreadFilter(newest_first=newest_first), PageRequest(limit=2))
        with pytest.raises(InvalidCursorError):
            await world.threads.threads(ThreadFilter(newest_first=not newest_first), PageRequest(cursor=page.next))

    async def test_a_list_of_threads_leaves_large_values_out(self, world: World) -> None:
        large, small = {"x": "x" * LARGE_VALUE_BYTES}, {"x": "x" * (LARGE_VALUE_BYTES // 2)}
        await create(world, "one", extra=large, config=small)
        await create(world, "two", extra=small, config=large)
        one, two = (await world.threads.threads()).items
        assert (one.extra, one.config, one.omitted) == ({}, small, ["extra"])
        assert (two.extra, two.config, two.omitted) == (small, {}, ["config"])
        whole = await world.threads.thread("one")
        assert whole is not None and (whole.extra, whole.omitted) == (large, [])


class TestPages(TestPagesWithoutWorkers):
    async def test_requests_come_in_pages_of_so_many_bytes(self, world: World) -> None:
        ids = [f"q{n:03}" for n in range(MANY)]
        attempt = await world.start("r1")
        asked = [HitlRequest(request_id=id, payload={"question": "x" * PIECE}) for id in ids]
        await world.runs.suspend(Write(attempt=attempt), asked)
        for ask in (
            lambda at: world.runs.requests(page=PageRequest(limit=1000, cursor=at)),
            lambda at: world.runs.requests(pending=False, page=PageRequest(limit=1000, cursor=at)),
        ):
            found = await pages(ask)
            assert len(found) == 2 and all(len(page) * PIECE <= PAGE_BYTES for page in found)
            assert sorted(request.request_id for page in found for request in page) == ids

    async def test_a_request_that_the_cursor_names_may_leave_the_list(self, world: World) -> None:
        """H10: The next page of the inbox begins after the place of the answered request."""
        attempt = await world.start("r1")
        ids = [f"q{n}" for n in range(5)]
        await world.runs.suspend(Write(attempt=attempt), [HitlRequest(request_id=id) for id in ids])
        first = await world.runs.requests(page=PageRequest(limit=2))
        await world.runs.respond("yes", request_id=first.items[-1].request_id)
        second = await world.runs.requests(page=PageRequest(limit=3, cursor=first.next))
        assert [request.request_id for page in (first, second) for request in page.items] == ids and second.next is None
        for cursor in ("x", "e30="):
            with pytest.raises(InvalidCursorError):
                await world.runs.requests(page=PageRequest(cursor=cursor))

    async def test_leaves_come_in_pages(self, world: World) -> None:
        """B3: A leaf that gets a child between two pages is not listed. Each other leaf is listed once."""
        root = await world.threads.store_message(THREAD, user("?"))
        leaves = [await world.threads.store_message(THREAD, said(f"{n}"), root.id) for n in range(7)]
        attempt = await world.start("r1", parent_id=leaves[6].id)
        await world.runs.fail(Write(attempt=attempt, messages=[said("no")]), ErrorInfo(code="x", message="x"))
        everything = await world.leaves()
        assert len(everything) == 8 and {leaf.depth for leaf in everything} == {2, 4}
        found = await pages(lambda at: world.threads.branches(THREAD, PageRequest(limit=3, cursor=at)))
        assert [len(page) for page in found] == [3, 3, 2] and [leaf for page in found for leaf in page] == everything
        first = await world.threads.branches(THREAD, PageRequest(limit=3))
        await world.threads.store_message(THREAD, user("more"), first.items[-1].message_id)
        second = await world.threads.branches(THREAD, PageRequest(limit=5, cursor=first.next))
        assert [leaf.message_id for leaf in second.items] == [leaf.message_id for leaf in everything[3:]]
        for cursor in ("x", "e30="):
            with pytest.raises(InvalidCursorError):
                await world.threads.branches(THREAD, PageRequest(cursor=cursor))
            with pytest.raises(InvalidCursorError):
                await world.runs.attempts(THREAD, "r1", PageRequest(cursor=cursor))

    async def test_result_of_a_run_is_whole_or_cut_to_a_number_of_bytes(self, world: World) -> None:
        """A2: The outcome of a run has its last messages and its oldest requests, up to a number of bytes. The outcome names
        the lists that are incomplete."""
        attempt = await world.start("r1")
        await world.runs.append(attempt, [said("x" * PIECE) for _ in range(MANY)], first_event=3)
        asked = [HitlRequest(request_id=f"q{n:03}", payload={"question": "x" * PIECE}) for n in range(MANY)]
        await world.runs.suspend(Write(attempt=attempt, first_event=3 + MANY), asked)
        await world.turn("r2", options=RunOptions(parallel=True))
        client = Client(world.backend)
        run = await client.run(THREAD, "r1")
        whole = await client.result_of(run)
        assert [len(message.text) for message in whole.messages] == [2, *[PIECE] * MANY] and whole.omitted == []
        assert sorted(request.request_id for request in whole.requests) == [request.request_id for request in asked]
        part = await client.result_of(run, PAGE_BYTES)
        for items, name in ((part.messages, "messages"), (part.requests, "requests")):
            assert name in part.omitted and PAGE_BYTES - 2 * PIECE < len(items) * PIECE <= PAGE_BYTES
        assert part.messages == whole.messages[-len(part.messages) :]
        assert part.requests == whole.requests[: len(part.requests)]

    async def test_a_list_of_runs_leaves_large_values_out(self, world: World) -> None:
        await world.turn("small")
        request = AcceptRequest(
            thread_id=THREAD, run_id="large", input=user("x" * LARGE_VALUE_BYTES), metadata={"x": "x" * LARGE_VALUE_BYTES}
        )
        await world.runs.accept(request)
        await world.finish(await world.take("large"), said("!"), result="x" * LARGE_VALUE_BYTES)
        large, small = (await world.runs.runs()).items
        assert small == await world.runs.run(THREAD, "small") and small.input is not None
        assert (large.input, large.result, large.metadata) == (None, None, {})
        assert sorted(large.omitted) == ["input", "metadata", "result"]
        whole = await world.runs.run(THREAD, "large")
        assert whole is not None and whole.input is not None and whole.result is not None and whole.omitted == []


async def create(world: World, thread_id: str, **fields: Any) -> None:
    await world.threads.create_thread(ThreadRequest(thread_id=thread_id, **fields))
