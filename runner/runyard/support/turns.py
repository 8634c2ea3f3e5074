"""Slices of long calculations. The event loop runs between two slices."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

SLICE_SECONDS: Final = 0.01
"""Seconds of a calculation after which the event loop runs."""


async def turn(since: float) -> float:
    """Let the event loop run if its last turn was more than SLICE_SECONDS ago. Return the time of its last turn.

    ``since``: the time of the last turn, of :func:`time.monotonic`.
    """
    if not is_due(since):
        return since
    await asyncio.sleep(0)
    return monotonic()


def is_due(since: float) -> bool:
    """Return whether the last turn of the event loop, at the time ``since``, was more than SLICE_SECONDS ago."""
    return monotonic() - since > SLICE_SECONDS
