"""What goes through the ports: how a run is addressed, what a verb is asked, and what it answers.

A run is addressed by ``RunRef(thread_key, run_id)``: the thread's surrogate key is unique over tenants, and a deleted thread's
id may be used again. ``Attempt`` adds the fence, the proof of the right to write (invariant I2). Verbs return
:class:`Effects`: what their commit asks of Redis. Whoever called the verb applies them; if it dies first, the reconciler does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal, TypeVar

from .bounds import check_value
from .errors import ThreadAlreadyExistsError
from .models import (
    ErrorInfo,
    Event,
    HitlRequest,
    JsonObject,
    Message,
    Priority,
    Run,
    RunKind,
    RunOptions,
    StopAt,
    Thread,
    Usage,
    VersionPolicy,
    check_message,
)
from .states import MAX_CRASHES, RunStatus

MAIN_LANE = ""
PAGE_BYTES: Final = 8 * 2**20
"""Bytes of one page of a list, about, and but for a single entry that has more."""
EVENTS: Final = 500
"""Events of a run that are read at once, at most."""
EVENTS_BYTES: Final = 64 * 2**10
"""About as many bytes: what a reader holds that takes nothing. An event that is larger is read by itself."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunRef:
    """One run, over all tenants."""

    thread_key: int
    run_id: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """The right to write to a run until a higher fence is issued."""

    thread_key: int
    run_id: str
    fence: int

    @property
    def ref(self) -> RunRef:
        return RunRef(self.thread_key, self.run_id)


@dataclass(frozen=True, slots=True)
class Job:
    """A run that may start, as the scheduler is told of it; it serves tenants by turns.

    ``delay``: seconds until it is due. ``ready_at``: when it could start at the earliest, in seconds since 1970 by the store's
    clock. ``queued``: the event to write when the job is submitted; None if an attempt has begun
    since the run was accepted or redriven. ``over``: the run ended before a worker took it; to submit it takes the offer back.
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

    @property
    def ref(self) -> RunRef:
        return RunRef(self.thread_key, self.run_id)

    @property
    def lane_key(self) -> str:
        """The lane's name in Redis: no colon in it, the same for every run of the lane."""
        if self.lane == MAIN_LANE:
            return str(self.thread_key)
        return f"{self.thread_key}.{hashlib.blake2s(self.lane.encode(), digest_size=8).hexdigest()}"

    @property
    def id(self) -> str:
        """The arq job id: ``<lane key>:<run id>``."""
        return f"{self.lane_key}:{self.run_id}"


def queued_event(thread_id: str, run_id: str, fence: int, attempt: int) -> Event:
    """``run.queued`` of a run that waits for its ``attempt``. Accept and redrive draw a ``fence`` for it."""
    # Not validated: every field is made by a store, and this is called for each run.
    return Event.model_construct(
        id=f"{fence}-1", type="run.queued", thread_id=thread_id, run_id=run_id, data={"attempt": attempt}
    )


@dataclass(frozen=True, slots=True)
class Head:
    """The first unfinished run of a lane, which should be on its way. ``orphaned``: its worker is dead or gone.
    ``cancelled``: so it is, and a cancel waits; whoever claims it ends it."""

    job: Job
    orphaned: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class OutsideEvent:
    """An event of a verb that happened outside any attempt (cancel or fail of a run that nobody executes, dead). ``agent`` and
    ``queue`` are the run's."""

    ref: RunRef
    thread_id: str
    event_id: str
    type: str
    data: JsonObject = field(default_factory=dict)
    agent: str | None = None
    queue: str = "default"


@dataclass(slots=True)
class Effects:
    """What a commit asks of Redis: submit ``jobs``, write ``events``, hint the workers of ``cancels`` that a cancel waits, and
    take back the offers of ``withdrawn``, which are over: a queue that nobody serves would keep them for ever."""

    jobs: list[Job] = field(default_factory=list)
    events: list[OutsideEvent] = field(default_factory=list)
    cancels: list[RunRef] = field(default_factory=list)
    withdrawn: list[Job] = field(default_factory=list)

    @property
    def submissions(self) -> list[Job]:
        """What to submit."""
        return [*self.jobs, *self.withdrawn]

    def __iadd__(self, other: Effects) -> Effects:
        self.jobs += other.jobs
        self.events += other.events
        self.cancels += other.cancels
        self.withdrawn += other.withdrawn
        return self

    def __bool__(self) -> bool:
        return bool(self.jobs or self.events or self.cancels or self.withdrawn)


