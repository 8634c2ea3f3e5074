"""What an argument holds that was not given, where None says something."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Unset(Enum):
    """The type of :data:`UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""Leaves a field as it is."""
