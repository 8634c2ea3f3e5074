"""The scheduler and the event log: jobs, the effects of a commit on Redis, and the ports that apply them.

The caller of a verb applies the effects of the commit. If the caller dies first, the reconciler applies these effects.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ..domain.agent_names import is_agent, namespace_of
from ..domain.events import Event
from ..domain.runs import Priority, RunKind
from ..domain.size_limits import JsonObject
from .refs import RunRef

MAIN_LANE = ""

LANE_LOCK_SECONDS: Final = 3.0
"""Seconds that a lane stays locked after its claim or the last renewal of its lock."""

EVENTS_PER_READ: Final = 500
"""Maximum number of events of a run in one read."""

EVENT_BYTES_PER_READ: Final = 64 * 2**10
"""Approximate maximum number of bytes in one read, which a slow reader keeps in memory. A larger event is read by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """The limits of the event streams of a deployment. All processes must have the same limits.

    ``events`` and ``bytes``: the approximate maximum numbers of events and of bytes in the stream of one run. If a stream has
    more, its oldest events are removed. ``running``: seconds for which the stream of a run is kept after its last event.
    ``stopped``: the seconds for which the stream is kept if the run ended or waits for a human. ``total_bytes``: the maximum
    number of bytes of all streams together. If ``total_bytes`` is None, the maximum is half of the server's memory limit, or
    DEFAULT_TOTAL_BYTES if the server has no limit.
    """

    events: int = 5000
    bytes: int = 16 * 2**20
    running: float = 86_400.0
    stopped: float = 86_400.0
    total_bytes: int | None = None


DEFAULT_TOTAL_BYTES: Final = 2**30
"""Maximum number of bytes of all streams on a server without a memory limit."""


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """The number of bytes of a deployment's streams, and the number of streams that were dropped before they expired.

    The number of dropped streams starts again at 0 after a loss of the server's data, and after a long time without events.
    ``memory``: on the fullest server, the bytes that count for the memory limit. ``max_memory``: the memory limit of this
    server, or 0 without a limit. Each of the two numbers is 0 if the server does not report it.
    """

    bytes: int = 0
    dropped: int = 0
    memory: int = 0
    max_memory: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """The entry in the scheduler for a run that may start. The scheduler serves tenants by turns.

    ``delay``: seconds until the run is due. ``ready_at``: the earliest time at which the run could start, in seconds since 1970
    by the store's clock. ``queued``: the event to write when the job is submitted. None if an attempt has begun since the
    accept or the redrive of the run. ``over``: whether the run ended before a worker claimed it. The submission of such a job
    removes the job from its queue. ``requires``: what the last worker of the job lacks (:func:`requirement`). Workers that have
    it may take the job during the delay.
    """

    thread_key: int
    run_id: str
    lane: str = MAIN_LANE
    kind: RunKind = "prompt"
    queue: str = "default"
    priority: Priority = "normal"
    tenant: str = ""
    delay: float = 0.0
    ready_at: float | None = field(default=None, compare=False)
    queued: Event | None = field(default=None, compare=False)
    over: bool = field(default=False, compare=False)
    requires: str | None = field(default=None, compare=False)

    @property
    def ref(self) -> RunRef:
        return RunRef(self.thread_key, self.run_id)

    @property
    def lane_key(self) -> str:
        """The lane's name in Redis, without a colon. All runs of the lane have the same lane key."""
        if self.lane == MAIN_LANE:
            return str(self.thread_key)
        return f"{self.thread_key}.{hashlib.blake2s(self.lane.encode(), digest_size=8).hexdigest()}"

    @property
    def id(self) -> str:
        """The arq job id: ``<lane key>:<run id>``."""
        return f"{self.lane_key}:{self.run_id}"


def requirement(agent: str | None, version: str | None = None) -> str:
    """Return the name of a run's requirement of its worker. The name has the agent, and the version of the app if it is given.

    Names of agents and versions have printable characters only. Two requirements therefore never have the same name.
    """
    name = agent if is_agent(agent) else f"{namespace_of(agent)}/"
    return name if version is None else f"{name}\n{version}"


def queued_event(thread_id: str, run_id: str, fence: int, attempt: int) -> Event:
    """Return the event ``run.queued`` of a run that waits for ``attempt``. ``fence``: the fence of the accept or redrive."""
    return Event.trusted(f"{fence}-1", "run.queued", thread_id, run_id, {"attempt": attempt})


@dataclass(frozen=True, slots=True)
class OutsideEvent:
    """An event that no attempt writes. It reports that a run became dead, or that a run without a worker was cancelled or
    failed.

    ``agent`` and ``queue``: the agent and the queue of the run.
    """

    ref: RunRef
    thread_id: str
    event_id: str
    type: str
    data: JsonObject = field(default_factory=dict)
    agent: str | None = None
    queue: str = "default"


