"""Settings of Python's garbage collector, which keep it from visiting objects that stay alive.

The collector visits new objects often, and now and then all objects. A process that serves has several hundred thousand
permanent ones, and a long thread adds as many. Reference cycles that agents leave behind are still collected.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

MIN_MESSAGES: Final = 1_000
"""Messages from which the collector is paused while they are made."""
FULL_COLLECTION_MESSAGES: Final = 100_000
"""Messages made between two collections of all objects."""
SETTLED_THRESHOLD: Final = 50_000
"""New objects after which a serving process collects among them; Python's own threshold is far lower."""

_made = 0


def settle() -> None:
    """Exclude the objects of the started process from all collections, and make collections rare.

    For a process that serves. Any other program decides about its collector itself.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(SETTLED_THRESHOLD, *gc.get_threshold()[1:])


@contextlib.contextmanager
def held_back(messages: int) -> Iterator[None]:
    """Pause the collector while that many ``messages`` are made."""
    if messages < MIN_MESSAGES or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        _grow_old(messages)
        gc.enable()


def _grow_old(messages: int) -> None:
    """Count the new objects as old.

    freeze and unfreeze reset Python's own count of objects that grew old, so it would never visit the old ones. Therefore this
    collects all objects once FULL_COLLECTION_MESSAGES messages were made.
    """
    global _made
    if gc.get_freeze_count():  # settle or the host froze objects, which must stay frozen
        return
    gc.freeze()
    gc.unfreeze()
    _made += messages
    if _made >= FULL_COLLECTION_MESSAGES:
        _made = 0
        gc.collect()
