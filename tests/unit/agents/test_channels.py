"""A channel in memory whose asker stops waiting (H3, H4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from runyard.errors import HitlNoPendingRequestError, HitlStaleAnswerError
from runyard.hitl import InMemoryChannel
from runyard.models import HitlRequest


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize(
    "settle", [lambda channel: channel.answer("q0", True), lambda channel: channel.cancel("q0")], ids=["answer", "cancel"]
)
async def test_the_question_of_a_cancelled_asker_is_not_pending(
    settle: Callable[[InMemoryChannel], HitlRequest], others: int
) -> None:
    """H3: the question is gone as soon as its asker is cancelled, not only when the event loop executes the asker."""
    channel = InMemoryChannel()
    requests = [HitlRequest(request_id=f"q{n}", payload={"question": "?"}) for n in range(1 + others)]
    asking = [asyncio.create_task(channel.ask(request)) for request in requests]
    await asyncio.sleep(0)
    asking[0].cancel()
    assert channel.pending == requests[1:]
    with pytest.raises(HitlStaleAnswerError if others else HitlNoPendingRequestError):
        settle(channel)
    if others:
        assert channel.answer(None, "yes") == requests[1]
        assert await asking[1] == "yes"
    with pytest.raises(asyncio.CancelledError):
        await asking[0]
