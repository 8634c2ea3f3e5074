"""The app of the workers in chaos tests. Only workers import it: it makes them keep and decode lazily even short histories."""

from __future__ import annotations

from runyard.app import App
from runyard_backends.codec import history
from runyard_backends.postgres import history_cache

from .chaos import chaotic

history_cache.MIN_MESSAGES = history.LAZY_MIN_MESSAGES = 1  # type: ignore[misc]
# The checker compares the messages that each attempt saw with those of its snapshot.

app = App({"chaotic": chaotic}, version="1")
