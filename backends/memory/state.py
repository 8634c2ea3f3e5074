"""What the memory store holds. A fork or a branch copies what it sees, so nothing needs to be remembered about cuts."""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from runner.bounds import MAX_EXTRA, check_value
from runner.errors import InvalidInputError, RunNotFoundError, ThreadNotFoundError
from runner.exchange import (
    PAGE_BYTES,
    AcceptRequest,
    Effects,
    ForkRequest,
    Job,
    OutsideEvent,
    RunRef,
    Step,
    WorkerInfo,
    queued_event,
)
from runner.keys import ApiKey
from runner.legible import brief
from runner.models import (
    AttemptInfo,
    ErrorInfo,
    Event,
    FeedType,
    HitlRequest,
    JsonObject,
    LimitName,
    Message,
    Run,
    Thread,
    Usage,
    check_id,
    check_message,
    check_usage,
)
from runner.states import LIVE, RunStatus

if TYPE_CHECKING:
    from runner.usage import UsageDay
    from runner.webhooks.models import SigningKey

    from .webhooks import DeliveryState, Subscription

Clock = Callable[[], datetime]
Slot = tuple[LimitName, str]
"""What a limit on running runs gives out: the limit, and the agent or tenant."""


def wall_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Entry:
    """One stored message. In a copied prefix, ``completion`` and ``cutoff`` are what its run had when the copy was made.

    ``cutoff`` is what a cut at this message may show: no run with a greater completion number.
    """

    owner: int
    branch: int
    message: Message
    event_id: str | None = None
    completion: int | None = None
    cutoff: int | None = None
    extra: JsonObject | None = None
    status: RunStatus | None = None

    @property
    def seq(self) -> int:
        assert self.message.seq is not None
        return self.message.seq

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def run_id(self) -> str | None:
        return self.message.run_id

    @property
    def place(self) -> tuple[int, int]:
        """Names the message over all threads."""
        return self.owner, self.seq


@dataclass(frozen=True)
class Ancestral:
    """A run that a fork inherited: completed (``completion`` set), or the run inside which the cut was made."""

    run_id: str
    completion: int | None = None
    snapshot: tuple[Entry, ...] = ()
    extra: JsonObject = field(default_factory=dict)
    whole: bool = True


@dataclass
class Branch:
    """A stretch of messages: a copy of everything visible where it was opened, then its own."""

    number: int
    lane: str
    prefix: tuple[Entry, ...] = ()
    ancestral: dict[str, Ancestral] = field(default_factory=dict)
    own: list[Entry] = field(default_factory=list)


@dataclass
class RunState:
    """A run and what only the store knows of it. ``context``: what its first claim saw. ``words``: those of its abort.
    ``job``: what started it; ``until_fewer``: a job waits until fewer of the runs that it started are live. ``counted``: its
    usage when it ended last."""

    run: Run
    accept_no: int
    queued_fence: int
    request: AcceptRequest | None = None
    fork: ForkRequest | None = None
    lane_seq: int | None = None
    not_before: datetime | None = None
    changed_at: datetime | None = None
    branch: Branch | None = None
    context: tuple[Entry, ...] = ()
    cutoff: int = 0
    extra: JsonObject = field(default_factory=dict)
    keep: bool = False
    words: str | None = None
    progress: bool = False
    isolated: bool = False
    snapshot: tuple[Entry, ...] = ()
    thread_extra: JsonObject = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    job: RunRef | None = None
    until_fewer: int | None = None
    last_answer: tuple[int, Any] | None = None
    slot: Slot | None = None
    attempts: list[AttemptInfo] = field(default_factory=list)
    counted: Usage | None = None

    @property
    def id(self) -> str:
        return self.run.run_id

    @property
    def external(self) -> bool:
        return self.run.kind == "external"

    @property
    def live(self) -> bool:
        return self.run.status in LIVE

    @property
    def due_at(self) -> datetime:
        return self.run.run_at or self.run.accepted_at

    def own(self) -> list[Entry]:
        """The run's messages, in order."""
        return [entry for entry in self.branch.own if entry.run_id == self.id] if self.branch else []

    def attempt_ends(self, now: datetime, outcome: str, error: ErrorInfo | None = None) -> None:
        """Note how the attempt under way ended."""
        update = {"ended_at": now, "outcome": outcome, "error": error}
        self.attempts[-1:] = [attempt.model_copy(update=update) for attempt in self.attempts[-1:]]


@dataclass
class RequestState:
    """A HITL request. ``closed``: its run ended without an answer."""

    request: HitlRequest
    thread_key: int
    event_id: str | None = None
    closed: bool = False
    schema_checked: bool = True

    @property
    def saved(self) -> bool:
        """By a checkpointer: what a worker's run asked has an event."""
        return self.event_id is None

    @property
    def pending(self) -> bool:
        return not self.closed and self.request.answered_at is None


