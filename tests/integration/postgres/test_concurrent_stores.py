"""Many callers store messages in the same threads at once (B1)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from runyard.domain.messages import Message
from runyard.errors import LeafMovedError
from runyard.ports.queries import PageRequest, PathRequest
from runyard.ports.stores import Backend
from runyard_backends.conformance.world import user
from runyard_backends.postgres.backend import connect

THREADS = int(os.environ.get("RUNYARD_TEST_STORING_THREADS", "4"))
STORES = 200
RACES = 25


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[Backend]:
    backend = await connect(postgres_url)
    yield backend
    await backend.close()


async def path(backend: Backend, thread: str) -> list[Message]:
    """All messages of the thread's only path."""
    return list((await backend.threads.messages(thread, PathRequest(limit=1000))).items)


async def test_concurrent_stores_form_one_path(backend: Backend) -> None:
    """B1: without a parent each message follows another one. The depth of the only leaf is the number of messages."""
    threads = [f"t{n}" for n in range(THREADS)]
    await asyncio.gather(*(backend.threads.store_message(t, user(str(n))) for n in range(STORES) for t in threads))
    for thread in threads:
        (leaf,) = (await backend.threads.branches(thread, PageRequest())).items
        messages = await path(backend, thread)
        assert leaf.depth == len(messages) == STORES
        assert [message.parent_id for message in messages] == [None, *(message.id for message in messages[:-1])]
        assert {message.text for message in messages} == {str(n) for n in range(STORES)}


async def test_one_of_two_that_expect_the_same_leaf_is_stored(backend: Backend) -> None:
    """B1: both expect the last message. One is stored, and the other is refused and leaves nothing."""
    last = await backend.threads.store_message("t", user("first"))
    for race in range(RACES):
        pair = (backend.threads.store_message("t", user(f"{race} {side}"), expected_leaf=last.id) for side in "ab")
        results = await asyncio.gather(*pair, return_exceptions=True)
        (last,) = [result for result in results if isinstance(result, Message)]
        assert LeafMovedError in map(type, results)
    assert len(await path(backend, "t")) == 1 + RACES
