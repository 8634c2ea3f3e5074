"""Runs, their options and attempts, and the results of fork jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final, Literal

from pydantic import ConfigDict, Field, SerializationInfo, field_serializer

from .base_models import StrictModel
from .messages import Message, StopReason, Usage
from .size_limits import JsonObject, JsonValue
from .states import ENDED, RunStatus
from .webhooks import HIDE_WEBHOOKS, masked

RunKind = Literal["prompt", "fork", "fork_once", "fork_many", "external"]

DEFAULT_AGENT: Final = "default"
"""The name of the default agent. In an app without an agent of this name, the first agent is the default agent."""

VersionPolicy = Literal["run", "wait", "fail"]

StopAt = Literal["all", "first"]

MultitaskStrategy = Literal["enqueue", "reject", "interrupt", "rollback"]
"""What a store does with a new run if a run of its lane is live. On Postgres, ``functions/lanes.sql`` applies the strategy."""

Priority = Literal["high", "normal", "low"]

PRIORITIES: Final[tuple[Priority, ...]] = ("high", "normal", "low")

MAX_EXPIRY_SECONDS: Final = 10 * 365 * 86400
"""Maximum value of ``expires_in``, in seconds."""

LARGE_VALUE_BYTES: Final = 8192
"""Maximum size of a value in a list, in bytes of JSON. Lists leave out larger values."""


class ErrorInfo(StrictModel):
    """The cause of a failure: a stable ``code``, a sentence as ``message``, and ``details`` as a JSON object.

    ``traceback``: the traceback of an error that the agent raised, for operators. Lists of runs, events and webhooks leave the
    traceback out. ``details["type"]``: the class of an error that is not from :mod:`runyard.errors`.
    """

    # The schemas of input and output are equal, because client generators confuse two schemas with the same title.
    model_config = ConfigDict(json_schema_mode_override="validation")

    code: str
    message: str
    details: JsonObject = Field(default_factory=dict)
    traceback: str | None = Field(None, exclude_if=lambda text: text is None)

    @property
    def headline(self) -> str:
        """The class of the error and its message. If the class is unknown, the code of the error and its message."""
        return f"{self.details.get('type', self.code)}: {self.message}"

    def without_traceback(self) -> ErrorInfo:
        """Return the error without its traceback, for readers other than operators."""
        return self if self.traceback is None else self.model_copy(update={"traceback": None})


CODES_WITHOUT_CLASS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "agent_error": (
            'The agent raised an error that is not from `runyard.errors`. `details["type"]` is the class of the error, and '
            "`traceback` begins at the first frame of the agent's code."
        ),
        "main_loop_blocked": (
            "The worker of the attempt was declared dead while code of an agent blocked the main loop. The message names the "
            "file and the line. `traceback` is the stack. Another attempt continues the run."
        ),
        "poison": "The run crashed its process too often without progress. The run is dead until it is redriven.",
    }
)
"""The codes of errors that only a run or an attempt has, with their meaning. :mod:`runyard.errors` has the other codes."""


class RetryPolicy(StrictModel):
    """Exponential backoff between attempts: ``min(initial * factor ** n, maximum)`` seconds after ``n`` earlier errors.

    ``jitter``: the largest random deviation, up or down, as a fraction of these seconds. ``errors``: other policies for some
    errors, by the name of the error's class or of a base class. If several classes of an error have a policy, the policy of
    the closest class applies. If the policy is None, errors of the class are not retried. Example:
    ``RetryPolicy(errors={"RateLimitError": RetryPolicy(initial=30), "ValueError": None})``.
    """

    # The schemas of input and output are equal, because client generators confuse two schemas with the same title.
    model_config = ConfigDict(json_schema_mode_override="validation", frozen=True)

    initial: float = Field(1.0, ge=0, allow_inf_nan=False)
    factor: float = Field(2.0, ge=1, le=1000, allow_inf_nan=False)
    maximum: float = Field(60.0, ge=0, allow_inf_nan=False)
    jitter: float = Field(0.2, ge=0, le=1, allow_inf_nan=False)
    errors: dict[str, RetryPolicy | None] = Field(default_factory=dict)

    def of(self, error: BaseException) -> RetryPolicy | None:
        """Return the policy for ``error``, or None if the error is not retried."""
        named = (cls.__name__ for cls in type(error).__mro__ if cls.__name__ in self.errors)
        return self.errors[name] if (name := next(named, None)) is not None else self


class RunOptions(StrictModel):
    """The options of a run.

    ``timeout``: seconds for one attempt. ``max_attempts``: the number of errors after which the run fails. A timeout of an
    attempt counts as an error. Crashes, releases and questions do not count as errors. If ``max_attempts`` is None, temporary
    errors of a provider are retried, and any other error fails the run. ``expires_in``: a number of seconds. The first attempt
    must start at most this long after the due time. ``webhook``: the URL that receives the run's end.
    """

    model_config = ConfigDict(frozen=True)  # many runs share DEFAULT_OPTIONS

    timeout: float | None = Field(None, gt=0, allow_inf_nan=False)
    max_attempts: int | None = Field(None, ge=1, le=1000)
    retry: RetryPolicy = Field(default_factory=RetryPolicy)
    multitask_strategy: MultitaskStrategy = "enqueue"
    parallel: bool = False
    webhook: str | None = None
    expires_in: float | None = Field(None, gt=0, le=MAX_EXPIRY_SECONDS, allow_inf_nan=False)

    @field_serializer("webhook", when_used="json-unless-none")
    def _hide(self, url: str, info: SerializationInfo) -> str:
        return masked(url) if info.context and info.context.get(HIDE_WEBHOOKS) else url


DEFAULT_OPTIONS: Final = RunOptions()
"""The options of a run that was enqueued without options. All such runs share this object."""


class Run(StrictModel):
    """One run as the store has it. A run is the work from a prompt to its final answer, or a fork job.

    ``error_count``: the number of errors since the last suspension or redrive. ``waiting_for``: for a suspended run, either
    ``answer`` (the run waits for a human) or ``wait`` (the run waits only for a time, a signal or a child). ``expires_at``: the
    time at which the run fails if no attempt has started by then. ``deleted_at``: the time at which the run's content was
    deleted. ``omitted``: the names of the fields (``input``, ``result``, ``metadata``) that a list leaves empty because their
    values have more than 8 KiB (:data:`LARGE_VALUE_BYTES`). A read of the run by its id returns these fields. ``damaged``: the
    names of the fields that a list leaves empty because their stored value cannot be decoded. A read of the run by its id
    raises DataCorruptedError, unless only its ``input`` is damaged.
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
    waiting_for: Literal["answer", "wait"] | None = None
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
        """Whether the run has ended. Only a redrive can queue such a run again."""
        return self.status in ENDED

    @property
    def stopped(self) -> bool:
        """Whether the run has ended or waits for an answer.

        Such a run has no further event before a user acts, or a deadline passes.
        """
        return self.ended or (self.status is RunStatus.SUSPENDED and self.waiting_for != "wait")

    def without_tracebacks(self) -> Run:
        """Return the run without tracebacks, for readers other than operators.

        Tracebacks can be in the run's error, and in the result of a fork job.
        """
        error = self.error.without_traceback() if self.error is not None else None
        result = _untraced(self.result) if self.kind in ("fork_once", "fork_many") else self.result
        return self.model_copy(update={"error": error, "result": result})


