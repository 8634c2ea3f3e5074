"""The protocols of the stores. The package ``runyard_backends`` implements them. This package imports no driver."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final, Protocol, Unpack

from ..domain.api_keys import ApiKey
from ..domain.events import FeedEntry
from ..domain.limits import Limit, LimitName
from ..domain.messages import Message
from ..domain.requests import HitlRequest
from ..domain.size_limits import JsonObject
from ..domain.threads import Branch, CheckpointData, Thread
from ..domain.usage_report import UsageReport
from ..domain.webhooks import WebhookReply
from .commands import Cut, ForkOptions, ForkRequest, ThreadChanges, ThreadRequest
from .fan_outs import FanOutStore
from .graph_checkpoints import GraphCheckpointStore
from .queries import ALL_THREADS, FIRST_PAGE, WHOLE_PATH, PageRequest, PathRequest, ThreadFilter
from .refs import AttemptToken, RunRef
from .results import (
    Aborted,
    Created,
    Forked,
    Page,
    Responded,
)
from .runs import RunStore
from .scheduling import Effects, EventLog, Job, Scheduler
from .streams import Streams
from .timelines import TimelineStore
from .webhooks import WebhookStore
from .workers import (
    BlockedLoop,
    DeploymentFigures,
    FeedDelay,
    HeartbeatReply,
    OrphanPage,
    QueueInfo,
    Retention,
    WaitingCursor,
    WaitingPage,
    WorkerInfo,
)

DEFAULT_MIN_POOL_CONNECTIONS: Final = 1
"""Minimum number of open connections of a process to Postgres."""
DEFAULT_MAX_POOL_CONNECTIONS: Final = 10
"""Maximum number of connections of a process to Postgres."""


class Checkpointer(Protocol):
    """A store of messages, extra, one pending request and external runs, with forks of threads (R13 to R15)."""

    async def load(self, thread_id: str) -> CheckpointData | None: ...
    async def append(self, thread_id: str, messages: Sequence[Message]) -> None: ...
    async def save_extra(self, thread_id: str, extra: JsonObject) -> None: ...
    async def save_pending_request(self, thread_id: str, request: HitlRequest | None, *, run_id: str | None = None) -> None: ...
    async def load_pending_request(self, thread_id: str) -> HitlRequest | None: ...
    async def load_pending_run_id(self, thread_id: str) -> str | None: ...
    async def load_pending(self, thread_id: str) -> tuple[HitlRequest, str | None] | None: ...
    async def claim_run(self, thread_id: str, run_id: str) -> None: ...
    async def mark_run_complete(self, thread_id: str, run_id: str) -> None: ...
    async def snapshot(self, thread_id: str, *, after_run_id: str) -> list[Message]: ...
    async def fork(
        self,
        src_thread_id: str,
        new_thread_id: str,
        *,
        after_run_id: str,
        metadata: JsonObject | None = None,
        **options: Unpack[ForkOptions],
    ) -> None: ...


class RequestStore(Protocol):
    """Optional methods of a checkpointer (R14). They store several requests of an external run, and apply each answer once.

    If a checkpointer lacks these methods, an Agent keeps its requests in the thread's extra.

    ``save_requests``: store requests. If the run has a stored request with the same id, this request stays. If the id belongs
    to another run or thread, raise InvalidInputError and store nothing. ``load_requests``: return the pending and the answered
    requests of ``run_id`` (None: of the thread), the oldest first. ``answer_request``: as :meth:`RunStore.respond`. If
    the returned :class:`Responded` has ``last`` True, no other request of the run is pending, and the caller continues the run.
    ``abort_pending``: as :meth:`RunStore.abort_pending`.
    """

    async def save_requests(self, thread_id: str, requests: Sequence[HitlRequest], *, run_id: str) -> None: ...
    async def load_requests(self, thread_id: str, *, run_id: str | None = None) -> list[HitlRequest]: ...
    async def answer_request(
        self,
        thread_id: str,
        answer: Any,
        *,
        request_id: str | None = None,
        response_id: str | None = None,
        answered_by: str | None = None,
    ) -> Responded: ...
    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted: ...


class RequestRemover(Protocol):
    """Optional method of a checkpointer (R14): remove one pending request that a checkpointer stored.

    Return whether this call removed the request. An answered request stays.
    """

    async def remove_request(self, thread_id: str, request_id: str) -> bool: ...


class ThreadStore(Protocol):
    """Threads, their message trees, and forks.

    ``ancestors``: see :func:`runyard_backends.lineage.ancestors`.
    """

    async def thread(self, thread_id: str) -> Thread | None: ...
    async def thread_key(self, thread_id: str) -> int | None: ...
    async def threads(self, where: ThreadFilter = ALL_THREADS, page: PageRequest = FIRST_PAGE) -> Page[Thread]: ...
    async def ancestors(self, thread_id: str, limit: int) -> Page[Thread]: ...
    async def create_thread(self, request: ThreadRequest) -> Created: ...
    async def update_thread(
        self, thread_id: str, *, expected: datetime | None = None, **changes: Unpack[ThreadChanges]
    ) -> Thread: ...
    async def messages(self, thread_id: str, path: PathRequest = WHOLE_PATH) -> Page[Message]: ...
    async def cut_messages(self, thread_id: str, cut: Cut) -> tuple[list[Message], JsonObject]: ...
    async def branches(self, thread_id: str, page: PageRequest = FIRST_PAGE, *, labelled: bool = False) -> Page[Branch]: ...
    async def set_label(self, thread_id: str, label: str, message_id: str | None = None) -> None: ...
    async def remove_label(self, thread_id: str, label: str) -> None: ...
    async def store_message(
        self, thread_id: str, message: Message, parent_id: str | None = None, *, expected_leaf: str | None = None
    ) -> Message: ...
    async def fork(self, request: ForkRequest) -> Forked: ...
    async def delete_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects: ...
    async def erase_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects: ...


class LimitStore(Protocol):
    """The deployment's limits, over all tenants (R16). A change applies from the next accept and the next claim on.

    ``clear_limit``: return whether the limit was set. ``review_limits``: count the waiting runs, and return the jobs of runs
    that wait although a permit is free. Only the leader calls ``review_limits``.
    """

    async def limits(self) -> list[Limit]: ...
    async def set_limit(self, limit: Limit) -> None: ...
    async def clear_limit(self, name: LimitName, subject: str | None = None) -> bool: ...
    async def review_limits(self) -> Effects: ...


class Feed(Protocol):
    """The committed changes of one tenant, in one order (E5). A new entry always follows all entries that were already read.

    ``read``: return the entries after the page's cursor. Without a cursor, begin at the oldest stored entry. ``next`` is always
    set, because the feed has no end. Raises InvalidCursorError, and CursorExpiredError if entries after the cursor were pruned.
    """

    async def read(self, page: PageRequest = FIRST_PAGE) -> Page[FeedEntry]: ...


class UsageStore(Protocol):
    """Usage totals of runs, by the UTC day of their end.

    ``report``: return the tenant's usage from the day ``since`` to the day ``until``. Both days are included. The default is
    the last 30 days by the store's clock. ``agent``: count the runs of this agent only. Raises InvalidInputError for 0 days,
    and for more than :data:`~runyard.domain.usage_report.MAX_DAYS`. ``count``: add about ``limit`` entries of the feed to the
    totals of all tenants. Return the :class:`~.workers.FeedDelay`. Only the leader calls ``count``. The store prunes an entry
    only after it is counted.
    """

    async def report(
        self, since: date | None = None, until: date | None = None, *, agent: str | None = None
    ) -> UsageReport: ...
    async def count(self, limit: int = 5000) -> FeedDelay: ...


class WebhookSender(Protocol):
    """Sends one HTTP request to a URL that a client gave. The sender connects to public or allowed addresses only.

    The sender follows no redirect. If the receiver fails, the reply reports the failure, and no error is raised. ``timeout``:
    seconds for the whole request.
    """

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, *, timeout: float) -> WebhookReply: ...


class WorkerStore(Protocol):
    """Workers, their heartbeats, the leader's lease, and the reads of the reconciler, over all tenants.

    ``running``: return the attempts that a worker holds. ``cancelling``: return the worker's runs with a pending cancel. If a
    cancel hint was lost, the worker finds the cancel by this read.

    ``orphans``: return the running runs of workers that are dead or have left, in the order of the workers' ids. A page has
    all orphans of each of its workers. It ends with the worker at which the number of orphans reaches ``limit``.

    ``waiting``: return the lane heads that wait only for a worker, in the order of their last changes. ``limit``: the maximum
    number of runs that the call examines. ``within``: examine only runs whose last change is not older than this time.
    ``still_waiting``: return the jobs of the runs ``refs`` that still wait only for a worker, as in ``waiting``. ``waiting``
    and ``still_waiting`` leave out runs that changed within the time ``unchanged``. ``waiting``, ``still_waiting`` and
    ``orphans`` leave out suspended runs, external runs, runs that wait for a permit, and runs of live workers.
    ``report_block``: record where user code blocks the worker's main loop (None: nothing blocks it). If the worker dies, its
    attempts end with an error that names this line of code. ``report_redis``: record why the worker cannot reach Redis (None:
    it reaches Redis). The time of the first report stays. ``report_block`` and ``report_redis`` change nothing for a dead or
    unknown worker.

    ``prune``: delete data whose retention has passed. At most about ``limit`` rows of each kind are deleted. The rows of dead
    workers have no maximum. Return True if more rows are possibly left to delete.
    """

    async def register(self, worker: WorkerInfo) -> None: ...
    async def beat(self, worker_id: str) -> HeartbeatReply: ...
    async def leave(self, worker_id: str) -> None: ...
    async def drain(self, worker_id: str) -> None: ...
    async def report_block(self, worker_id: str, blocked: BlockedLoop | None) -> None: ...
    async def report_redis(self, worker_id: str, reason: str | None) -> None: ...
    async def workers(self) -> list[WorkerInfo]: ...
    async def lead(self, worker_id: str, ttl: float) -> bool: ...
    async def mark_dead(self, worker_id: str, heartbeat_at: datetime) -> bool: ...
    async def running(self, worker_id: str) -> list[AttemptToken]: ...
    async def cancelling(self, worker_id: str) -> list[RunRef]: ...
    async def orphans(self, *, after: str = "", limit: int = 1000) -> OrphanPage: ...
    async def waiting(
        self,
        *,
        unchanged: timedelta,
        after: WaitingCursor | None = None,
        within: timedelta | None = None,
        limit: int = 1000,
    ) -> WaitingPage: ...
    async def still_waiting(self, refs: Sequence[RunRef], *, unchanged: timedelta) -> list[Job]: ...
    async def prune(self, retention: Retention, limit: int = 5000) -> bool: ...
    async def measure(self) -> DeploymentFigures: ...


class QueueStore(Protocol):
    """The waiting runs of the queues and the pauses of queues, over all tenants.

    ``queues``: return the queues in the order of their names. If ``page`` is None, return all queues. ``known``: return only
    queues that have a worker or an agent, or are paused. The runs of a paused queue are accepted, but no worker claims these
    runs. ``pause``: return the time at which the pause began. ``resume``: return whether the queue was paused.
    """

    async def queues(self, page: PageRequest | None = None, *, known: bool = False) -> Page[QueueInfo]: ...
    async def pause(self, queue: str) -> datetime: ...
    async def resume(self, queue: str) -> bool: ...


class KeyStore(Protocol):
    """The API keys of one tenant (A1). ``find_key`` covers every tenant.

    ``create_key``: ``lifetime`` is in seconds, or None for a key without expiry. The key expires after ``lifetime``, or earlier
    at ``key.expires_at`` if this time is given. ``revoke_key``: return whether this call revoked the key. ``find_key``: return
    a valid key and the digest of its secret. Return None for an unknown, expired or revoked key.
    """

    async def create_key(self, key: ApiKey, digest: bytes, *, lifetime: float | None = None) -> ApiKey: ...
    async def keys(self) -> list[ApiKey]: ...
    async def revoke_key(self, key_id: str) -> bool: ...
    async def find_key(self, key_id: str) -> tuple[ApiKey, bytes] | None: ...


class Backend(Protocol):
    """The connected stores, scheduler and event log for a client or a worker. Stores are bound to ``tenant``.

    Every backend has every attribute. If a backend, for example HTTP, cannot implement an attribute, the calls of this
    attribute raise CapabilityMissingError. Without Redis, ``scheduler.end_wait``, ``scheduler.hint_cancel``, ``events.append``,
    ``events.append_many`` and ``events.forget`` do nothing. All other calls of ``scheduler`` and ``events`` raise
    BackendUnavailableError.

    ``remote``: whether another process (the API) executes the calls.

    ``for_tenant``: return a backend with the same connections for another tenant. ``check``: raise BackendUnavailableError if
    the store does not answer. Raise SchemaError if this code cannot run on the store's schema. ``notifications``: yield the
    effects of calls that do not return their effects. Yield empty effects at the start, and whenever another program has
    possibly accepted a run.
    """

    tenant: str
    remote: bool
    checkpointer: Checkpointer
    threads: ThreadStore
    runs: RunStore
    feed: Feed
    usage: UsageStore
    timelines: TimelineStore
    fan_outs: FanOutStore
    limits: LimitStore
    webhooks: WebhookStore
    workers: WorkerStore
    queues: QueueStore
    keys: KeyStore
    graphs: GraphCheckpointStore
    scheduler: Scheduler
    events: EventLog
    streams: Streams

    def for_tenant(self, tenant: str) -> Backend: ...
    async def check(self) -> None: ...
    def notifications(self) -> AsyncGenerator[Effects]: ...
    async def close(self) -> None: ...
