"""The address of a run, and the right to write to it.

The thread's surrogate key is unique over tenants, and a deleted thread's id may be used again. An :class:`AttemptToken` adds
the fence, the proof of the right to write (I2).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunRef:
    """The address of one run, over all tenants."""

    thread_key: int
    run_id: str


@dataclass(frozen=True, slots=True)
class AttemptToken:
    """The right to write to a run, until a higher fence is issued."""

    thread_key: int
    run_id: str
    fence: int

    @property
    def ref(self) -> RunRef:
        return RunRef(self.thread_key, self.run_id)
