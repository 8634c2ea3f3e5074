"""Python's garbage collector in a process that makes many objects at once, nearly all of which live or go by themselves.

It walks what is new again and again, and now and then everything: a process that serves has several hundred thousand objects
for good, and a long thread becomes as many. What lives is kept out of its way, and collected all the same now and then, since
what agents leave behind in cycles is found by nobody else.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

LONG: Final = 1_000
"""Messages that are made with the collector held back; fewer are made with it at work."""
MANY: Final = 100_000
"""Messages that are made between two collections of everything."""
RARE: Final = 50_000
"""New objects from which a process that serves looks for garbage among them. Python's own bound is 700."""

_made = 0


def settle() -> None:
    """Of a process that serves and has started: what it has by now stays, and collections become rare.

    Not of a program that uses runyard beside other things: its collector is its own.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(RARE, *gc.get_threshold()[1:])


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
    """Count what was just made as old. Python then forgets what else grew old and would never look at the old again; so that is
    done here, each time when as much was made as makes it cheap."""
    global _made
    if gc.get_freeze_count():  # nobody may thaw what a process that serves, or a host, has frozen
        return
    gc.freeze()
    gc.unfreeze()
    _made += messages
    if _made >= MANY:
        _made = 0
        gc.collect()
