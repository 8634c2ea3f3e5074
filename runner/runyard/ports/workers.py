"""Workers, queues, and the runs that the leader may have to submit, as stores report them. Also the defaults of a worker: its
slots, its time to stop, and how long the leader keeps old data (:class:`Retention`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from ..domain.runs import VersionPolicy
from .scheduling import Job

DEFAULT_SLOTS: Final = 1000
"""Runs that a worker executes at once."""
DEFAULT_GRACE_SECONDS: Final = 20.0
"""Seconds in which a stopping worker lets its runs finish."""
DEFAULT_WATCHDOG_SECONDS: Final = 30.0
"""Seconds for which user code may block a worker's main loop."""


WaitingCursor: TypeAlias = tuple[datetime, int]
"""A place in the list of waiting runs: the time at which a run changed last, and the number of its accept."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A running run whose worker is dead or has left.

    ``worker_id``: that worker. ``cancelled``: a cancel of the run is pending. The next claim then ends the run.
    """

    job: Job
    worker_id: str
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class OrphanPage:
    """All orphans of some workers. ``after``: the worker after which to continue, or None at the end."""

    orphans: Sequence[Orphan] = ()
    after: str | None = None


@dataclass(frozen=True, slots=True)
class WaitingPage:
    """The jobs of waiting lane heads. ``after``: the place after which to continue, or None at the end.

    A lane head is the first run of its lane that has not ended. It waits if it needs nothing but a worker. A page may have no
    jobs and be followed by other pages, because a page ends after a number of examined runs.
    """

    jobs: Sequence[Job] = ()
    after: WaitingCursor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One worker process.

    ``agents``: a map from agent name to queue. ``asking``: the names of the agents that may ask humans. A worker gives them in
    its registration. A store that lists workers may leave ``asking`` empty. ``on_version_mismatch``: the setting of the
    worker's :class:`runyard.App`. ``address``: ``host:port`` of the worker's health server, or None. ``silent_for``: seconds
    since the last heartbeat, by the store's clock.
    """

    worker_id: str
    queues: Sequence[str]
    agents: Mapping[str, str] = field(default_factory=dict)
    asking: Sequence[str] = ()
    app_version: str | None = None
    on_version_mismatch: VersionPolicy = "run"
    slots: int = 0
    address: str | None = None
    heartbeat_at: datetime | None = None
    silent_for: float | None = None
    dead_at: datetime | None = None
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The time for which prunable data is kept.

    ``feed``: for entries of the feed, and for webhook deliveries that ended. ``results``: for results of fork jobs.
    ``workers``: for the rows of dead workers.
    """

    feed: timedelta = timedelta(days=7)
    results: timedelta = timedelta(days=7)
    workers: timedelta = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class FeedDelay:
    """The time for which the feed is held back.

    ``seconds``: the time for which committed entries cannot be read, because a transaction with a lower number is still open.
    ``holder``: a description of that transaction, or None after a short time.
    """

    seconds: float = 0.0
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The store's reply to a heartbeat.

    ``draining``: the worker must claim nothing more. ``paused``: the names of the paused queues. ``fits``: the schema admits
    this code.
    """

    draining: bool = False
    paused: frozenset[str] = frozenset()
    fits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """The state of a queue, over all tenants.

    ``queued``: the number of due runs that wait for a worker or for their lane. ``deepest``: the number of such runs in the
    longest lane. ``oldest``: the longest wait of such a run in seconds, or None without such runs. ``suspended``: the number of
    runs that wait for a human. ``workers``: the number of live workers that serve the queue and are not draining. ``known``: a
    live worker serves the queue, an agent that was ever served belongs to the queue, or the queue is paused. The names of other
    queues come from clients only.
    """

    queue: str
    queued: int = 0
    deepest: int = 0
    oldest: float | None = None
    suspended: int = 0
    workers: int = 0
    paused_at: datetime | None = None
    known: bool = False
