"""How many crashes make a run dead."""

from __future__ import annotations

from typing import Final

MAX_CRASHES: Final = 3
"""Crashes without progress after which a run is dead. The attempt after the last but one runs alone, in its own process."""
