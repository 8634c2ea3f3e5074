"""Results of the stores' verbs. The caller of a verb applies the :class:`~.scheduling.Effects` in its result."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

from ..domain.crashes import MAX_CRASHES
from ..domain.fan_outs import CandidateStatus
from ..domain.requests import HitlRequest
from ..domain.runs import ErrorInfo, Run
from ..domain.size_limits import JsonObject
from ..domain.states import RunStatus
from ..domain.threads import Thread
from ..domain.waits import Signal, Wait
from ..errors import BackendUnavailableError, LockedError, RateLimitedError, RunyardError, ThreadAlreadyExistsError
from .commands import ForkRequest
from .refs import AttemptToken, RunRef
from .scheduling import Effects, Job

PAGE_BYTES: Final = 8 * 2**20
"""Approximate maximum number of bytes in one page of a list. A larger entry is a page by itself."""

OUTAGES: Final = (BackendUnavailableError, RateLimitedError)
"""Errors of a store that accepts nothing for a while.

LockedError is not one of these errors, because it concerns only one thread.
"""

T = TypeVar("T")


@dataclass(slots=True)
class Accepted:
    """An accepted run. ``created`` is False if the same request was accepted before."""

    run: Run
    created: bool
    effects: Effects = field(default_factory=Effects)


def outage_of(outcomes: Iterable[object]) -> RunyardError | None:
    """Return the first of OUTAGES among the outcomes of many prompts, or None."""
    return next((one for one in outcomes if isinstance(one, OUTAGES) and not isinstance(one, LockedError)), None)


@dataclass(slots=True)
class Admitted:
    """The result of ``admit``.

    ``next_due``: seconds until the next due time, deadline or expiry, or None if there is no such time.
    """

    effects: Effects
    next_due: float | None


ClaimOutcome = Literal[
    "claimed", "ended", "behind", "not_due", "other_version", "unserved", "paused", "limited", "waiting", "suspended", "busy",
    "skipped", "unknown",
]  # fmt: skip


@dataclass(slots=True)
class Claim:
    """The outcome of one claim.

    - ``claimed``: ``attempt``, ``run``, ``tenant``, ``extra`` and ``config`` are set. For a fork job, ``fork`` is set too.
      ``leaf_id`` is the id of the last message that earlier attempts of the run committed, or None.
    - ``not_due``: the run is due in ``retry_in`` seconds.
    - ``paused``: the run's queue is paused.
    - ``limited``: the run waits in the store for a permit of a limit.
    - ``skipped``: another transaction holds the row lock of the thread. Submit the job again.
    - ``busy``: a live worker executes the run.
    - ``waiting``: a fork job waits for the run at its cut, or for some of the runs that it started.
    - ``other_version``: this worker leaves the run to the version of the app that began the run. ``requires`` is set. Submit
      the job later.
    - ``unserved``: this worker does not have the run's agent. ``requires`` is set. Submit the job later.
    - ``behind``: the run is not the head of its lane.
    - ``ended``, ``suspended``: the status of the run. ``unknown``: the run does not exist.

    After ``ended``, ``behind``, ``suspended`` and ``unknown``, the caller does not submit the job again.

    ``version_before``: the app version of the previous attempt, or None for the first attempt. ``alone``: whether this attempt
    needs a separate process, because earlier attempts crashed. ``job``: set only in the claim :attr:`Ended.next`, which is made
    together with the end of another run. The run's job is then in this field, and no scheduler has it.
    """

    ref: RunRef
    outcome: ClaimOutcome
    attempt: AttemptToken | None = None
    tenant: str = ""
    run: Run | None = None
    extra: JsonObject = field(default_factory=dict)
    config: JsonObject = field(default_factory=dict)
    fork: ForkRequest | None = None
    leaf_id: str | None = None
    retry_in: float | None = None
    takeover: bool = False
    version_before: str | None = None
    requires: str | None = None
    effects: Effects = field(default_factory=Effects)
    job: Job | None = None

    @property
    def alone(self) -> bool:
        return self.run is not None and self.run.crash_count >= MAX_CRASHES - 1


@dataclass(frozen=True, slots=True)
class Step:
    """A step as recorded. ``result`` is None until ``done``. ``fence``: the fence of the attempt that wrote the record.

    ``outcome``: for a candidate of a fan-out, the status with which the candidate ended. The ``result`` of such a step is not
    read, because a fan-out has up to a thousand candidates.
    """

    key: str
    done: bool
    result: Any = None
    fence: int = 0
    outcome: CandidateStatus | None = None


@dataclass(slots=True)
class Ledger:
    """The records of earlier attempts of a run.

    ``steps``: the started and the finished steps, by key. ``requests``: the pending and the answered requests, by id.
    ``waits``: the open and the ended waits, by id. ``received``: the ids of the requests whose answers no earlier attempt has
    received. ``resumes``: True if the previous attempt suspended the run, and an answer or the end of a wait started this
    attempt. ``retries``: True if the previous attempt ended with an error after which the run is retried.
    """

    steps: dict[str, Step] = field(default_factory=dict)
    requests: dict[str, HitlRequest] = field(default_factory=dict)
    waits: dict[str, Wait] = field(default_factory=dict)
    received: Set[str] = frozenset()
    resumes: bool = False
    retries: bool = False


@dataclass(slots=True)
class Ended:
    """The end of an attempt. After a cancel or an incomplete tool cycle, ``status`` differs from the requested status.

    ``next``: the claim of the lane's next run, if the write had ``claim_next`` and its transaction also claimed this run.
    ``next`` is None in all other cases. The claim is for the worker of the ended attempt, and its outcome is always
    ``claimed``. The job of the next run is in ``next``, and not in ``effects``.
    """

    status: RunStatus
    event_id: str
    error: ErrorInfo | None = None
    effects: Effects = field(default_factory=Effects)
    next: Claim | None = None

    def add_next(self, claim: Claim) -> None:
        """Add the claim of the lane's next run to the end. If the run was not claimed, its job stays in the effects."""
        if claim.outcome == "claimed":
            [claim.job] = [job for job in self.effects.jobs if job.ref == claim.ref]
            self.effects.jobs.remove(claim.job)
            self.next = claim
        self.effects += claim.effects
        claim.effects = Effects()