@dataclass
class ThreadState:
    """One thread: its branches (the first is the root), runs in order of acceptance, counters."""

    key: int
    tenant: str
    thread: Thread
    branches: list[Branch]
    head: Branch
    next_seq: int = 1
    next_completion: int = 1
    runs: dict[str, RunState] = field(default_factory=dict)
    base_extra: JsonObject = field(default_factory=dict)
    fork_hash: str | None = None
    deleted: bool = False
    erased: bool = False

    @property
    def id(self) -> str:
        return self.thread.thread_id

    @property
    def root(self) -> Branch:
        return self.branches[0]

    def lane(self, name: str) -> list[RunState]:
        """The lane's admitted, unfinished runs in order."""
        runs = [r for r in self.runs.values() if r.run.lane == name and r.lane_seq is not None and r.live and not r.external]
        return sorted(runs, key=lambda r: r.lane_seq or 0)

    def extra_at(self, completion: int) -> JsonObject:
        """The extra as it was saved with the last run not after ``completion``."""
        past = [r for r in self.runs.values() if r.run.completion_seq is not None and r.run.completion_seq <= completion]
        return max(past, key=lambda r: r.run.completion_seq or 0).thread_extra if past else self.base_extra


@dataclass(frozen=True)
class Note:
    """One entry of the feed."""

    number: int
    tenant: str
    type: FeedType
    thread_id: str
    run_id: str | None
    at: datetime


class Database:
    """All tenants' threads. ``now``: the clock, which a test may control. ``page_bytes``: of one page of a list at most."""

    def __init__(self, now: Clock = wall_clock, page_bytes: int = PAGE_BYTES) -> None:
        self.now, self.page_bytes = now, page_bytes
        self.threads: dict[int, ThreadState] = {}
        self.requests: dict[tuple[str, str], RequestState] = {}
        self.workers: dict[str, WorkerInfo] = {}
        self.asks: dict[str, bool] = {}
        self.agents: dict[str, str] = {}
        self.paused: dict[str, datetime] = {}
        self.lease: tuple[str, datetime] | None = None
        self.limits: dict[tuple[LimitName, str | None], int] = {}
        self.turns: dict[tuple[Slot, str], int] = {}
        self.keys: dict[str, tuple[ApiKey, bytes]] = {}
        self.notes: list[Note] = []
        self.pruned: dict[str, int] = {}
        self.usage: dict[tuple[str, str | None, date], UsageDay] = {}
        self.webhooks: dict[str, Subscription] = {}
        self.webhook_keys: dict[str, SigningKey] = {}
        self.rotations: dict[str, str | None] = {}
        self.deliveries: list[DeliveryState] = []
        self.fence = 0
        self.numbers = 0
        self._listeners: list[asyncio.Queue[Effects]] = []

    @contextmanager
    def listen(self) -> Iterator[asyncio.Queue[Effects]]:
        """Hear what :meth:`tell` is told."""
        queue: asyncio.Queue[Effects] = asyncio.Queue()
        self._listeners.append(queue)
        try:
            yield queue
        finally:
            self._listeners.remove(queue)

    def tell(self, effects: Effects) -> None:
        """Tell the workers what a verb that returns nothing asks of the scheduler."""
        if effects:
            for queue in self._listeners:
                queue.put_nowait(effects)

    def note(self, thread: ThreadState, type_: FeedType, run_id: str | None = None) -> Note:
        """Add to the feed."""
        self.notes.append(Note(self.number(), thread.tenant, type_, thread.id, run_id, self.now()))
        return self.notes[-1]

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def next_fence(self) -> int:
        self.fence += 1
        return self.fence

    def find(self, tenant: str, thread_id: str) -> ThreadState | None:
        for thread in self.threads.values():
            if not thread.deleted and thread.tenant == tenant and thread.id == thread_id:
                return thread
        return None

    def get(self, tenant: str, thread_id: str) -> ThreadState:
        if thread := self.find(tenant, thread_id):
            return thread
        raise ThreadNotFoundError(f"there is no thread {thread_id!r}", thread_id=thread_id)

    def of(self, tenant: str) -> Iterator[ThreadState]:
        return (t for t in self.threads.values() if t.tenant == tenant and not t.deleted)

    def by_key(self, key: int) -> ThreadState | None:
        thread = self.threads.get(key)
        return thread if thread and not thread.deleted else None

    def run(self, ref: RunRef) -> tuple[ThreadState, RunState]:
        thread = self.by_key(ref.thread_key)
        if thread is None or ref.run_id not in thread.runs:
            raise RunNotFoundError(f"there is no run {ref.run_id!r}", run_id=ref.run_id)
        return thread, thread.runs[ref.run_id]

    def create(self, tenant: str, thread_id: str, **fields: Any) -> ThreadState:
        """A new thread with an empty root branch. The id was checked to be free."""
        now = self.now()
        root = Branch(self.number(), "")
        thread = Thread(thread_id=thread_id, created_at=now, updated_at=now, usage=Usage(), **fields)
        state = ThreadState(self.number(), tenant, thread, [root], root)
        self.threads[state.key] = state
        return state

    def ensure(self, tenant: str, thread_id: str) -> ThreadState:
        return self.find(tenant, thread_id) or self.create(tenant, check_id(thread_id, "thread_id"))

    def store(
        self,
        thread: ThreadState,
        branch: Branch,
        message: Message,
        *,
        parent: str | None,
        run_id: str | None,
        event: str | None = None,
    ) -> Entry:
        """Append one message to ``branch``."""
        update = {"run_id": run_id, "parent_id": parent, "seq": thread.next_seq, "created_at": self.now()}
        stored = message.model_copy(update=update, deep=True)
        thread.next_seq += 1
        thread.thread.updated_at = self.now()
        entry = Entry(thread.key, branch.number, stored, event)
        branch.own.append(entry)
        return entry

    def requests_of(self, thread: ThreadState) -> list[RequestState]:
        return [r for r in self.requests.values() if r.thread_key == thread.key]