_LONG = 2**16
"""Characters of a text from which its own digest stands for it: JSON of megabytes takes many times as long to write."""


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def _text_digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where to cut a thread: after a completed run, or at a message (inclusive), or by default after the last completed run."""

    after_run_id: str | None = None
    at_message_id: str | None = None
    at_seq: int | None = None
    repair: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """What a ``fork_many`` job tries (semantics: F11): each of ``messages`` on a probe, or on a thread of its own.

    ``max_parallel``: how many at once. ``stop``: at the end of all, or of the first that succeeds. ``judge``: the agent that
    chooses the winner.
    """

    messages: Sequence[Message]
    max_parallel: int
    stop: StopAt = "all"
    judge: str | None = None
    threads: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", [check_message(message).by_caller() for message in self.messages])


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """``fork`` of thread ``src`` to ``new`` (semantics: F1 to F8). ``fields`` of the request hash make a repeated fork the
    same one. ``fan``: of a ``fork_many`` job, which makes any number of them."""

    src: str
    new: str
    cut: Cut = field(default_factory=Cut)
    metadata: JsonObject | None = None
    title: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    agent: str | None = None
    reset_usage: bool = True
    fan: FanOut | None = None

    def __post_init__(self) -> None:
        check_value({"fork": self.metadata}, "metadata")  # it becomes a key of the fork's extra

    @property
    def fork_hash(self) -> str:
        return _digest(
            [
                *(self.src, self.cut.after_run_id, self.cut.at_message_id, self.cut.at_seq, self.cut.repair),
                *(self.metadata, self.title, dict(self.tags), self.agent, self.reset_usage),
            ]
        )


def _words(message: Message) -> JsonObject:
    """What makes two messages the same to whoever sends them."""
    content, texts = [], []
    for n, part in enumerate(message.content):
        fields = dict(part.__dict__)
        for name, value in fields.items():
            if isinstance(value, str) and len(value) >= _LONG:
                fields[name] = None
                texts.append([n, name, _text_digest(value)])
        content.append(fields)
    return {"role": message.role, "content": content, "metadata": message.metadata, "texts": texts}


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptRequest:
    """A run to accept. ``run_at`` or ``delay`` (seconds) make it due later. Fork jobs carry ``fork`` and no parent. ``job``:
    what started it and is offered again when it ends."""

    thread_id: str
    run_id: str
    kind: RunKind = "prompt"
    agent: str | None = None
    queue: str | None = None
    input: Message | None = None
    parent_id: str | None = None
    priority: Priority = "normal"
    run_at: datetime | None = None
    delay: float | None = None
    options: RunOptions = field(default_factory=RunOptions)
    metadata: JsonObject = field(default_factory=dict)
    fork: ForkRequest | None = None
    app_version: str | None = None
    trace_context: str | None = None
    job: RunRef | None = None

    def __post_init__(self) -> None:
        check_value(self.metadata, "metadata")
        if self.input is not None:
            object.__setattr__(self, "input", check_message(self.input).by_caller())

    @property
    def request_hash(self) -> dict[str, str]:
        """A digest per field that changes the outcome, so that a conflict can name what differs (semantics: R2)."""
        fields: dict[str, Any] = {
            "kind": self.kind,
            "agent": self.agent,
            "message": _words(self.input) if self.input else None,
            "parent_id": self.parent_id,
            "options": [self.options.parallel, self.options.multitask_strategy, self.options.expires_in],
            "fork": [self.fork.fork_hash, self.fork.new] if self.fork else None,
        }
        if self.fork is not None and (fan := self.fork.fan) is not None:
            fields["messages"] = [_words(message) for message in fan.messages]
            fields["fan"] = [fan.stop, fan.judge, fan.threads]
        return {name: _digest(value) for name, value in fields.items() if value is not None}


@dataclass(slots=True)
class Accepted:
    """``created`` is False when the same request was accepted before."""

    run: Run
    created: bool
    effects: Effects = field(default_factory=Effects)


@dataclass(slots=True)
class Admitted:
    """``next_due``: seconds until the next run is due, None if none is waiting for its time."""

    effects: Effects
    next_due: float | None


ClaimOutcome = Literal[
    "claimed", "ended", "behind", "not_due", "other_version", "unserved", "paused", "limited", "waiting", "suspended", "busy",
    "skipped", "unknown",
]  # fmt: skip


@dataclass(slots=True)
class Claim:
    """What became of one claim.

    ``claimed``: ``attempt``, ``run``, ``tenant``, ``extra`` are set, and ``fork`` of a fork job; ``leaf_id`` is the run's last
    committed message if an earlier attempt wrote any. ``not_due``: ``retry_in`` seconds. ``paused``: its queue is. ``limited``:
    it waits in the store for a slot of a limit. ``skipped``: another transaction holds the thread; submit again. ``busy``: a
    live worker runs it. ``waiting``: a fork job whose cut, or too many of whose runs, have not ended. Everything else needs no
    further delivery.

    ``other_version``: another version of the app began it, and this worker leaves it to that one; ``unserved``: this worker
    does not have the run's agent; submit both again later.
    ``version_before``: the version of the last attempt, None before the first. ``alone``: earlier attempts took their processes
    down, so this one must not share one.
    """

    ref: RunRef
    outcome: ClaimOutcome
    attempt: Attempt | None = None
    tenant: str = ""
    run: Run | None = None
    extra: JsonObject = field(default_factory=dict)
    fork: ForkRequest | None = None
    leaf_id: str | None = None
    retry_in: float | None = None
    takeover: bool = False
    version_before: str | None = None
    effects: Effects = field(default_factory=Effects)

    @property
    def alone(self) -> bool:
        return self.run is not None and self.run.crash_count >= MAX_CRASHES - 1


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the side-effect ledger. ``result`` is None until ``done``; ``fence`` is of the attempt that wrote the row."""

    key: str
    done: bool
    result: Any = None
    fence: int = 0


