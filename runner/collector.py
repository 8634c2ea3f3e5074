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
_settled = False


def settle() -> None:
    """Of a process that serves and has started: what it has by now stays, and collections become rare.

    Not of a program that uses runyard beside other things: its collector is its own.
    """
    global _settled
    gc.collect()
    gc.freeze()
    gc.set_threshold(RARE, *gc.get_threshold()[1:])
    _settled = True


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
        _keep(messages)
        gc.enable()


def _keep(messages: int) -> None:
    """Have the collector pass over what was just made, until everything is collected."""
    global _made
    if gc.get_freeze_count() and not _settled:  # the host has frozen objects of its own, which are not ours to thaw
        return
    _made += messages
    due = _made >= MANY
    if due:
        _made = 0
        gc.unfreeze()
        gc.collect()
    gc.freeze()
    if not _settled:
        gc.unfreeze()