@dataclass(slots=True)
class Responded:
    """An answered request. ``created`` is False if the same response was recorded before.

    ``last``: True if this call recorded the response, and no other request of the run is pending. If several callers respond
    to the requests of a run at once, exactly one of them gets ``last``.
    """

    request: HitlRequest
    created: bool
    effects: Effects = field(default_factory=Effects)
    last: bool = False


@dataclass(slots=True)
class Signalled:
    """A signal that was sent. ``created`` is False if the same signal was sent before."""

    signal: Signal
    created: bool
    effects: Effects = field(default_factory=Effects)


@dataclass(slots=True)
class Changed:
    """A run after a change by an operator or a client."""

    run: Run
    effects: Effects = field(default_factory=Effects)


@dataclass(slots=True)
class Aborted:
    """The result of an abort. ``run``: the cancelled run, or None if no run waited for a human."""

    run: Run | None
    effects: Effects = field(default_factory=Effects)


@dataclass(slots=True)
class Forked:
    """A fork. ``created`` is False if the same fork was made before."""

    thread: Thread
    created: bool

    def require_new(self) -> None:
        """Raise ThreadAlreadyExistsError if the fork was made before. The ``fork`` of a checkpointer cannot be repeated
        (F4)."""
        if not self.created:
            thread_id = self.thread.thread_id
            raise ThreadAlreadyExistsError(f"thread {thread_id!r} exists already; choose another id", thread_id=thread_id)


@dataclass(slots=True)
class Created:
    """A created thread. ``created`` is False if the same thread was created before."""

    thread: Thread
    created: bool


@dataclass(slots=True)
class Page(Generic[T]):
    """One page of a list. ``next``: the cursor of the next page, or None at the end of the list.

    A page with a ``next`` may have fewer items than the limit, or no items. A page also ends at about PAGE_BYTES, or after a
    bounded number of rows that do not match the filter.
    """

    items: list[T]
    next: str | None = None