def _untraced(found: JsonValue) -> JsonValue:
    """Return ``found`` without tracebacks.

    ``found``: the result of a fork job, the verdict in this result, or an error in one of the two.
    """
    if not isinstance(found, dict):
        return found
    inner = ("error", "verdict")
    return {name: _untraced(value) if name in inner else value for name, value in found.items() if name != "traceback"}


class AttemptInfo(StrictModel):
    """One attempt of a run, in the form that users read.

    ``outcome``: ``running`` while the attempt lasts. If the attempt ended the run, ``outcome`` is the status of the run:
    ``completed``, ``failed``, ``cancelled`` or ``dead``. After any other outcome, another attempt follows: ``suspended``,
    ``retried`` (after an error), ``released`` (without an error), ``lost`` (the worker died). ``damaged``: ``["error"]`` if
    the stored error cannot be decoded.
    """

    fence: int
    worker_id: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str
    error: ErrorInfo | None = None
    damaged: list[str] = Field(default_factory=list)


def run_fits(run: Run, queue: str | None, error: str | None, text: str | None) -> bool:
    """Return whether a run fits the filters. Such a run has the queue and the error code of the filters, and contains their
    text.

    A filter that is None fits every run.
    """
    if queue is not None and run.queue != queue:
        return False
    if error is not None and (run.error is None or run.error.code != error):
        return False
    if text is None:
        return True
    prompt = run.input.text or run.input.model_dump_json(include={"content"}) if run.input is not None else ""
    return any(text.lower() in each.lower() for each in (prompt, run.run_id, run.thread_id))


@dataclass(frozen=True)
class ForkOnceResult:
    """The answer of a probe (F9).

    ``text``: the text of the last assistant message, or an empty string. ``messages``: the messages that the probe added.
    ``stop_reason``: the stop reason of the last assistant message. If the agent failed, ``stop_reason`` is ``error``.
    ``error``: the cause of a failure, or None.
    """

    text: str
    messages: list[Message]
    stop_reason: StopReason
    error: ErrorInfo | None = None
