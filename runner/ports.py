"""The protocols between the use cases and the servers. ``backends`` implements them; nothing here knows a driver."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Protocol

from .exchange import (
    EVENTS,
    Aborted,
    Accepted,
    AcceptRequest,
    Admitted,
    Attempt,
    Changed,
    Claim,
    Created,
    Cut,
    Delivery,
    Effects,
    Ended,
    Forked,
    ForkRequest,
    Head,
    Job,
    Ledger,
    Page,
    QueueInfo,
    Responded,
    Retention,
    RunRef,
    Standing,
    Step,
    ThreadRequest,
    WorkerInfo,
    Write,
)
from .keys import ApiKey
from .models import (
    AttemptInfo,
    Branch,
    CheckpointData,
    ErrorInfo,
    Event,
    FeedEntry,
    HitlRequest,
    JsonObject,
    Limit,
    LimitName,
    Message,
    Run,
    Thread,
)
from .states import RunStatus
from .unset import UNSET, Unset
from .usage import UsageReport
from .webhooks.models import DeliveryStatus, Outcome, Posting, Reply, SigningKey, Webhook, WebhookDelivery


class Checkpointer(Protocol):
    """The documented checkpointer: messages, extra, one pending request, external runs, forks (semantics: R13 to R15)."""

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
    """What a checkpointer may offer beyond the documented methods (semantics: R14): the requests of external runs, several
    beside each other, and answers that are applied once whoever gives them. Without it an Agent keeps them in the thread's
    extra.

    ``save_requests``: one with a known id stays as it is. ``load_requests``: those of ``run_id``, or of the thread, that wait
    or were answered, the oldest first. ``answer_request``: as :meth:`RunStore.respond`; ``last`` of what it
    returns decides which of several responders goes on with the run. ``abort_pending``: as :meth:`RunStore.abort_pending`.
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
    async def threads(
        self,
        *,
        parent_thread_id: str | None = None,
        agent: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Thread]: ...
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
    async def messages(
        self,
        thread_id: str,
        leaf_id: str | None = None,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> Page[Message]: ...
    async def cut_messages(self, thread_id: str, cut: Cut) -> tuple[list[Message], JsonObject]: ...
    async def branches(self, thread_id: str, *, limit: int = 100, cursor: str | None = None) -> Page[Branch]: ...
    async def store_message(
        self, thread_id: str, message: Message, parent_id: str | None = None, *, expected_leaf: str | None = None
    ) -> Message: ...
    async def fork(self, request: ForkRequest) -> Forked: ...
    async def delete_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects: ...
    async def erase_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects: ...


class RunStore(Protocol):
    """The verbs of a run's life (states.py). Bound to one tenant; verbs of an attempt take the run's own.

    ``delete_run``: the content of a run that ended and counts nowhere goes, but for what forks and branches show of it; the
    run stays, with ``deleted_at``, and no list has it; a repetition is the same again. Raises RunInUseError.
    ``isolate``: an attempt that is to run alone begins to. ``bury``: the process that executed it alone died. ``release`` with
    ``until_fewer``: the job goes on when fewer than so many of the runs that it started are unfinished. ``run_events``: those
    after the event ``after`` that the store proves, as many as a reader may hold; none if there are no more.
    """

    async def accept(self, request: AcceptRequest, *, connection: Any = None) -> Accepted: ...
    async def admit(self, limit: int = 100) -> Admitted: ...
    async def claim(self, worker_id: str, refs: Sequence[RunRef]) -> list[Claim]: ...
    async def context(self, attempt: Attempt) -> list[Message]: ...
    async def ledger(self, attempt: Attempt) -> Ledger: ...
    async def append(self, attempt: Attempt, messages: Sequence[Message], *, first_event: int = 1) -> list[Message]: ...
    async def start_step(self, attempt: Attempt, key: str) -> Step | None: ...
    async def finish_step(self, attempt: Attempt, key: str, result: Any) -> None: ...
    async def complete(self, writes: Sequence[Write]) -> list[Ended | Exception]: ...
    async def suspend(self, write: Write, requests: Sequence[HitlRequest]) -> Ended: ...
    async def fail(self, write: Write, error: ErrorInfo) -> Ended: ...
    async def release(
        self,
        attempt: Attempt,
        *,
        delay: float = 0.0,
        error: ErrorInfo | None = None,
        first_event: int | None = 1,
        until_fewer: int | None = None,
    ) -> Ended: ...
    async def isolate(self, attempt: Attempt) -> None: ...
    async def bury(self, attempt: Attempt, how: str) -> Ended: ...
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
    async def runs(
        self,
        *,
        thread_id: str | None = None,
        status: RunStatus | None = None,
        agent: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Run]: ...
    async def explain(self, thread_id: str, run_id: str) -> str: ...
    async def attempts(
        self, thread_id: str, run_id: str, *, limit: int = 100, cursor: str | None = None
    ) -> Page[AttemptInfo]: ...
    async def requests(
        self, *, thread_id: str | None = None, pending: bool = True, limit: int = 100, cursor: str | None = None
    ) -> Page[HitlRequest]: ...
    async def request(self, request_id: str) -> HitlRequest | None: ...
    async def last_message_id(self, thread_id: str, run_id: str) -> str | None: ...
    async def run_events(self, ref: RunRef, after: str | None = None, *, limit: int = EVENTS) -> list[Event]: ...


class LimitStore(Protocol):
    """The deployment's limits, over all tenants (semantics: R16). They hold from the next accept and the next claim on.

    ``clear_limit`` returns whether it was set. ``review_limits`` is the leader's: count what waits, and offer the runs that
    wait for a slot which is free although nobody freed it just now.
    """

    async def limits(self) -> list[Limit]: ...
    async def set_limit(self, limit: Limit) -> None: ...
    async def clear_limit(self, name: LimitName, subject: str | None = None) -> bool: ...
    async def review_limits(self) -> Effects: ...


class Feed(Protocol):
    """What was committed, in an order in which nothing ever appears behind a reader (semantics: E5). Bound to one tenant.

    ``read``: the entries after ``cursor``, from the oldest one kept without it. The feed has no end: ``next`` is always set.
    Raises InvalidCursorError; CursorExpiredError if entries between were pruned.
    """

    async def read(self, cursor: str | None = None, *, limit: int = 100) -> Page[FeedEntry]: ...


class UsageStore(Protocol):
    """What runs used, by the day of their end in UTC.

    ``report``: of the tenant, from ``since`` to ``until``, both included; the last 30 days by the store's clock unless they are
    given; of one agent's runs if it is named. Raises InvalidInputError for no days, and for more than
    :data:`~runner.usage.MOST_DAYS`. ``count`` is the leader's, over all tenants: bring the totals on by about ``limit`` entries
    of the feed. Nothing is pruned that it has not come to.
    """

    async def report(
        self, since: date | None = None, until: date | None = None, *, agent: str | None = None
    ) -> UsageReport: ...
    async def count(self, limit: int = 5000) -> None: ...


class WebhookStore(Protocol):
    """Who is told of what is committed, and what is on its way (semantics: R11, E5). Subscriptions and lists are of one tenant
    and of all tenants together; the dispatcher's verbs, from ``take`` on, reach everything.

    ``add``: what is committed from then on. ``remove`` and ``redeliver`` return whether there was one. ``take``: turn what was
    committed into deliveries, and take up to ``limit`` that are due, endpoint by endpoint behind ``after``, each ``each`` at
    most with those ``busy`` there; what is not settled comes again after ``lease`` seconds. ``settle``: what came of a try, of
    which a later one takes no notice unless it arrived. ``oldest``: seconds for which the oldest one has not arrived.
    ``key``: which version of the secret signs for a subscription, or for the URLs of the tenant's runs (None). ``rotate``: the
    next version signs from then on, and for ``overlap`` seconds the one before as well; under the ``rotation_id`` of the last
    rotation nothing changes. Both return None if there is no such subscription.
    """

    async def add(self, webhook: Webhook) -> None: ...
    async def webhooks(self) -> list[Webhook]: ...
    async def remove(self, webhook_id: str) -> bool: ...
    async def deliveries(
        self, *, status: DeliveryStatus | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[WebhookDelivery]: ...
    async def redeliver(self, delivery_id: str) -> bool: ...
    async def key(self, webhook_id: str | None = None) -> SigningKey | None: ...
    async def rotate(
        self, webhook_id: str | None = None, *, overlap: float, rotation_id: str | None = None
    ) -> SigningKey | None: ...
    async def take(
        self, *, busy: Mapping[str, int], after: str = "", limit: int = 64, each: int = 8, lease: float = 30.0
    ) -> list[Posting]: ...
    async def settle(self, posting: Posting, outcome: Outcome) -> None: ...
    async def oldest(self) -> float | None: ...


class Sender(Protocol):
    """Sends one request to a URL that somebody gave: to public addresses only, or where it was allowed to. Follows nothing.

    Never raises for what a receiver does: the reply says it. ``timeout``: seconds for all of it.
    """

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, *, timeout: float) -> Reply: ...


class WorkerStore(Protocol):
    """Workers, their heartbeats, the leader's lease, and what the reconciler reads. Over all tenants.

    ``running``: the attempts that a worker holds; ``cancelling``: those of its runs that a cancel waits for, so that a cancel
    whose hint was lost still reaches an agent that writes nothing. ``prune``: delete what was kept for its time, ``limit`` of
    each kind at most; True if there may be more.
    """

    async def register(self, worker: WorkerInfo) -> None: ...
    async def beat(self, worker_id: str) -> Standing: ...
    async def leave(self, worker_id: str) -> None: ...
    async def drain(self, worker_id: str) -> None: ...
    async def workers(self) -> list[WorkerInfo]: ...
    async def lead(self, worker_id: str, ttl: float) -> bool: ...
    async def mark_dead(self, worker_id: str, heartbeat_at: datetime) -> bool: ...
    async def running(self, worker_id: str) -> list[Attempt]: ...
    async def cancelling(self, worker_id: str) -> list[RunRef]: ...
    async def heads(self, *, unchanged: timedelta, after: tuple[int, str] | None = None, limit: int = 1000) -> list[Head]: ...
    async def prune(self, retention: Retention, limit: int = 5000) -> bool: ...


class QueueStore(Protocol):
    """What waits in the queues, and which are paused: their runs are accepted and no worker claims them. Over all tenants.

    ``pause`` returns since when the queue is paused, ``resume`` whether it was.
    """

    async def queues(self) -> list[QueueInfo]: ...
    async def pause(self, queue: str) -> datetime: ...
    async def resume(self, queue: str) -> bool: ...


class KeyStore(Protocol):
    """API keys (semantics: A1). Bound to one tenant, but ``find_key`` sees those of every tenant.

    ``create_key``: ``lifetime`` is in seconds. ``revoke_key`` returns whether that changed anything. ``find_key``: the key and
    the digest of its secret, None once it expired or was revoked.
    """

    async def create_key(self, key: ApiKey, digest: bytes, *, lifetime: float | None = None) -> ApiKey: ...
    async def keys(self) -> list[ApiKey]: ...
    async def revoke_key(self, key_id: str) -> bool: ...
    async def find_key(self, key_id: str) -> tuple[ApiKey, bytes] | None: ...


class Scheduler(Protocol):
    """What may start now, and who holds which lane. Losing all of it costs latency, never a run.

    A job that is submitted, or with a release, has its ``queued`` event written before any worker can take it.
    ``claim`` waits up to ``wait`` seconds until there may be something to take. Cancelling it may lose what it takes for a
    while; ``rouse`` ends the wait of a worker's claim, or of its next one, without a loss.
    """

    async def submit(self, jobs: Sequence[Job]) -> None: ...
    async def claim(self, worker_id: str, queues: Sequence[str], limit: int, wait: float = 0.0) -> list[Delivery]: ...
    async def rouse(self, worker_id: str) -> None: ...
    async def renew(self, worker_id: str, deliveries: Sequence[Delivery]) -> list[Delivery]: ...
    async def release(self, worker_id: str, deliveries: Sequence[Delivery], submit: Sequence[Job] = ()) -> None: ...
    async def unknown(self, jobs: Sequence[Job]) -> list[Job]: ...
    async def ping(self) -> None: ...
    async def hint_cancel(self, refs: Sequence[RunRef]) -> None: ...
    def cancel_hints(self) -> AsyncIterator[RunRef]: ...


class EventLog(Protocol):
    """One bounded stream of events per run. ``follow`` yields None each time ``silence`` seconds passed without an event, if a
    number of seconds is given. ``read`` with ``page`` returns as many events as a reader may hold, none if there are no more.
    ``begins`` yields at first, and whenever an attempt of any run of the thread begins
    or a verb outside an attempt tells of one: the events that are numbered 1."""

    async def append(self, thread_key: int, events: Sequence[Event]) -> None: ...
    async def read(self, ref: RunRef, after: str | None = None, *, page: bool = False) -> list[Event]: ...
    async def holds(self, ref: RunRef, event_id: str) -> bool: ...
    def follow(
        self, ref: RunRef, after: str | None = None, *, silence: float | None = None
    ) -> AsyncGenerator[Event | None]: ...
    def begins(self, thread_key: int) -> AsyncIterator[bool]: ...


class Remote(Protocol):
    """What a backend has as ``remote`` if its other end follows runs by itself, as the HTTP API does: no event log is read here
    then. Other backends lack the attribute.

    ``follow_run``: as :func:`runner.streams.follow_run`. ``follow_thread``: as :func:`runner.threadstream.follow_thread`; each
    event after its cursor. ``outcome``: a run that stopped, its messages in order, the requests that it waits for, and which of
    the two are not whole: then these are its last messages and its oldest requests.
    """

    def follow_run(self, thread_id: str, run_id: str, last_event_id: str | None = None) -> AsyncGenerator[Event]: ...
    def follow_thread(self, thread_id: str, after: str | None = None) -> AsyncGenerator[tuple[str, Event]]: ...
    async def outcome(self, run: Run) -> tuple[Run, list[Message], list[HitlRequest], list[str]]: ...


class Backend(Protocol):
    """Everything that a client or a worker needs, connected. ``store`` parts are bound to ``tenant``.

    ``for_tenant``: the same connections, bound to another one. ``check``: ask the store whether this code can run on it; raises
    BackendUnavailableError, SchemaError. ``notifications``: yields at first and whenever a host may have
    accepted a run that waits to be admitted; and with what calls that return nothing ask of the scheduler.
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

    def for_tenant(self, tenant: str) -> Backend: ...
    async def check(self) -> None: ...
    def notifications(self) -> AsyncGenerator[Effects]: ...
    async def close(self) -> None: ...


def remote_of(backend: Backend) -> Remote | None:
    """The far end of ``backend`` if it follows runs by itself."""
    return getattr(backend, "remote", None)
