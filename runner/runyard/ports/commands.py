"""Arguments of the stores' verbs, and the digests by which stores recognise a repetition.

The constructor of a request checks its ids and names. Stores need not check them. The constructor raises InvalidInputError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, TypedDict

from ..domain.derived_ids import digest
from ..domain.messages import Message, Usage, check_message
from ..domain.runs import DEFAULT_OPTIONS, Priority, RunKind, RunOptions, StopAt
from ..domain.size_limits import JsonObject, check_value
from ..domain.validation import check_id, check_name, check_uuid
from ..errors import RunyardError
from .refs import AttemptToken, RunRef

_LONG_TEXT = 2**16
"""Minimum number of characters of a text that is hashed separately, because the hash of its JSON takes much longer."""


MAX_PROMPTS_PER_CALL: Final = 1000
"""Maximum number of prompts in one call of ``accept_many``, in one transaction, and in one request to the HTTP API."""


def _text_digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The place of a cut in a thread: after a completed run, or after a message.

    By default the cut is after the last completed run. ``at_seq``: the number of a message in its thread. ``repair``: close
    the tool calls that are open at the cut.
    """

    after_run_id: str | None = None
    at_message_id: str | None = None
    at_seq: int | None = None
    repair: bool = False

    def __post_init__(self) -> None:
        if self.at_message_id is not None:
            check_uuid(self.at_message_id, "at_message_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """The arguments of ``fork_many`` (F11).

    ``messages``: one message for each candidate. ``total``: the number of messages. In a claim, a fan-out can have this number
    without the messages. :class:`.fan_outs.FanOutStore` then returns the messages. ``threads``: if True, each candidate is a
    run on its own thread. If False, each candidate is a probe. ``max_parallel``: the maximum number of candidates that run at
    once. ``stop``: ``all`` runs every candidate, ``first`` ends the fan-out after the first candidate that succeeds. ``judge``:
    the name of the agent that chooses the winner, or None.
    """

    messages: Sequence[Message] = ()
    max_parallel: int
    stop: StopAt = "all"
    judge: str | None = None
    threads: bool = False
    total: int = 0

    def __post_init__(self) -> None:
        check_name(self.judge, "judge")
        object.__setattr__(self, "total", self.total or len(self.messages))
        object.__setattr__(self, "messages", [check_message(message).by_caller() for message in self.messages])


class ForkOptions(TypedDict, total=False):
    """The options of a fork (F7). :class:`ForkRequest` has the defaults."""

    title: str | None
    tags: Mapping[str, str]
    agent: str | None
    reset_usage: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """A fork of the thread ``src`` to the thread ``new`` (F1 to F8).

    ``fan``: the arguments of ``fork_many``, for a fan-out. ``prompt_run_id``: the run id of the first prompt. A fork job has
    the first prompt as its input, and enqueues this prompt.

    Two requests with equal :attr:`fork_hash` are requests for the same fork.
    """

    src: str
    new: str
    cut: Cut = field(default_factory=Cut)
    metadata: JsonObject | None = None
    title: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    agent: str | None = None
    reset_usage: bool = True
    fan: FanOut | None = None
    prompt_run_id: str | None = None

    def __post_init__(self) -> None:
        check_id(self.src, "src")
        check_id(self.new, "new")
        check_name(self.agent, "agent")
        if self.prompt_run_id is not None:
            check_id(self.prompt_run_id, "prompt_run_id")
        check_value({"fork": self.metadata}, "metadata")  # the metadata are stored in the fork's extra

    @property
    def fork_hash(self) -> str:
        return digest(
            [
                *(self.src, self.cut.after_run_id, self.cut.at_message_id, self.cut.at_seq, self.cut.repair),
                *(self.metadata, self.title, dict(self.tags), self.agent, self.reset_usage),
            ]
        )


@lru_cache(maxsize=1024)
def _name_digest(name: str) -> str:
    """Return the digest of ``name``. The digest is cached, because many requests have the same kind and agent."""
    return digest(name)


COMPARED_OPTIONS: Final = ("parallel", "multitask_strategy", "expires_in")
"""The options that a repetition of a request must not change (R2)."""


@lru_cache(maxsize=1024, typed=True)  # 1, 1.0 and True have different JSON
def _options_digest(parallel: bool, multitask_strategy: str, expires_in: float | None) -> str:
    return digest([parallel, multitask_strategy, expires_in])


def _words(message: Message) -> JsonObject:
    """Return the fields that decide whether two messages of a client are the same."""
    content, texts = [], []
    for n, part in enumerate(message.content):
        fields = dict(part.__dict__)
        for name, value in fields.items():
            if isinstance(value, str) and len(value) >= _LONG_TEXT:
                fields[name] = None
                texts.append([n, name, _text_digest(value)])
        content.append(fields)
    words = {"role": message.role, "content": content, "metadata": message.metadata, "texts": texts}
    return words if message.source is None else {**words, "source": message.source.__dict__}


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptRequest:
    """A run to accept.

    ``run_at`` or ``delay`` (seconds): when the run becomes due. ``fork``: the arguments of a fork job. A fork job has no
    ``parent_id``. ``job``: the run that started this run and waits for its end.
    """

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
    options: RunOptions = field(default_factory=lambda: DEFAULT_OPTIONS)
    metadata: JsonObject = field(default_factory=dict)
    fork: ForkRequest | None = None
    app_version: str | None = None
    trace_context: str | None = None
    job: RunRef | None = None

    def __post_init__(self) -> None:
        check_id(self.thread_id, "thread_id")
        check_id(self.run_id, "run_id")
        check_name(self.agent, "agent")
        check_name(self.queue, "queue")
        if self.parent_id is not None:
            check_uuid(self.parent_id, "parent_id")
        check_value(self.metadata, "metadata")
        if self.input is not None:
            object.__setattr__(self, "input", check_message(self.input).by_caller())

    def record(self, *, app_version: str | None, trace_context: str | None) -> None:
        """Set the version of the caller's app and the caller's trace context. The request is changed in place, because a copy
        would check all fields again."""
        object.__setattr__(self, "app_version", app_version)
        object.__setattr__(self, "trace_context", trace_context)

    @property
    def request_hash(self) -> dict[str, str]:
        """One digest for each field that changes the outcome.

        The error for a conflict names the fields whose digests differ (R2).

        The order of the fields is the same in every version, because Postgres compares the digests as JSON text.
        """
        options, digests = self.options, {"kind": _name_digest(self.kind)}
        if self.agent is not None:
            digests["agent"] = _name_digest(self.agent)
        if self.input is not None:
            digests["message"] = digest(_words(self.input))
        if self.parent_id is not None:
            digests["parent_id"] = digest(self.parent_id)
        digests["options"] = _options_digest(*(getattr(options, name) for name in COMPARED_OPTIONS))
        if self.fork is not None:
            digests["fork"] = digest([self.fork.fork_hash, self.fork.new])
            if self.fork.prompt_run_id is not None:
                digests["prompt_run_id"] = digest(self.fork.prompt_run_id)
            if (fan := self.fork.fan) is not None:
                digests["messages"] = digest([_words(message) for message in fan.messages])
                digests["fan"] = digest([fan.stop, fan.judge, fan.threads])
        return digests


@dataclass(slots=True)
class PromptSeries:
    """The calls of ``accept_many`` that together accept the prompts of one caller.

    ``lost``: the error of the first transaction of the series in which the store could not be reached. The later prompts of the
    series are then not sent. Otherwise they could overtake earlier prompts of their threads.
    """

    lost: RunyardError | None = None


@dataclass(slots=True, kw_only=True)
class Write:
    """The last write of an attempt.

    ``messages``: the messages to append. ``extra``: the changed keys of the thread's extra with their values, or None.
    ``first_event``: the number of the first event of the write. The events are one for each message, then one for each HITL
    request, then the event of the run. ``claim_next``: whether ``complete`` may also claim the next run of the lane
    (:attr:`~.results.Ended.next`).
    """

    attempt: AttemptToken
    messages: Sequence[Message] = ()
    extra: JsonObject | None = None
    usage: Usage | None = None
    result: Any = None
    first_event: int = 1
    claim_next: bool = False


class ThreadChanges(TypedDict, total=False):
    """Changes of a thread. None clears a field.

    ``extra`` and ``config`` are merged key by key. The new value of a key replaces the whole old value. A key whose value is
    None is removed.
    """

    agent: str | None
    title: str | None
    tags: Mapping[str, str] | None
    extra: JsonObject | None
    config: JsonObject | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRequest:
    """A thread to create before its first message. ``config``: a JSON object. A fork of the thread gets a copy."""

    thread_id: str
    agent: str | None = None
    title: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    extra: JsonObject = field(default_factory=dict)
    config: JsonObject = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_id(self.thread_id, "thread_id")
        check_name(self.agent, "agent")
        check_value(self.extra, "extra")
        check_value(self.config, "config")

    @property
    def hash(self) -> str:
        """The digest by which stores recognise a repetition. This digest differs from the digest of every fork."""
        return "thread " + digest([self.agent, self.title, dict(self.tags), self.extra, self.config])
