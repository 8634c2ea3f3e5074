"""The state of the memory store. A fork or a branch has copies of the messages that it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from runyard.domain.api_keys import ApiKey
from runyard.domain.states import LIVE, RunStatus
from runyard.errors import RunNotFoundError, ThreadNotFoundError
from runyard.models import (
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
)
from runyard.ports.commands import AcceptRequest, ForkRequest
from runyard.ports.refs import RunRef
from runyard.ports.results import PAGE_BYTES, Step
from runyard.ports.scheduling import Effects, Job, OutsideEvent, queued_event
from runyard.ports.workers import WorkerInfo

if TYPE_CHECKING:
    from runyard.domain.usage_report import UsageDay
    from runyard.domain.webhooks import SigningKey

    from .waits import SignalState, WaitState
    from .webhooks import DeliveryState, Subscription

Clock = Callable[[], datetime]
Permit = tuple[LimitName, str]
"""A permit of a limit on running runs: the name of the limit, and the agent or the tenant."""


def wall_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Entry:
    """One stored message. ``owner``: the key of the thread that stored the message. ``branch``: its branch on this thread.

    The other fields are set when an entry is copied into a prefix. An entry that is no copy lacks them. ``completion``: the
    completion number of the run. ``cutoff``: the highest completion number that a cut at the message shows. ``extra``: the
    thread's extra at the time of the copy."""

    owner: int
    branch: int
    message: Message
    event_id: str | None = None
    completion: int | None = None
    cutoff: int | None = None
    extra: JsonObject | None = None

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
        """The thread and the number of the message, which identify it over all threads."""
        return self.owner, self.seq


@dataclass(frozen=True)
class Ancestral:
    """A run that a fork inherited: a completed run, or the run inside which the cut was made.

    ``owner``: the key of the run's thread. ``completion``: the completion number, or None for a run that is not completed.
    ``snapshot``: the messages that were visible after the run and that the fork shows. ``extra``: the thread's extra after the
    run. ``whole``: True if the fork shows all messages of the run."""

    run_id: str
    owner: int
    completion: int | None = None
    snapshot: tuple[Entry, ...] = ()
    extra: JsonObject = field(default_factory=dict)
    whole: bool = True


@dataclass
class Branch:
    """A branch of messages. ``prefix``: copies of the messages that were visible at the branch's first parent. ``own``: the
    messages that were stored on the branch. ``ancestral``: the inherited runs, by id."""

    number: int
    lane: str
    prefix: tuple[Entry, ...] = ()
    ancestral: dict[str, Ancestral] = field(default_factory=dict)
    own: list[Entry] = field(default_factory=list)


@dataclass
class RunState:
    """A run. ``context``: the messages that the first claim saw. ``keep``: the cancel keeps the run's messages. ``words``: the
    text of the abort. ``progress``: the run made progress since its claim. ``isolated``: its attempt has a separate process.
    ``chained``: the end of the lane's previous run claimed the attempt. ``job``: the fork job or parent that started the run.
    ``until_fewer``: a fork job waits until fewer than this number of its started runs are live. ``permit``: the permit for
    which the run waits. ``counted``: the usage at the run's previous end, or None. ``step_…``: facts about steps, by key."""

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
    chained: bool = False
    snapshot: tuple[Entry, ...] = ()
    thread_extra: JsonObject = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    step_times: dict[str, tuple[datetime | None, datetime | None]] = field(default_factory=dict)
    step_inputs: dict[str, str | None] = field(default_factory=dict)
    step_usages: dict[str, Usage] = field(default_factory=dict)
    job: RunRef | None = None
    until_fewer: int | None = None
    permit: Permit | None = None
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
        """Return the run's messages, in order."""
        return [entry for entry in self.branch.own if entry.run_id == self.id] if self.branch else []

    def end_records(self, now: datetime, outcome: str, error: ErrorInfo | None = None) -> None:
        """Record the outcome of the current attempt."""
        update = {"ended_at": now, "outcome": outcome, "error": error}
        self.attempts[-1:] = [attempt.model_copy(update=update) for attempt in self.attempts[-1:]]


@dataclass
class RequestState:
    """A HITL request. ``event_id``: the id of the request's event, or None if a checkpointer stored the request. ``closed``:
    True if the run ended before an answer. ``received_by``: the fence of the first attempt that had the answer."""

    request: HitlRequest
    thread_key: int
    event_id: str | None = None
    closed: bool = False
    received_by: int | None = None

    @property
    def saved(self) -> bool:
        """True if a checkpointer stored the request. Such a request has no event."""
        return self.event_id is None

    @property
    def pending(self) -> bool:
        return not self.closed and self.request.answered_at is None


@dataclass
class ThreadState:
    """One thread. ``branches``: the first branch is the root. ``runs``: by id, in the order of acceptance. ``next_seq``,
    ``next_completion``: the next message number and the next completion number. ``labels``: the labelled branches."""

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
    labels: dict[str, Branch] = field(default_factory=dict)
    deleted: bool = False
    erased: bool = False

    @property
    def id(self) -> str:
        return self.thread.thread_id

    @property
    def root(self) -> Branch:
        return self.branches[0]

    def lane(self, name: str) -> list[RunState]:
        """Return the admitted runs of the lane that have not ended, in the order of admission."""
        runs = [r for r in self.runs.values() if r.run.lane == name and r.lane_seq is not None and r.live and not r.external]
        return sorted(runs, key=lambda r: r.lane_seq or 0)

    def extra_at(self, completion: int) -> JsonObject:
        """Return the thread's extra after the last run whose completion number is at most ``completion``."""
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
    thread_key: int


