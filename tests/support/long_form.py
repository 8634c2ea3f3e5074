"""Short and long forms of tests. ``make test`` runs the short forms, and ``make long``, with RUNYARD_TEST_LONG=1, the long
forms."""

from __future__ import annotations

import os
from typing import Final, TypeVar

Case = TypeVar("Case")

LONG: Final = os.environ.get("RUNYARD_TEST_LONG", "0") != "0"


def some(cases: list[Case], every: int, first: int = 0) -> list[Case]:
    """Return all cases in the long form. In the short form, return one of ``every`` cases, beginning at number ``first``."""
    return cases if LONG else cases[first::every]