def job(thread: ThreadState, run: RunState, now: datetime) -> Job:
    delay = max(0.0, (run.not_before - now).total_seconds()) if run.not_before else 0.0
    r = run.run
    ready_at, waiting = now.timestamp() + delay, queued(thread, run)
    return Job(thread.key, r.run_id, r.lane or "", r.kind, r.queue, r.priority, thread.tenant, delay, ready_at, waiting)


def queued(thread: ThreadState, run: RunState) -> Event | None:
    """The event that says that the run is queued, until an attempt begins."""
    waits = (run.run.fence or 0) < run.queued_fence
    return queued_event(thread.id, run.id, run.queued_fence, run.run.attempt + 1) if waits else None


def outside(thread: ThreadState, run: RunState, event_id: str, data: JsonObject | None = None) -> Effects:
    """The event of a verb that ended the run outside any attempt. If it waited for a worker, it does so no more."""
    kind = f"run.{run.run.status}"
    r = run.run
    said: JsonObject = {"status": str(r.status), **(data or {})}
    over = [Job(thread.key, run.id, r.lane, r.kind, r.queue, tenant=thread.tenant, over=True)] if r.lane is not None else []
    event = OutsideEvent(RunRef(thread.key, run.id), thread.id, event_id, kind, said, r.agent, r.queue)
    return Effects(events=[event], withdrawn=over)


def check_messages(messages: Iterable[Message]) -> list[Message]:
    """The messages with ids in their canonical form; InvalidInputError for what is no message, no id, or no usage."""
    checked = []
    for message in messages:
        check_message(message)
        if message.usage is not None:
            check_usage(message.usage)
        checked.append(message.model_copy(update={"id": check_uuid(message.id, "id")}))
    return checked


def check_uuid(value: str, name: str) -> str:
    """``value`` as a canonical UUID, else InvalidInputError."""
    try:
        return str(uuid.UUID(value))
    except (ValueError, AttributeError, TypeError):
        raise InvalidInputError(f"{name} must be a UUID, got {brief(value)}", field=name) from None


def check_json(value: Any, name: str) -> Any:
    """A copy of ``value``; InvalidInputError if it holds more than may be stored, or NUL in a string, which jsonb cannot."""
    check_value(value, name)
    return _copied(value, name)


def merged(extra: JsonObject, more: JsonObject) -> JsonObject:
    """``extra`` with ``more`` in it. Raises InvalidInputError if that is too large for a thread."""
    both = {**extra, **more}
    size = len(json.dumps(both, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass"))
    if size > MAX_EXTRA:
        words = f"extra would have {size} bytes, and a thread's extra may have {MAX_EXTRA}; keep large data elsewhere"
        raise InvalidInputError(f"{words} and store a reference", field="extra", most=MAX_EXTRA, got=size)
    return both


def copied(value: Any) -> Any:
    """A copy of ``value``, which is stored."""
    return _copied(value, "value")


def _copied(value: Any, name: str) -> Any:
    if isinstance(value, str) and "\0" in value:
        raise InvalidInputError(f"{name} holds a NUL character", field=name)
    if isinstance(value, dict):
        return {_copied(k, name): _copied(v, name) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(v, name) for v in value]
    return copy.deepcopy(value)


def check_error(error: ErrorInfo) -> ErrorInfo:
    """``error``; InvalidInputError if it says what jsonb cannot hold."""
    said = check_json(error.__dict__, "error")
    try:
        json.dumps(said, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as refused:
        raise InvalidInputError(f"error cannot be stored as JSON: {refused}", field="error") from None
    return error


def erased(entry: Entry) -> Entry:
    """The tombstone that stays where an erased message was visible."""
    blank = Message(id=entry.id, role=entry.message.role, content="[erased]")
    keep = {name: getattr(entry.message, name) for name in ("run_id", "parent_id", "seq", "created_at")}
    return replace(entry, message=blank.model_copy(update=keep))


def copy_run(run: Run) -> Run:
    return run.model_copy(deep=True)


def is_ended(status: RunStatus) -> bool:
    return status not in LIVE
