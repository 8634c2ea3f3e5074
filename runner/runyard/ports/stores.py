"""The protocols of the stores. The package ``runyard_backends`` implements them; this package knows no driver."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Protocol

from ..domain.api_keys import ApiKey
from ..domain.events import Event, FeedEntry
from ..domain.json_bounds import JsonObject
from ..domain.limits import Limit, LimitName
from ..domain.messages import Message
from ..domain.requests import HitlRequest
from ..domain.runs import AttemptInfo, ErrorInfo, Run
from ..domain.threads import Branch, CheckpointData, Thread
from ..domain.unset import UNSET, Unset
from ..domain.usage_report import UsageReport
from ..domain.webhooks import DeliveryOutcome, DeliveryStatus, Posting, SigningKey, Webhook, WebhookDelivery, WebhookReply
from .commands import AcceptRequest, Cut, ForkRequest, ThreadRequest, Write
from .queries import ALL_RUNS, ALL_THREADS, FIRST_PAGE, WHOLE_PATH, PageRequest, PathRequest, RunFilter, ThreadFilter
from .refs import AttemptToken, RunRef
from .results import Aborted, Accepted, Admitted, Changed, Claim, Created, Ended, Forked, Ledger, Page, Responded, Step
from .scheduling import EVENTS_PER_READ, Effects, EventLog, Scheduler
from .streams import Streams
from .workers import HeartbeatReply, LaneHead, QueueInfo, Retention, WorkerInfo


class Checkpointer(Protocol):
    """The documented checkpointer: messages, extra, one pending request, external runs, forks (R13 to R15)."""

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
        self, src_thread_id: str, new_thread_id: str, *, after_run_id: str, metadata: JsonObject | None = None
    ) -> None: ...


class RequestStore(Protocol):
    """Optional methods of a checkpointer (R14): several requests of external runs, and answers that are applied once.

    Without them an Agent keeps requests in the thread's extra.

    ``save_requests``: a request whose id is stored stays as it is. ``load_requests``: the pending and answered requests of
    ``run_id``, or of the thread, the oldest first. ``answer_request``: as :meth:`RunStore.respond`; ``last`` of its result
    decides which of several responders continues the run. ``abort_pending``: as :meth:`RunStore.abort_pending`.
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


class ThreadStore(Protocol):
    """Threads, their message trees, and forks."""

    async def thread(self, thread_id: str) -> Thread | None: ...
    async def thread_key(self, thread_id: str) -> int | None: ...
    async def threads(self, where: ThreadFilter = ALL_THREADS, page: PageRequest = FIRST_PAGE) -> Page[Thread]: ...
    async def create_thread(self, request: ThreadRequest) -> Created: ...
    async def update_thread(
        self,
        thread_id: str,
        *,
        title: str | Unset | None = UNSET,
        tags: Mapping[str, str] | Unset | None = UNSET,
        extra: JsonObject | Unset | None = UNSET,
        expected: datetime | None = None,
    ) -> Thread: ...
    async def messages(self, thread_id: str, path: PathRequest = WHOLE_PATH) -> Page[Message]: ...
    async def cut_messages(self, thread_id: str, cut: Cut) -> tuple[list[Message], JsonObject]: ...
    async def branches(self, thread_id: str, page: PageRequest = FIRST_PAGE) -> Page[Branch]: ...
    async def store_message(
        self, thread_id: str, message: Message, parent_id: str | None = None, *, expected_leaf: str | None = None
    ) -> Message: ...
    async def fork(self, request: ForkRequest) -> Forked: ...
    async def delete_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects: ...
    async def erase_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects: ...


