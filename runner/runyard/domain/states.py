"""The statuses of a run, and the verbs that change the status.

TRANSITIONS lists the legal verbs of each status. Stores implement this table. The conformance suite tries every entry.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class RunStatus(StrEnum):
    """The status of a run."""

    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD = "dead"


class Verb(StrEnum):
    """The verbs that change a run."""

    ACCEPT = "accept"
    ADMIT = "admit"
    CLAIM = "claim"
    APPEND = "append"
    SUSPEND = "suspend"
    RESPOND = "respond"
    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"
    BURY = "bury"
    EXPIRE = "expire"
    CANCEL = "cancel"
    REDRIVE = "redrive"


_Q, _R, _S = RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.SUSPENDED

_C, _F, _X, _D = RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.DEAD

LIVE: Final = frozenset({_Q, _R, _S})

ENDED: Final = frozenset({_C, _F, _X, _D})

TRANSITIONS: Final[dict[tuple[RunStatus | None, Verb], frozenset[RunStatus]]] = {
    (None, Verb.ACCEPT): frozenset({_Q}),
    (_Q, Verb.ADMIT): frozenset({_Q, _F}),
    (_Q, Verb.CLAIM): frozenset({_R}),
    (_Q, Verb.RESPOND): frozenset({_Q}),
    (_Q, Verb.EXPIRE): frozenset({_F}),
    (_Q, Verb.CANCEL): frozenset({_X}),
    (_R, Verb.CLAIM): frozenset({_R, _X, _D}),
    (_R, Verb.APPEND): frozenset({_R}),
    (_R, Verb.SUSPEND): frozenset({_S, _R, _X}),
    (_R, Verb.RESPOND): frozenset({_R}),
    (_R, Verb.COMPLETE): frozenset({_C, _F, _X}),
    (_R, Verb.FAIL): frozenset({_F, _X}),
    (_R, Verb.RELEASE): frozenset({_Q, _X}),
    (_R, Verb.BURY): frozenset({_D, _Q, _X}),
    (_R, Verb.CANCEL): frozenset({_R, _X}),
    (_S, Verb.RESPOND): frozenset({_Q}),
    (_S, Verb.FAIL): frozenset({_F}),
    (_S, Verb.CANCEL): frozenset({_X}),
    (_F, Verb.REDRIVE): frozenset({_Q}),
    (_D, Verb.REDRIVE): frozenset({_Q}),
}
"""(status before the verb, verb) → the possible statuses after the verb.

A store refuses any other pair and changes nothing.
"""


def targets(status: RunStatus | None, verb: Verb) -> frozenset[RunStatus]:
    """Return the possible statuses after ``verb`` in ``status``, or an empty set if the verb is refused.

    ``status`` is None if there is no such run.
    """
    return TRANSITIONS.get((status, verb), frozenset())
