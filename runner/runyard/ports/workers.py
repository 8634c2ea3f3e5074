"""Workers, queues and lane heads, as stores report them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from ..domain.runs import VersionPolicy
from .scheduling import Job

DEFAULT_SLOTS: Final = 1000
"""Runs that a worker executes at once."""
DEFAULT_GRACE_SECONDS: Final = 20.0
"""Seconds in which a stopping worker lets its runs finish."""
DEFAULT_WATCHDOG_SECONDS: Final = 30.0
"""Seconds for which user code may block a worker's main loop."""


@dataclass(frozen=True, slots=True)
class LaneHead:
    """The first unfinished run of a lane, which a queue or a worker should have.

    ``orphaned``: its worker is dead or gone. ``cancelled``: its worker is dead or gone and a cancel is pending; the next claim
    ends the run.
    """

    job: Job
    orphaned: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One worker process.

    ``agents``: agent name → queue. ``asking``: the agents that may ask humans; only set when the worker registers.
    ``on_version_mismatch``: that of :class:`runyard.App`. ``address``: ``host:port`` of its health server, if it has one.
    ``silent_for``: seconds since its heartbeat, by the store's clock.
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
    """How long to keep data that is pruned: entries of the feed, results of fork jobs, rows of dead workers."""

    feed: timedelta = timedelta(days=7)
    results: timedelta = timedelta(days=7)
    workers: timedelta = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The store's reply to a heartbeat.

    ``draining``: claim nothing more. ``paused``: the queues from which to claim nothing. ``fits``: the schema admits this code.
    """

    draining: bool = False
    paused: frozenset[str] = frozenset()
    fits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """The state of a queue, over all tenants.

    ``queued``: the number of due runs that wait for a worker or for their lane. ``deepest``: the number of them in the longest
    lane. ``oldest``: the longest wait of them in seconds; None if none waits. ``suspended``: the number of runs that wait for a
    human. ``workers``: the number of live workers that serve the queue and are not draining. ``known``: a live worker serves
    it, an agent that was ever served belongs to it, or it is paused; all other names come from callers only.
    """

    queue: str
    queued: int = 0
    deepest: int = 0
    oldest: float | None = None
    suspended: int = 0
    workers: int = 0
    paused_at: datetime | None = None
    known: bool = False
