"""Where runs are executed: in a harness, or else anywhere in this process."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final


class Stage:
    """What helpers remember by, so that each harness begins with nothing."""


PROCESS: Final = Stage()

stage: ContextVar[Stage] = ContextVar("runyard_stage", default=PROCESS)
"""Where the current task works."""