class Database:
    """The state of all tenants. ``now``: the clock, which a test may control. ``page_bytes``: maximum bytes of a page."""

    def __init__(self, now: Clock = wall_clock, page_bytes: int = PAGE_BYTES) -> None:
        self.now, self.page_bytes = now, page_bytes
        self.threads: dict[int, ThreadState] = {}
        self.requests: dict[tuple[str, str], RequestState] = {}
        self.waits: list[WaitState] = []
        self.signals: dict[tuple[int, str], SignalState] = {}
        self.workers: dict[str, WorkerInfo] = {}
        self.asks: dict[str, bool] = {}
        self.agents: dict[str, str] = {}
        self.default_agents: dict[str, str] = {}
        self.paused: dict[str, datetime] = {}
        self.lease: tuple[str, datetime] | None = None
        self.importing: set[str] = set()
        self.limits: dict[tuple[LimitName, str | None], int] = {}
        self.turns: dict[tuple[Permit, str], int] = {}
        self.keys: dict[str, tuple[ApiKey, bytes]] = {}
        self.notes: list[Note] = []
        self.pruned: dict[str, int] = {}
        self.usage: dict[tuple[str, str | None, date], UsageDay] = {}
        self.webhooks: dict[str, Subscription] = {}
        self.removed_webhook_version = 0  # the highest version of the secrets of removed webhooks
        self.webhook_keys: dict[str, SigningKey] = {}
        self.rotations: dict[str, str | None] = {}
        self.deliveries: list[DeliveryState] = []
        self.fence = self.numbers = 0
        self._listeners: list[asyncio.Queue[Effects]] = []

    @contextmanager
    def listen(self) -> Iterator[asyncio.Queue[Effects]]:
        """Return a queue. Inside the block, the queue receives the effects that :meth:`tell` publishes."""
        queue: asyncio.Queue[Effects] = asyncio.Queue()
        self._listeners.append(queue)
        try:
            yield queue
        finally:
            self._listeners.remove(queue)

    def tell(self, effects: Effects) -> None:
        """Publish the effects of a call that does not return its effects. A worker applies the effects."""
        if effects:
            for queue in self._listeners:
                queue.put_nowait(effects)

    def note(self, thread: ThreadState, type_: FeedType, run_id: str | None = None) -> Note:
        """Add an entry to the feed."""
        self.notes.append(Note(self.number(), thread.tenant, type_, thread.id, run_id, self.now(), thread.key))
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

    def find_run(self, tenant: str, thread_id: str, run_id: str) -> RunState | None:
        """Return the run, or None if it or its thread does not exist."""
        thread = self.find(tenant, thread_id)
        return thread.runs.get(run_id) if thread else None

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
        """Make a thread with an empty root branch. The caller must have checked that the id is free."""
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
        """Store a copy of ``message`` at the end of ``branch``, and return its entry."""
        update = {"run_id": run_id, "parent_id": parent, "seq": thread.next_seq, "created_at": self.now(), "run_status": None}
        stored = message.model_copy(update=update, deep=True)
        thread.next_seq += 1
        thread.thread.updated_at = self.now()
        entry = Entry(thread.key, branch.number, stored, event)
        branch.own.append(entry)
        return entry

    def status_of(self, entry: Entry) -> RunStatus | None:
        """Return the present status of the message's run, or None for a message without a run."""
        run = self.threads[entry.owner].runs.get(entry.run_id or "")
        return run.run.status if run else None

    def requests_of(self, thread: ThreadState) -> list[RequestState]:
        return [r for r in self.requests.values() if r.thread_key == thread.key]


def job(thread: ThreadState, run: RunState, now: datetime) -> Job:
    """Return the job of a queued run."""
    delay = max(0.0, (run.not_before - now).total_seconds()) if run.not_before else 0.0
    r, at, waiting = run.run, now.timestamp() + delay, queued(thread, run)
    return Job(thread.key, r.run_id, r.lane or "", r.kind, r.queue, r.priority, thread.tenant, delay, at, waiting)


def queued(thread: ThreadState, run: RunState) -> Event | None:
    """Return the event ``run.queued`` of a run. Return None if an attempt has begun since the run was accepted or redriven."""
    waits = (run.run.fence or 0) < run.queued_fence
    return queued_event(thread.id, run.id, run.queued_fence, run.run.attempt + 1) if waits else None


def outside(thread: ThreadState, run: RunState, event_id: str, data: JsonObject | None = None) -> Effects:
    """Return the effects of the end of a run outside any attempt: the event to write, and the run's job to withdraw."""
    r = run.run
    said: JsonObject = {"status": str(r.status), **(data or {})}
    over = [Job(thread.key, run.id, r.lane, r.kind, r.queue, tenant=thread.tenant, over=True)] if r.lane is not None else []
    event = OutsideEvent(RunRef(thread.key, run.id), thread.id, event_id, f"run.{r.status}", said, r.agent, r.queue)
    return Effects(events=[event], withdrawn=over)


def copy_run(run: Run) -> Run:
    return run.model_copy(deep=True)
