"""Postgres backends that keep the histories even of short threads, and decode even short histories lazily."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runyard_backends.codec import history
from runyard_backends.postgres import history_cache

CACHE_BYTES = 2**20


@contextmanager
def short_histories_are_kept() -> Iterator[None]:
    """Keep and decode lazily every history inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_cache, "MIN_MESSAGES", 1)
        patch.setattr(history, "LAZY_MIN_MESSAGES", 1)
        yield
