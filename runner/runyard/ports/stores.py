"""The protocols of the stores. The package ``runyard_backends`` implements them. This package imports no driver."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final, Protocol, Unpack

from ..domain.api_keys import ApiKey
from ..domain.events import Event, FeedEntry
from ..domain.limits import Limit, LimitName
from ..domain.messages import Message, Usage
from ..domain.requests import HitlRequest
from ..domain.runs import AttemptInfo, ErrorInfo, Run
from ..domain.size_limits import JsonObject
from ..domain.states import RunStatus
from ..domain.threads import Branch, CheckpointData, Thread
from ..domain.usage_report import UsageReport
from ..domain.waits import Wait
from ..domain.webhooks import WebhookReply
from .commands import AcceptRequest, Cut, ForkOptions, ForkRequest, ThreadChanges, ThreadRequest, Write
from .fan_outs import FanOutStore
from .graph_checkpoints import GraphCheckpointStore
from .queries import ALL_RUNS, ALL_THREADS, FIRST_PAGE, WHOLE_PATH, PageRequest, PathRequest, RunFilter, ThreadFilter
from .refs import AttemptToken, RunRef
from .results import (
    Aborted,
    Accepted,
    Admitted,
    Changed,
    Claim,
    Created,
    Ended,
    Forked,
    Ledger,
    Page,
    Responded,
    Signalled,
    Step,
)
from .scheduling import EVENTS_PER_READ, Effects, EventLog, Job, Scheduler
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
    """A checkpointer: messages, extra, one pending request, external runs, forks (R13 to R15)."""

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
    """Optional methods of a checkpointer (R14): several requests of external runs, and answers that are applied once.

    If a checkpointer lacks these methods, an Agent keeps its requests in the thread's extra.

    ``save_requests``: store requests. If the run has a stored request with the same id, this request stays. If the id belongs
    to another run or thread, raise InvalidInputError and store nothing. ``load_requests``: return the pending and the answered
    requests of ``run_id`` (None: of the thread), the oldest first. ``answer_request``: as :meth:`RunStore.respond`. The
    responder whose result has ``last`` continues the run. ``abort_pending``: as :meth:`RunStore.abort_pending`.
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


