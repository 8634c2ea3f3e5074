"""Waiting for a store that does not answer, within a bound."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from .errors import BackendUnavailableError

T = TypeVar("T")

BOUND: Final = 30.0
"""Seconds for which a write of an attempt is repeated before the attempt is given up."""


def jittered(seconds: float) -> float:
    """``seconds`` ± 50 %, so that many waiters do not come back at once."""
    return seconds * random.uniform(0.5, 1.5)


async def patiently(call: Callable[[], Awaitable[T]], *, bound: float = BOUND) -> T:
    """Call until the store answers, at most ``bound`` seconds; then BackendUnavailableError. For calls that may be repeated."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + bound
    delay = 0.05
    while True:
        try:
            return await call()
        except BackendUnavailableError:
            if loop.time() + delay > give_up:
                raise
        await asyncio.sleep(jittered(delay))
        delay = min(delay * 2, 2.0)
