"""Arguments of the stores' verbs, and the digests by which a repetition is recognised.

Requests check their ids and names when they are made, for every caller and every store. They raise InvalidInputError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..domain.derived_ids import digest
from ..domain.json_bounds import JsonObject, check_value
from ..domain.messages import Message, Usage, check_message
from ..domain.runs import Priority, RunKind, RunOptions, StopAt
from ..domain.validation import check_id, check_name, check_uuid
from .refs import AttemptToken, RunRef

_LONG_TEXT = 2**16
"""Characters from which a text is hashed by itself: writing it as JSON first would take many times as long."""


def _text_digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The place of a cut in a thread: after a completed run, or at a message (inclusive); by default the last completed run."""

    after_run_id: str | None = None
    at_message_id: str | None = None
    at_seq: int | None = None
    repair: bool = False

    def __post_init__(self) -> None:
        if self.at_message_id is not None:
            check_uuid(self.at_message_id, "at_message_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """The arguments of a ``fork_many`` job (F11).

    Each of ``messages`` is tried on a probe, or with ``threads`` on a thread of its own. ``max_parallel``: how many run at
    once. ``stop``: end after all, or after the first that succeeds. ``judge``: the agent that chooses the winner.
    """

    messages: Sequence[Message]
    max_parallel: int
    stop: StopAt = "all"
    judge: str | None = None
    threads: bool = False

    def __post_init__(self) -> None:
        check_name(self.judge, "judge")
        object.__setattr__(self, "messages", [check_message(message).by_caller() for message in self.messages])


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """A fork of thread ``src`` to ``new`` (F1 to F8). ``fan``: the arguments of a ``fork_many`` job.

    Two requests with the same :attr:`fork_hash` ask for the same fork.
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

    def __post_init__(self) -> None:
        check_id(self.src, "src")
        check_id(self.new, "new")
        check_name(self.agent, "agent")
        check_value({"fork": self.metadata}, "metadata")  # the store keeps it under a key of the fork's extra

    @property
    def fork_hash(self) -> str:
        return digest(
            [
                *(self.src, self.cut.after_run_id, self.cut.at_message_id, self.cut.at_seq, self.cut.repair),
                *(self.metadata, self.title, dict(self.tags), self.agent, self.reset_usage),
            ]
        )


def _words(message: Message) -> JsonObject:
    """Return the fields by which two messages of a caller are the same."""
    content, texts = [], []
    for n, part in enumerate(message.content):
        fields = dict(part.__dict__)
        for name, value in fields.items():
            if isinstance(value, str) and len(value) >= _LONG_TEXT:
                fields[name] = None
                texts.append([n, name, _text_digest(value)])
        content.append(fields)
    return {"role": message.role, "content": content, "metadata": message.metadata, "texts": texts}


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptRequest:
    """A run to accept.

    ``run_at`` or ``delay`` (seconds): the run is due later. ``fork``: the arguments of a fork job, which has no parent.
    ``job``: the job that started this run and is submitted again when it ends.
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
    options: RunOptions = field(default_factory=RunOptions)
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

    @property
    def request_hash(self) -> dict[str, str]:
        """One digest per field that changes the outcome, so that a conflict can name the fields that differ (R2)."""
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
        return {name: digest(value) for name, value in fields.items() if value is not None}


@dataclass(slots=True, kw_only=True)
class Write:
    """The last write of an attempt: messages to append and the run's extra if it changed.

    The events of the write are numbered from ``first_event``: one per message, one per HITL request, then the run's own.
    """

    attempt: AttemptToken
    messages: Sequence[Message] = ()
    extra: JsonObject | None = None
    usage: Usage | None = None
    result: Any = None
    first_event: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRequest:
    """A thread to create before its first message. ``config``: JSON that its forks copy, by value."""

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
        """The digest by which a repetition is the same thread. No fork has the same."""
        return "thread " + digest([self.agent, self.title, dict(self.tags), self.extra, self.config])