class RunStore(Protocol):
    """The verbs of a run (:mod:`runyard.domain.states`).

    A store is bound to one tenant. The verbs of an attempt use the tenant of the run.

    ``admit``: admit due runs, apply the deadlines of HITL requests and waits, and fail runs that did not start by their
    ``expires_at``. Each of these three tasks covers at most ``limit`` threads of all tenants. The reconciler calls ``admit``
    in each pass.

    ``claim`` and ``complete``: ``wait`` is the number of seconds to wait for a thread that another transaction has locked.
    After this time the outcome of a claim is ``skipped``, and the result of a completion is LockedError. The other claims and
    completions of the same call are stored. Without ``wait``, ``complete`` waits for a lock as long as the other verbs do.

    ``suspend``: suspend the run until one of ``requests`` is answered or one of ``waits`` ends. If this has already happened,
    the run stays RUNNING. A request with ``created_at`` was stored before, so that its event is not sent again.

    ``start_child``: accept a child of the attempt's run, and store the wait for its end. The ``job`` of ``request`` is the
    attempt's run. The id of the wait is the child's run id. Raises RunConflictError if another run has this id. Raises
    StaleFenceError, CancelRequestedError, ChildDeadlockError, TooManyChildrenError, and the errors of ``accept``.

    ``signal``: send a signal to a thread. A suspended run that waits for the signal continues. Without such a run the signal is
    kept. Raises ThreadNotFoundError, SignalConflictError, TooManySignalsError.

    ``statuses``: return the status of each of ``runs`` (pairs of thread id and run id), or None for an unknown run.
    ``answered``: return the request of a thread that was answered with ``response_id``, or None. ``delete_run``: delete the
    content of a run that ended and is in no context, except messages that forks and branches show. The run's row stays, with
    ``deleted_at``. No list shows the run. A repetition changes nothing. Raises RunInUseError. ``isolate``: record that an
    attempt has a separate process. ``bury``: record the death of that process. ``how``: the cause of the death, as text.
    ``release`` with ``until_fewer``: submit the fan-out again when fewer than this number of its runs have not ended.
    ``usage`` of a verb that ends an attempt: the usage to add to the run's, even after a cancel. ``usage`` of ``append``
    and ``finish_step``: the usage of the run so far. The run's record keeps the larger amounts. ``run_events``: return the
    events after the event id ``after``, at most ``limit``, of about EVENT_BYTES_PER_READ bytes. An empty list means the end.
    """

    async def accept(self, request: AcceptRequest, *, connection: Any = None) -> Accepted: ...
    async def admit(self, limit: int = 100) -> Admitted: ...
    async def claim(self, worker_id: str, refs: Sequence[RunRef], *, wait: float = 0.0) -> list[Claim]: ...
    async def context(self, attempt: AttemptToken) -> list[Message]: ...
    async def ledger(self, attempt: AttemptToken) -> Ledger: ...
    async def append(
        self, attempt: AttemptToken, messages: Sequence[Message], *, first_event: int = 1, usage: Usage | None = None
    ) -> list[Message]: ...
    async def start_step(self, attempt: AttemptToken, key: str) -> Step | None: ...
    async def finish_step(self, attempt: AttemptToken, key: str, result: Any, *, usage: Usage | None = None) -> None: ...
    async def complete(self, writes: Sequence[Write], *, wait: float | None = None) -> list[Ended | Exception]: ...
    async def suspend(self, write: Write, requests: Sequence[HitlRequest], waits: Sequence[Wait] = ()) -> Ended: ...
    async def fail(self, write: Write, error: ErrorInfo) -> Ended: ...
    async def release(
        self,
        attempt: AttemptToken,
        *,
        delay: float = 0.0,
        error: ErrorInfo | None = None,
        first_event: int | None = 1,
        until_fewer: int | None = None,
        usage: Usage | None = None,
    ) -> Ended: ...
    async def isolate(self, attempt: AttemptToken) -> None: ...
    async def bury(self, attempt: AttemptToken, how: str) -> Ended: ...
    async def respond(
        self,
        answer: Any,
        *,
        thread_id: str | None = None,
        request_id: str | None = None,
        response_id: str | None = None,
        answered_by: str | None = None,
        on_behalf_of: str | None = None,
    ) -> Responded: ...
    async def start_child(self, attempt: AttemptToken, request: AcceptRequest) -> Accepted: ...
    async def signal(
        self, thread_id: str, name: str, value: Any, *, signal_id: str, sent_by: str | None = None
    ) -> Signalled: ...
    async def cancel(self, thread_id: str, run_id: str, *, keep: bool = False) -> Changed: ...
    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted: ...
    async def redrive(self, thread_id: str, run_id: str) -> Changed: ...
    async def delete_run(self, thread_id: str, run_id: str) -> None: ...
    async def run(self, thread_id: str, run_id: str) -> Run | None: ...
    async def statuses(self, runs: Sequence[tuple[str, str]]) -> list[RunStatus | None]: ...
    async def runs(self, where: RunFilter = ALL_RUNS, page: PageRequest = FIRST_PAGE) -> Page[Run]: ...
    async def explain(self, thread_id: str, run_id: str) -> str: ...
    async def attempts(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Page[AttemptInfo]: ...
    async def requests(
        self, *, thread_id: str | None = None, pending: bool = True, page: PageRequest = FIRST_PAGE
    ) -> Page[HitlRequest]: ...
    async def request(self, request_id: str) -> HitlRequest | None: ...
    async def answered(self, thread_id: str, response_id: str) -> HitlRequest | None: ...
    async def last_message_id(self, thread_id: str, run_id: str) -> str | None: ...
    async def run_events(self, ref: RunRef, after: str | None = None, *, limit: int = EVENTS_PER_READ) -> list[Event]: ...


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

    ``running``: return the attempts that a worker holds. ``cancelling``: return the worker's runs with a pending cancel. If
    the hint of a cancel was lost, the worker finds the cancel by this read.

    ``orphans``: return the running runs of workers that are dead or have left, in the order of the workers' ids. A page has
    all orphans of each of its workers. It ends with the worker at which the number of orphans reaches ``limit``.

    ``waiting``: return the lane heads that wait only for a worker, in the order of their last changes. ``limit`` bounds the
    runs that the call examines. ``within``: examine only runs that changed in this time. ``still_waiting``: return the jobs of
    those runs of ``refs`` that ``waiting`` would return. ``waiting`` and ``still_waiting`` leave out runs that changed within
    the time ``unchanged``. These two and ``orphans`` examine no suspended run, no external run, no run that waits for a permit,
    and no run of a live worker.
    ``report_block``: record that user code blocks the worker's main loop (None: no longer). If the worker dies, its attempts
    end with an error that names the place. Changes nothing for a dead or unknown worker.
    ``report_redis``: record why the worker does not reach Redis (None: it does). The time of the first report stays. Changes
    nothing for a dead or unknown worker.

    ``prune``: delete data whose retention has passed: at most ``limit`` rows of each kind, and the rows of all dead workers.
    Return True if there may be more rows to delete.
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

    ``queues``: return the queues in the order of their names (``page`` None: all queues). ``known``: return only queues that
    have a worker or an agent, or are paused. The runs of a paused queue are accepted, but no worker claims these runs.
    ``pause``: return the time of the pause. ``resume``: return whether the queue was paused.
    """

    async def queues(self, page: PageRequest | None = None, *, known: bool = False) -> Page[QueueInfo]: ...
    async def pause(self, queue: str) -> datetime: ...
    async def resume(self, queue: str) -> bool: ...


class KeyStore(Protocol):
    """The API keys of one tenant (A1). ``find_key`` covers every tenant.

    ``create_key``: ``lifetime`` is in seconds, or None for a key without expiry. ``key.expires_at`` is an upper bound of the
    time of expiry, or None. ``revoke_key``: return whether this call revoked the key. ``find_key``: return the key and the
    digest of its secret, or None if the key does not exist, has expired or was revoked.
    """

    async def create_key(self, key: ApiKey, digest: bytes, *, lifetime: float | None = None) -> ApiKey: ...
    async def keys(self) -> list[ApiKey]: ...
    async def revoke_key(self, key_id: str) -> bool: ...
    async def find_key(self, key_id: str) -> tuple[ApiKey, bytes] | None: ...


class Backend(Protocol):
    """The connected stores, scheduler and event log for a client or a worker. Stores are bound to ``tenant``.

    Every backend has every attribute. If a backend, for example HTTP, cannot implement an attribute, the calls of this
    attribute raise CapabilityMissingError. Without Redis, ``end_wait`` and ``hint_cancel`` of the scheduler and the appends of
    the event log do nothing. All other calls of the scheduler and the event log raise BackendUnavailableError.

    ``remote``: whether another process (the API) executes the calls.

    ``for_tenant``: return a backend with the same connections for another tenant. ``check``: raise BackendUnavailableError, or
    SchemaError if this code cannot run on the store's schema. ``notifications``: yield the effects of calls whose callers do
    not get the effects. Yield empty effects at the start, and when another program may have accepted a run.
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
