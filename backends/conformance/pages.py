"""Pages of lists: bounded in bytes, with large values left out, and complete for who follows ``next``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from runner.exchange import PAGE_BYTES, AcceptRequest, Page, ThreadRequest, Write
from runner.models import LARGE, HitlRequest

from .world import T as THREAD
from .world import World, said, user

T = TypeVar("T")

PIECE = 200_000
"""Bytes of what is too large for a list, and less than what any store takes."""
MANY = PAGE_BYTES // PIECE + 5


async def pages(ask: Callable[[str | None], Awaitable[Page[T]]]) -> list[list[T]]:
    """Every page, from the first one to that without ``next``."""
    found, cursor = list[list[T]](), None
    while True:
        page = await ask(cursor)
        found.append(page.items)
        if (cursor := page.next) is None:
            return found


class TestPages:
    @pytest.mark.parametrize("newest_first", [False, True])
    async def test_messages_come_in_pages_of_so_many_bytes(self, world: World, newest_first: bool) -> None:
        ids = [(await world.threads.store_message(THREAD, user("x" * PIECE))).id for _ in range(MANY)]
        found = await pages(lambda at: world.threads.messages(THREAD, limit=1000, cursor=at, newest_first=newest_first))
        assert len(found) == 2 and all(len(page) * PIECE <= PAGE_BYTES for page in found)
        assert [message.id for page in found for message in page] == (ids[::-1] if newest_first else ids)

    async def test_requests_come_in_pages_of_so_many_bytes(self, world: World) -> None:
        ids = [f"q{n:03}" for n in range(MANY)]
        attempt = await world.start("r1")
        asked = [HitlRequest(request_id=id, payload={"question": "x" * PIECE}) for id in ids]
        await world.runs.suspend(Write(attempt=attempt), asked)
        for ask in (
            lambda at: world.runs.requests(limit=1000, cursor=at),
            lambda at: world.runs.requests(limit=1000, cursor=at, pending=False),
        ):
            found = await pages(ask)
            assert len(found) == 2 and all(len(page) * PIECE <= PAGE_BYTES for page in found)
            assert sorted(request.request_id for page in found for request in page) == ids

    async def test_a_list_of_threads_leaves_large_values_out(self, world: World) -> None:
        large, small = {"x": "x" * LARGE}, {"x": "x" * (LARGE // 2)}
        await create(world, "one", extra=large, config=small)
        await create(world, "two", extra=small, config=large)
        one, two = (await world.threads.threads()).items
        assert (one.extra, one.config, one.omitted) == ({}, small, ["extra"])
        assert (two.extra, two.config, two.omitted) == (small, {}, ["config"])
        whole = await world.threads.thread("one")
        assert whole is not None and (whole.extra, whole.omitted) == (large, [])

    async def test_a_list_of_runs_leaves_large_values_out(self, world: World) -> None:
        await world.turn("small")
        request = AcceptRequest(thread_id=THREAD, run_id="large", input=user("x" * LARGE), metadata={"x": "x" * LARGE})
        await world.runs.accept(request)
        await world.finish(await world.take("large"), said("!"), result="x" * LARGE)
        large, small = (await world.runs.runs()).items
        assert small == await world.runs.run(THREAD, "small") and small.input is not None
        assert (large.input, large.result, large.metadata) == (None, None, {})
        assert sorted(large.omitted) == ["input", "metadata", "result"]
        whole = await world.runs.run(THREAD, "large")
        assert whole is not None and whole.input is not None and whole.result is not None and whole.omitted == []


async def create(world: World, thread_id: str, **fields: Any) -> None:
    await world.threads.create_thread(ThreadRequest(thread_id=thread_id, **fields))
