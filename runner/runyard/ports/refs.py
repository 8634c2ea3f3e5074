"""The address of a run, and the right to write to it.

Both contain the thread's key. This key is unique over all tenants and over time. A thread's id is not unique, because a new
thread may have the id of a deleted thread. An :class:`AttemptToken` also has the fence, which proves the right to write (I2).
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
