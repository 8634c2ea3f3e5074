"""Reports of stores about workers, queues, and runs that the leader may have to submit. :class:`Retention` is here too.

``worker_defaults.py`` has the other defaults of a worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from ..domain.agent_names import is_agent, namespace_of
from ..domain.runs import Run, VersionPolicy
from ..domain.size_limits import JsonObject, bounded_trace
from ..domain.waits import WaitsFor
from .scheduling import Job

MAX_PLACE_CHARACTERS: Final = 1000
"""Maximum number of characters of a place in code. The end of a longer place is kept."""

WaitingCursor: TypeAlias = tuple[datetime, int]
"""A place in the list of waiting runs: the time of a run's last change, and the number that the run got when it was
accepted."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A running run whose worker is dead or has left.

    ``worker_id``: the id of this worker. ``cancelled``: whether a cancel of the run is pending. If so, the next claim ends the
    run.
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

    A lane head is the first run of its lane that has not ended. It is a waiting lane head if it needs only a worker. A page
    ends after a certain number of examined runs. A page without jobs is therefore not always the last page.
    """

    jobs: Sequence[Job] = ()
    after: WaitingCursor | None = None


@dataclass(frozen=True, slots=True)
class BlockedLoop:
    """A main loop that is blocked by user code. ``seconds``: the time so far. ``place``: ``file:line``.

    ``stack``: the main thread's stack, or None if the App's filter drops it. The place is shortened to MAX_PLACE_CHARACTERS.
    The stack is shortened to the maximum size of a traceback. Both texts can come from another process and be too long.
    """

    seconds: float
    place: str
    stack: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", self.place[-MAX_PLACE_CHARACTERS:])
        object.__setattr__(self, "stack", self.stack and bounded_trace(self.stack))


@dataclass(frozen=True, slots=True)
class RedisOutage:
    """A worker cannot reach Redis. ``since``: the time of its first failed call. ``reason``: the error of the call."""

    since: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One worker process.

    ``agents``: a map from agent name to queue. ``default_agent``: the agent for the runs of the app's namespace that name no
    agent, or None if the app has no agents. ``asking``: the names of the agents that may ask humans. A worker sends these
    names when it registers. In a list of workers, ``asking`` can be empty. ``budgets``: the budgets of each agent whose
    definition has budgets. :meth:`runyard.Budget.describe` defines their form. ``on_version_mismatch``: the setting of the
    worker's :class:`runyard.App`. ``address``: ``host:port`` of the worker's health server, or None. ``silent_for``: seconds
    since the last heartbeat, by the store's clock. ``blocked``: the place at which the main loop is blocked by user code, or
    None. ``redis_outage``: the outage of Redis, or None. A dead worker has the values of the time when it was declared dead.
    """

    worker_id: str
    queues: Sequence[str]
    agents: Mapping[str, str] = field(default_factory=dict)
    default_agent: str | None = None
    asking: Sequence[str] = ()
    budgets: Mapping[str, Sequence[JsonObject]] = field(default_factory=dict)
    app_version: str | None = None
    on_version_mismatch: VersionPolicy = "run"
    slots: int = 0
    address: str | None = None
    heartbeat_at: datetime | None = None
    silent_for: float | None = None
    dead_at: datetime | None = None
    draining: bool = False
    blocked: BlockedLoop | None = None
    redis_outage: RedisOutage | None = None

    def serves(self, agent: str | None) -> bool:
        """Return whether the worker has the agent ``agent``. ``agent`` may also be the name that stands for a default agent.

        A worker without a list of agents has all agents.
        """
        if not self.agents:
            return True
        return agent in self.agents if is_agent(agent) else namespace_of(agent) == namespace_of(self.default_agent)

    def leaves(self, run: Run) -> bool:
        """Return whether another version began ``run`` and this worker leaves the run to that version."""
        began = run.app_version if run.attempt else None
        other = began is not None and self.app_version is not None and began != self.app_version
        return other and self.on_version_mismatch == "wait"

    def takes(self, run: Run) -> bool:
        """Return whether the worker has the agent of ``run`` and does not leave the run to another version."""
        return (run.kind == "fork" or self.serves(run.agent)) and not self.leaves(run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The times for which data is kept before the leader prunes it.

    ``feed``: the time for entries of the feed and for ended webhook deliveries. ``results``: the time for results of fork jobs.
    ``workers``: the time for the rows of dead workers.
    """

    feed: timedelta = timedelta(days=7)
    results: timedelta = timedelta(days=7)
    workers: timedelta = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class FeedDelay:
    """The delay of the feed.

    ``seconds``: the time for which committed entries cannot be read, because a transaction with a lower number is still open.
    ``holder``: a description of this transaction, or None if the delay is short.
    """

    seconds: float = 0.0
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The store's reply to a heartbeat.

    ``draining``: whether the worker must stop claiming. ``paused``: the names of the paused queues. ``fits``: whether the code
    of this worker can run on the schema.
    """

    draining: bool = False
    paused: frozenset[str] = frozenset()
    fits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """The state of a queue, over all tenants.

    ``queued``: the number of due runs that wait for a worker or for their lane. ``waiting``: the number of these runs that need
    only a worker. ``deepest``: the number of queued runs in the longest lane. ``oldest``: the longest wait of a queued run in
    seconds, or None without queued runs. ``scheduled``: the number of runs that are not due yet. ``running``: the number of
    runs that workers execute. ``suspended``: the number of suspended runs. ``waits_for``: the numbers of suspended runs that
    wait for a human, a timer, a signal or a child. ``workers``: the number of live workers that serve the queue and are not
    draining. ``known``: True if a live worker serves the queue, if a worker has ever served an agent of the queue, or if the
    queue is paused. If ``known`` is False, only runs of clients name the queue.
    """

    queue: str
    queued: int = 0
    waiting: int = 0
    deepest: int = 0
    oldest: float | None = None
    scheduled: int = 0
    running: int = 0
    suspended: int = 0
    waits_for: dict[WaitsFor, int] = field(default_factory=dict)
    workers: int = 0
    paused_at: datetime | None = None
    known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFigures:
    """Figures of the whole deployment, over all tenants.

    ``questions``, ``approvals``, ``steps``: the numbers of HITL requests of each kind that wait for an answer.
    ``oldest_request``: the longest wait of such a request in seconds, or None without such requests. ``database_bytes``: the
    size of the database. ``dead_rows``: the number of rows that vacuum has to remove. ``connections`` and ``max_connections``:
    the numbers of open and allowed connections of the server. ``commits``: the number of committed transactions since the
    server's statistics began. Without a server, these figures are 0.
    """

    questions: int = 0
    approvals: int = 0
    steps: int = 0
    oldest_request: float | None = None
    database_bytes: int = 0
    dead_rows: int = 0
    connections: int = 0
    max_connections: int = 0
    commits: int = 0
