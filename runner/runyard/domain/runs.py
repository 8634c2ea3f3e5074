"""Runs, their options and attempts, and the results of fork jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from pydantic import ConfigDict, Field, SerializationInfo, field_serializer

from .base_models import StrictModel
from .json_bounds import JsonObject, JsonValue
from .messages import Message, StopReason, Usage
from .states import ENDED, RunStatus
from .webhooks import HIDE_WEBHOOKS, masked

RunKind = Literal["prompt", "fork", "fork_once", "fork_many", "external"]

VersionPolicy = Literal["run", "wait", "fail"]

StopAt = Literal["all", "first"]

MultitaskStrategy = Literal["enqueue", "reject", "interrupt", "rollback"]

Priority = Literal["high", "normal", "low"]

PRIORITIES: Final[tuple[Priority, ...]] = ("high", "normal", "low")

MAX_EXPIRY_SECONDS: Final = 10 * 365 * 86400
"""Longest time in which a run has to start, in seconds."""

LARGE_VALUE_BYTES: Final = 8192
"""Size in bytes above which lists leave out a value."""


class ErrorInfo(StrictModel):
    """The cause of a failure: a stable ``code``, a sentence, and JSON details."""

    code: str
    message: str
    details: JsonObject = Field(default_factory=dict)


class RetryPolicy(StrictModel):
    """Exponential backoff between attempts: ``min(initial * factor ** n, maximum)`` seconds, ± ``jitter`` as a fraction.

    ``errors``: other policies for some classes of errors, by the name of the class or of one of its bases. The closest class
    applies. None means that such an error is not retried: ``RetryPolicy(errors={"RateLimitError": RetryPolicy(initial=30),
    "ValueError": None})``.
    """

    # One schema for input and output: client generators confuse two schemas with the same title.
    model_config = ConfigDict(json_schema_mode_override="validation")

    initial: float = Field(1.0, ge=0, allow_inf_nan=False)
    factor: float = Field(2.0, ge=1, le=1000, allow_inf_nan=False)
    maximum: float = Field(60.0, ge=0, allow_inf_nan=False)
    jitter: float = Field(0.2, ge=0, le=1, allow_inf_nan=False)
    errors: dict[str, RetryPolicy | None] = Field(default_factory=dict)

    def of(self, error: BaseException) -> RetryPolicy | None:
        """Return the policy for ``error``, or None if it is not retried."""
        named = (cls.__name__ for cls in type(error).__mro__ if cls.__name__ in self.errors)
        return self.errors[name] if (name := next(named, None)) is not None else self


class RunOptions(StrictModel):
    """How a run is executed.

    ``timeout``: seconds for one attempt. ``max_attempts``: how many attempts may end in an error. ``expires_in``: seconds after
    the due time in which the first attempt has to start. ``webhook``: the URL that receives the run's end.
    """

    timeout: float | None = Field(None, gt=0, allow_inf_nan=False)
    max_attempts: int = Field(1, ge=1, le=1000)
    retry: RetryPolicy = Field(default_factory=RetryPolicy)
    multitask_strategy: MultitaskStrategy = "enqueue"
    parallel: bool = False
    webhook: str | None = None
    expires_in: float | None = Field(None, gt=0, le=MAX_EXPIRY_SECONDS, allow_inf_nan=False)

    @field_serializer("webhook", when_used="json-unless-none")
    def _hide(self, url: str, info: SerializationInfo) -> str:
        return masked(url) if info.context and info.context.get(HIDE_WEBHOOKS) else url


class Run(StrictModel):
    """One cycle from a prompt to the final assistant message, or a fork job, as the store has it.

    ``expires_at``: the run fails if its first attempt has not started by then. ``deleted_at``: the time at which its content
    was deleted. ``omitted``: the names of the fields (``input``, ``result``, ``metadata``) that a list leaves empty because
    they have more than :data:`LARGE_VALUE_BYTES` bytes; reading the run by its id returns them. ``damaged``: the names of the
    fields that a list leaves empty because their stored value cannot be decoded; reading the run by its id raises
    DataCorruptedError.
    """

    thread_id: str
    run_id: str
    kind: RunKind = "prompt"
    status: RunStatus
    agent: str | None = None
    queue: str = "default"
    priority: Priority = "normal"
    lane: str | None = None
    attempt: int = 0
    error_count: int = 0
    crash_count: int = 0
    input: Message | None = None
    parent_id: str | None = None
    after_run_id: str | None = None
    options: RunOptions = Field(default_factory=RunOptions)
    run_at: datetime | None = None
    expires_at: datetime | None = None
    accepted_at: datetime
    admitted_at: datetime | None = None
    started_at: datetime | None = None
    suspended_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    completion_seq: int | None = None
    fence: int | None = None
    worker_id: str | None = None
    app_version: str | None = None
    error: ErrorInfo | None = None
    result: JsonValue = None
    usage: Usage = Field(default_factory=Usage)
    metadata: JsonObject = Field(default_factory=dict)
    trace_context: str | None = None
    event_id: str | None = None
    deleted_at: datetime | None = None
    omitted: list[str] = Field(default_factory=list)
    damaged: list[str] = Field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the run has ended; only a redrive can change it."""
        return self.status in ENDED


class AttemptInfo(StrictModel):
    """One attempt of a run, for people.

    ``outcome``: ``running`` while it lasts. An attempt that ended the run has the run's status: ``completed``, ``failed``,
    ``cancelled``, ``dead``. Otherwise it is the reason for another attempt: ``suspended``, ``retried`` after an error,
    ``released`` (a hand-over), ``lost`` with its worker. ``damaged``: ``["error"]`` if the stored error cannot be decoded.
    """

    fence: int
    worker_id: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str
    error: ErrorInfo | None = None
    damaged: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class ForkOnceResult:
    """The answer of a probe (F9): the ``text`` of its last assistant message, the new ``messages`` only, its stop reason."""

    text: str
    messages: list[Message]
    stop_reason: StopReason


@dataclass(frozen=True)
class Candidate(ForkOnceResult):
    """The answer to one message of a fan-out. ``thread_id``: its thread, if it has one. ``error``: the cause of its failure."""

    thread_id: str | None = None
    error: ErrorInfo | None = None

    @property
    def ok(self) -> bool:
        """Whether the agent finished."""
        return self.stop_reason not in ("error", "aborted", "cancelled")


@dataclass(frozen=True)
class ForkManyResult:
    """The result of a fan-out (F11): ``results`` in the order of its messages, ``winner`` as an index into them.

    ``winner`` is None without a judge or ``stop="first"``, if no candidate succeeded, or if the judge named none. ``verdict``
    is the judge's answer; None if it was not asked.
    """

    results: list[Candidate]
    winner: int | None = None
    verdict: ForkOnceResult | None = None
