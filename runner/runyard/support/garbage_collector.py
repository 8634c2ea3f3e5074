"""Settings of Python's garbage collector, so that it does not visit permanent objects.

The collector visits new objects often, and all objects from time to time. A serving process has several hundred thousand
permanent objects. A long list of messages or prompts has a similar number of objects. With these settings, the collector still
frees the reference cycles of agents.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

from .turns import is_due, turn

MIN_VALUES: Final = 1_000
"""Minimum number of values for which :func:`held_back` pauses the collector."""
FULL_COLLECTION_VALUES: Final = 100_000
"""Number of values that are made between two collections of all objects."""
SETTLED_THRESHOLD: Final = 50_000
"""Number of new objects after which a serving process collects new objects. Python's default is much lower."""

_made = 0


def settle() -> None:
    """Exclude all present objects from later collections, and make collections rare.

    Call this function only in a worker or an API process. Other programs configure their collector themselves.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(SETTLED_THRESHOLD, *gc.get_threshold()[1:])


class Pause:
    """A pause of the collector. ``active``: whether the collector is paused. If another task turns the collector off during
    :meth:`turn`, the pause ends, and the collector stays off."""

    def __init__(self, active: bool) -> None:
        self.active = active

    async def turn(self, since: float) -> float:
        """Let the event loop run as :func:`~.turns.turn` does, with the collector in its usual state."""
        if not self.active or not is_due(since):
            return await turn(since)
        _grow_old(0)
        gc.enable()
        try:
            return await turn(since)
        finally:
            self.active = gc.isenabled()
            gc.disable()


@contextlib.contextmanager
def held_back(values: int, *, made: int | None = None) -> Iterator[Pause]:
    """Pause the collector inside the ``with`` block. The block awaits only :meth:`Pause.turn`.

    ``values``: the number of messages or prompts that the block makes or encodes. ``made``: the number of them that the block
    makes, by default all of them.
    """
    if values < MIN_VALUES or not gc.isenabled():
        yield Pause(False)
        return
    gc.disable()
    pause = Pause(True)
    try:
        yield pause
    finally:
        if pause.active:
            _grow_old(values if made is None else made)
            gc.enable()


def _grow_old(values: int) -> None:
    """Move all objects to the collector's oldest generation.

    freeze and unfreeze also reset the counter by which Python starts its next full collection. This function therefore starts
    a full collection itself, after every FULL_COLLECTION_VALUES values.
    """
    global _made
    if gc.get_freeze_count():  # objects that `settle` or the program froze must stay frozen
        return
    gc.freeze()
    gc.unfreeze()
    _made += values
    if _made >= FULL_COLLECTION_VALUES:
        _made = 0
        gc.collect()