class RunStore(Protocol):
    """The verbs of a run (states.py). Bound to one tenant; the verbs of an attempt use the run's own tenant.

    ``delete_run``: delete the content of a run that ended and is in no context, except what forks and branches show of it. The
    run stays, with ``deleted_at``, and no list shows it. A repetition changes nothing. Raises RunInUseError.
    ``isolate``: mark an attempt as running in a process of its own. ``bury``: that process died; ``how`` says how.
    ``release`` with ``until_fewer``: the job continues when fewer than that many of the runs that it started are unfinished.
    ``run_events``: the events after the event ``after`` that the store can prove, at most as many as a reader may hold; none at
    the end.
    """

    async def accept(self, request: AcceptRequest, *, connection: Any = None) -> Accepted: ...
    async def admit(self, limit: int = 100) -> Admitted: ...
    async def claim(self, worker_id: str, refs: Sequence[RunRef]) -> list[Claim]: ...
    async def context(self, attempt: AttemptToken) -> list[Message]: ...
    async def ledger(self, attempt: AttemptToken) -> Ledger: ...
    async def append(self, attempt: AttemptToken, messages: Sequence[Message], *, first_event: int = 1) -> list[Message]: ...
    async def start_step(self, attempt: AttemptToken, key: str) -> Step | None: ...
    async def finish_step(self, attempt: AttemptToken, key: str, result: Any) -> None: ...
    async def complete(self, writes: Sequence[Write]) -> list[Ended | Exception]: ...
    async def suspend(self, write: Write, requests: Sequence[HitlRequest]) -> Ended: ...
    async def fail(self, write: Write, error: ErrorInfo) -> Ended: ...
    async def release(
        self,
        attempt: AttemptToken,
        *,
        delay: float = 0.0,
        error: ErrorInfo | None = None,
        first_event: int | None = 1,
        until_fewer: int | None = None,
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
    async def cancel(self, thread_id: str, run_id: str, *, keep: bool = False) -> Changed: ...
    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted: ...
    async def redrive(self, thread_id: str, run_id: str) -> Changed: ...
    async def delete_run(self, thread_id: str, run_id: str) -> None: ...
    async def run(self, thread_id: str, run_id: str) -> Run | None: ...
    async def runs(self, where: RunFilter = ALL_RUNS, page: PageRequest = FIRST_PAGE) -> Page[Run]: ...
    async def explain(self, thread_id: str, run_id: str) -> str: ...
    async def attempts(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Page[AttemptInfo]: ...
    async def requests(
        self, *, thread_id: str | None = None, pending: bool = True, page: PageRequest = FIRST_PAGE
    ) -> Page[HitlRequest]: ...
    async def request(self, request_id: str) -> HitlRequest | None: ...
    async def last_message_id(self, thread_id: str, run_id: str) -> str | None: ...
    async def run_events(self, ref: RunRef, after: str | None = None, *, limit: int = EVENTS_PER_READ) -> list[Event]: ...


class LimitStore(Protocol):
    """The deployment's limits, over all tenants (R16). They hold from the next accept and the next claim on.

    ``clear_limit`` returns whether the limit was set. ``review_limits`` is the leader's: it counts waiting runs, and submits
    runs that wait for a permit although one is free.
    """

    async def limits(self) -> list[Limit]: ...
    async def set_limit(self, limit: Limit) -> None: ...
    async def clear_limit(self, name: LimitName, subject: str | None = None) -> bool: ...
    async def review_limits(self) -> Effects: ...


class Feed(Protocol):
    """The committed changes, in an order in which no entry appears behind a reader (E5). Bound to one tenant.

    ``read``: the entries after the page's cursor; without one, from the oldest entry kept. The feed has no end: ``next`` is
    always set. Raises InvalidCursorError; CursorExpiredError if entries in between were pruned.
    """

    async def read(self, page: PageRequest = FIRST_PAGE) -> Page[FeedEntry]: ...


class UsageStore(Protocol):
    """Usage totals of runs, by the day of their end in UTC.

    ``report``: the tenant's usage from ``since`` to ``until``, both included, by default the last 30 days of the store's clock;
    with ``agent`` that agent's only. Raises InvalidInputError for 0 days, and for more than
    :data:`~runyard.domain.usage_report.MAX_DAYS`. ``count`` is the leader's, over all tenants: it adds about ``limit`` entries
    of the feed to the totals. Entries that are not counted are not pruned.
    """

    async def report(
        self, since: date | None = None, until: date | None = None, *, agent: str | None = None
    ) -> UsageReport: ...
    async def count(self, limit: int = 5000) -> None: ...


class WebhookStore(Protocol):
    """Webhook subscriptions and deliveries (R11, E5).

    Subscriptions and lists are those of one tenant and those of all tenants together. The dispatcher's verbs, from ``take`` on,
    cover every tenant.

    ``add``: subscribe to later commits. ``remove`` and ``redeliver`` return whether the object exists. ``take``: turn
    committed changes into deliveries, and take up to ``limit`` due ones, endpoint by endpoint from after the endpoint
    ``after``. An endpoint gets at most ``each``, less its number in ``busy``. A delivery that is not settled is offered again
    after ``lease`` seconds. ``settle``: store the outcome of a try. A later try of the same delivery ignores it, unless it is
    ``delivered``. ``oldest``: the age in seconds of the oldest delivery that has not arrived. ``key``: the version of the
    secret that signs for a subscription, or for the URLs of the tenant's runs (None). ``rotate``: sign with the next version
    from now on, and for ``overlap`` seconds with the previous one too. The ``rotation_id`` of the last rotation changes
    nothing. ``key`` and ``rotate`` return None if there is no such subscription.
    """

    async def add(self, webhook: Webhook) -> None: ...
    async def webhooks(self) -> list[Webhook]: ...
    async def remove(self, webhook_id: str) -> bool: ...
    async def deliveries(
        self, *, status: DeliveryStatus | None = None, page: PageRequest = FIRST_PAGE
    ) -> Page[WebhookDelivery]: ...
    async def redeliver(self, delivery_id: str) -> bool: ...
    async def key(self, webhook_id: str | None = None) -> SigningKey | None: ...
    async def rotate(
        self, webhook_id: str | None = None, *, overlap: float, rotation_id: str | None = None
    ) -> SigningKey | None: ...
    async def take(
        self, *, busy: Mapping[str, int], after: str = "", limit: int = 64, each: int = 8, lease: float = 30.0
    ) -> list[Posting]: ...
    async def settle(self, posting: Posting, outcome: DeliveryOutcome) -> None: ...
    async def oldest(self) -> float | None: ...


class WebhookSender(Protocol):
    """Sends one HTTP request to a URL from a caller, to public or allowed addresses only. It follows no redirect.

    A receiver's failure raises nothing: the reply reports it. ``timeout``: seconds for the whole request.
    """

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, *, timeout: float) -> WebhookReply: ...


class WorkerStore(Protocol):
    """Workers, their heartbeats, the leader's lease, and the reads of the reconciler. Over all tenants.

    ``running``: the attempts that a worker holds. ``cancelling``: the worker's runs with a pending cancel; reading them
    delivers a cancel whose hint was lost to an agent that writes nothing. ``prune``: delete data whose retention has passed,
    at most ``limit`` of each kind; return True if there may be more.
    """

    async def register(self, worker: WorkerInfo) -> None: ...
    async def beat(self, worker_id: str) -> HeartbeatReply: ...
    async def leave(self, worker_id: str) -> None: ...
    async def drain(self, worker_id: str) -> None: ...
    async def workers(self) -> list[WorkerInfo]: ...
    async def lead(self, worker_id: str, ttl: float) -> bool: ...
    async def mark_dead(self, worker_id: str, heartbeat_at: datetime) -> bool: ...
    async def running(self, worker_id: str) -> list[AttemptToken]: ...
    async def cancelling(self, worker_id: str) -> list[RunRef]: ...
    async def heads(
        self, *, unchanged: timedelta, after: tuple[int, str] | None = None, limit: int = 1000
    ) -> list[LaneHead]: ...
    async def prune(self, retention: Retention, limit: int = 5000) -> bool: ...


class QueueStore(Protocol):
    """The waiting runs of the queues, and pauses: runs of a paused queue are accepted, and no worker claims them.

    Over all tenants. ``pause`` returns the time of the pause, ``resume`` whether the queue was paused.
    """

    async def queues(self) -> list[QueueInfo]: ...
    async def pause(self, queue: str) -> datetime: ...
    async def resume(self, queue: str) -> bool: ...


class KeyStore(Protocol):
    """API keys (A1). Bound to one tenant, but ``find_key`` covers every tenant.

    ``create_key``: ``lifetime`` in seconds. ``revoke_key`` returns whether it changed the key. ``find_key``: the key and the
    digest of its secret, or None if it does not exist, has expired or was revoked.
    """

    async def create_key(self, key: ApiKey, digest: bytes, *, lifetime: float | None = None) -> ApiKey: ...
    async def keys(self) -> list[ApiKey]: ...
    async def revoke_key(self, key_id: str) -> bool: ...
    async def find_key(self, key_id: str) -> tuple[ApiKey, bytes] | None: ...


class Backend(Protocol):
    """Everything that a client or a worker needs, connected. Stores are bound to ``tenant``.

    Every backend has every attribute. A part that a backend lacks raises a typed error when it is called:
    CapabilityMissingError over HTTP, BackendUnavailableError without Redis. Where the loss of Redis costs latency only, the
    call does nothing.

    ``for_tenant``: return the same connections, bound to another tenant. ``check``: raise BackendUnavailableError, or
    SchemaError if this code cannot run on the store's schema. ``notifications``: yields effects to apply: the effects of
    calls that return none, and empty ones at first and whenever a host may have accepted a run that waits to be admitted.
    """

    tenant: str
    checkpointer: Checkpointer
    threads: ThreadStore
    runs: RunStore
    feed: Feed
    usage: UsageStore
    limits: LimitStore
    webhooks: WebhookStore
    workers: WorkerStore
    queues: QueueStore
    keys: KeyStore
    scheduler: Scheduler
    events: EventLog
    streams: Streams

    def for_tenant(self, tenant: str) -> Backend: ...
    async def check(self) -> None: ...
    def notifications(self) -> AsyncGenerator[Effects]: ...
    async def close(self) -> None: ...
