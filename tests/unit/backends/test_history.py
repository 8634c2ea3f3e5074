"""Long histories are decoded in slices, between which the event loop has its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from runyard.agents import message_codec
from runyard.models import Message, TextPart
from runyard_backends.codec import history
from runyard_backends.postgres import codec

T = TypeVar("T")


async def turns(call: Callable[[], Awaitable[T]]) -> tuple[int, T]:
    """How often the loop came round while ``call`` was made, and what it returned."""
    count = 0

    async def spin() -> None:
        nonlocal count
        while True:
            await asyncio.sleep(0)
            count += 1

    spinning = asyncio.create_task(spin())
    await asyncio.sleep(0)
    count = 0
    found = await call()
    spinning.cancel()
    return count, found


def said(count: int, size: int) -> list[Message]:
    return [Message(role="user" if n % 2 else "assistant", content=[TextPart(text=f"{n} {'x' * size}")]) for n in range(count)]


def rows(messages: list[Message]) -> list[Any]:
    """As the driver gives them."""
    now = datetime.now(UTC)
    return [(n, m.id, None, "r", m.role, codec.new_message(m)[2], None, None, None, now) for n, m in enumerate(messages)]


@pytest.mark.parametrize(
    ("count", "size", "least"), [(0, 0, 0), (1, 2**20, 0), (40, 2**16, 8), (3 * history.SLICE_MESSAGES, 10, 2), (1000, 10, 0)]
)
async def test_long_history_is_decoded_without_blocking_the_loop(count: int, size: int, least: int) -> None:
    given = rows(said(count, size))
    came_round, found = await turns(lambda: history.messages(given))
    assert came_round >= least and (least or came_round == 0)
    assert found == codec.messages(given) and [message.seq for message in found] == [*range(count)]


@pytest.mark.parametrize(("count", "size", "least"), [(0, 0, 0), (1, 2**20, 0), (40, 2**16, 8), (100, 10, 0)])
async def test_long_history_is_converted_without_blocking_the_loop(count: int, size: int, least: int) -> None:
    given = said(count, size)
    came_round, found = await turns(lambda: message_codec.to_model(given))
    assert came_round >= least and len(found) == count
    one_by_one = [converted for message in given for converted in await message_codec.to_model([message])]
    assert contents(found) == contents(one_by_one)


def contents(told: Any) -> list[list[Any]]:
    return [[part.content for part in message.parts] for message in told]
