"""UNSET: the default of an argument for which None has a meaning."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Unset(Enum):
    """The type of :data:`UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""The value of an argument for a field that is not to be changed."""
