"""The number of crashes that makes a run dead. ``max_crashes`` in ``postgres/functions/crashes.sql`` is the same limit."""

from __future__ import annotations

from typing import Final

MAX_CRASHES: Final = 3
"""Number of crashes without progress after which a run is dead.

After ``MAX_CRASHES - 1`` such crashes, the next attempt of the run is executed alone in a separate process.
"""