@dataclass(slots=True)
class Effects:
    """The work in Redis that follows a commit.

    ``jobs``: jobs to submit. ``events``: events to write. ``cancels``: runs whose cancel was requested. A cancel hint is sent
    for each of them. ``withdrawn``: the jobs of ended runs, which are removed. In a queue without workers, these jobs would
    otherwise stay for ever. ``deleted``: the keys of deleted threads, whose streams are deleted.
    """

    jobs: list[Job] = field(default_factory=list)
    events: list[OutsideEvent] = field(default_factory=list)
    cancels: list[RunRef] = field(default_factory=list)
    withdrawn: list[Job] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)

    @property
    def submissions(self) -> list[Job]:
        """The jobs to submit, and the jobs to remove."""
        return [*self.jobs, *self.withdrawn]

    def __iadd__(self, other: Effects) -> Effects:
        self.jobs += other.jobs
        self.events += other.events
        self.cancels += other.cancels
        self.withdrawn += other.withdrawn
        self.deleted += other.deleted
        return self

    def __bool__(self) -> bool:
        return bool(self.jobs or self.events or self.cancels or self.withdrawn or self.deleted)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A job that a worker took. ``token``: the number of the worker's lane lock. The lock ends when it is released or
    expires."""

    job: Job
    token: int


class Scheduler(Protocol):
    """The jobs that may start, and the locks of their lanes. A loss of all jobs and locks delays runs, but loses no run.

    ``submit``, and ``release`` with the argument ``submit``, write a job's ``queued`` event before a worker can claim the job.
    A worker may pass a delivery's lock on to the next run of the lane. ``renew`` and ``release`` then get a delivery with the
    job of this run and the same token. ``claim`` waits up to ``wait`` seconds for a job. If a call of ``claim`` is cancelled,
    no worker executes the jobs that the call took. The reconciler submits them again after their locks expire. ``has``: the
    requirements that the worker fulfils. The worker can get a job of ``queues`` with such a requirement before the job is due.
    ``missing_jobs`` returns the given jobs that the scheduler does not have. The run of such a job does not hold the lane's
    lock, and no worker is about to get the job. Locks of the workers ``dead`` do not count. ``end_wait`` ends the wait of a
    worker's current or next ``claim`` and loses no job.
    """

    async def submit(self, jobs: Sequence[Job]) -> None: ...
    async def claim(
        self, worker_id: str, queues: Sequence[str], limit: int, wait: float = 0.0, *, has: Sequence[str] = ()
    ) -> list[Delivery]: ...
    async def end_wait(self, worker_id: str) -> None: ...
    async def renew(self, worker_id: str, deliveries: Sequence[Delivery]) -> list[Delivery]: ...
    async def release(self, worker_id: str, deliveries: Sequence[Delivery], submit: Sequence[Job] = ()) -> None: ...
    async def missing_jobs(self, jobs: Sequence[Job], dead: Collection[str] = ()) -> list[Job]: ...
    async def ping(self) -> None: ...
    async def hint_cancel(self, refs: Sequence[RunRef]) -> None: ...
    def cancel_hints(self) -> AsyncIterator[RunRef]: ...


class EventLog(Protocol):
    """One bounded stream of events per run.

    ``follow`` yields each event. It also yields None after ``silence`` seconds without an event. ``read`` returns the events
    after an event id. With ``page`` it returns at most EVENTS_PER_READ events with about EVENT_BYTES_PER_READ bytes in total,
    and an empty list at the end. ``begins`` yields once at the start, and again whenever a run of the thread gets an event
    whose id ends in ``-1``. Such an event is the first event of an attempt, or comes from a call outside of attempts.

    ``forget`` deletes the streams of threads. Events that are appended later reach the current followers, but are not stored.
    ``trim`` drops streams until the remaining streams fit the limit of the deployment. First it drops the streams of stopped
    runs, beginning with the run that stopped longest ago. Then it drops the other streams, beginning with the stream whose last
    event is oldest. A reader of a dropped stream finds a ``gap``.
    """

    async def append(self, thread_key: int, events: Sequence[Event]) -> None: ...
    async def append_many(self, batch: Sequence[tuple[RunRef, Sequence[Event]]]) -> None: ...
    async def read(self, ref: RunRef, after: str | None = None, *, page: bool = False) -> list[Event]: ...
    async def holds(self, ref: RunRef, event_id: str) -> bool: ...
    def follow(
        self, ref: RunRef, after: str | None = None, *, silence: float | None = None
    ) -> AsyncGenerator[Event | None]: ...
    def begins(self, thread_key: int) -> AsyncIterator[bool]: ...
    async def forget(self, thread_keys: Sequence[int]) -> None: ...
    async def trim(self) -> StreamUsage: ...
