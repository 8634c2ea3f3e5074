"""The garbage collector while a long thread becomes objects, which all live: it would walk them again and again.

It is held back, and what was made counts as old at once, else the next collection would walk it all. Python then forgets what
else grew old and would never look at the old again; so that is done here, each time when as much was made as makes it cheap.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

LONG = 1_000
"""Fewer messages are made with the collector at work."""

MANY = 100_000
"""How many messages are made between two collections of everything."""

_made = 0


@contextlib.contextmanager
def held_back(messages: int) -> Iterator[None]:
    """Make so many messages."""
    if messages < LONG or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        _grow_old(messages)
        gc.enable()


def _grow_old(messages: int) -> None:
    global _made
    if gc.get_freeze_count():  # the host has frozen objects of its own, which are not ours to thaw
        return
    gc.freeze()
    gc.unfreeze()
    _made += messages
    if _made >= MANY:
        _made = 0
        gc.collect()