@dataclass(slots=True)
class Ledger:
    """What earlier attempts of a run left: finished and started steps by key, requests with and without answers by id."""

    steps: dict[str, Step] = field(default_factory=dict)
    requests: dict[str, HitlRequest] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Write:
    """The last write of an attempt: messages to append and the run's extra if it changed.

    The events of the write are numbered from ``first_event``: one per message, one per HITL request, then the run's own.
    """

    attempt: Attempt
    messages: Sequence[Message] = ()
    extra: JsonObject | None = None
    usage: Usage | None = None
    result: Any = None
    first_event: int = 1


@dataclass(slots=True)
class Ended:
    """How an attempt ended. ``status`` may differ from what was asked: a cancel or an incomplete tool cycle wins."""

    status: RunStatus
    event_id: str
    error: ErrorInfo | None = None
    effects: Effects = field(default_factory=Effects)


@dataclass(slots=True)
class Responded:
    """``created`` is False when the same response was recorded before. ``last``: it was recorded now, and nothing else that
    its run asked waits any more; of the answers to one run's questions this is said of one, however many come at once."""

    request: HitlRequest
    created: bool
    effects: Effects = field(default_factory=Effects)
    last: bool = False


@dataclass(slots=True)
class Changed:
    """A run after an operator's or a client's verb."""

    run: Run
    effects: Effects = field(default_factory=Effects)


@dataclass(slots=True)
class Aborted:
    """The run that waited for a human and was cancelled instead; None if none waited."""

    run: Run | None
    effects: Effects = field(default_factory=Effects)


@dataclass(slots=True)
class Forked:
    """``created`` is False when the same fork was made before."""

    thread: Thread
    created: bool

    def require_new(self) -> None:
        """Raise ThreadAlreadyExistsError if the fork was made before: a checkpointer's cannot be repeated (semantics: F4)."""
        if not self.created:
            thread_id = self.thread.thread_id
            raise ThreadAlreadyExistsError(f"thread {thread_id!r} exists already; choose another id", thread_id=thread_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRequest:
    """A thread to make before anything is said on it. ``config``: JSON that its forks copy, by value."""

    thread_id: str
    agent: str | None = None
    title: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    extra: JsonObject = field(default_factory=dict)
    config: JsonObject = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_value(self.extra, "extra")
        check_value(self.config, "config")

    @property
    def hash(self) -> str:
        """What makes a repetition the same thread; no fork has it."""
        return "thread " + _digest([self.agent, self.title, dict(self.tags), self.extra, self.config])


@dataclass(slots=True)
class Created:
    """``created`` is False when the same thread was made before."""

    thread: Thread
    created: bool


@dataclass(slots=True)
class Page(Generic[T]):
    """Part of a list; ``next`` continues it, None at the end.

    A page may have fewer items than were asked for, or none, and still a ``next``: it holds about PAGE_BYTES at most, and looks
    at a bounded number of rows that a filter leaves out.
    """

    items: list[T]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One worker process. ``agents``: agent name → queue; ``asking``: those that may ask humans, told when it registers.
    ``on_version_mismatch``: :class:`runner.App`'s. ``address``: ``host:port`` of its own port, if it has one. ``silent_for``:
    seconds since the heartbeat, by the store's clock."""

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
    """How long to keep what is pruned: entries of the feed, results of fork jobs, rows of dead workers."""

    feed: timedelta = timedelta(days=7)
    results: timedelta = timedelta(days=7)
    workers: timedelta = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Standing:
    """What a worker is told with each heartbeat. ``draining``: take nothing more. ``paused``: queues to take nothing from.
    ``fits``: the schema admits this code."""

    draining: bool = False
    paused: frozenset[str] = frozenset()
    fits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """What waits in a queue, over all tenants.

    ``queued``: runs that are due and wait for a worker or for their lane; ``deepest``: how many of them one lane holds at most;
    ``oldest``: for how many seconds the one that waits longest has done so, None if none waits. ``suspended``: runs that wait
    for a human. ``workers``: those that live, serve the queue and do not drain. ``known``: a live worker serves it, an agent
    that was ever served belongs to it, or it is paused; other names are only those of callers.
    """

    queue: str
    queued: int = 0
    deepest: int = 0
    oldest: float | None = None
    suspended: int = 0
    workers: int = 0
    paused_at: datetime | None = None
    known: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """A job in a worker's hands: the lane's lock is held with ``token`` until it is released or runs out."""

    job: Job
    token: int
