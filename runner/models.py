"""What users of runyard hold in their hands: messages, threads, runs, requests, branches. Every id is a string."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args

import uuid_utils
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializationInfo,
    TypeAdapter,
    ValidationError,
    field_serializer,
    model_validator,
)
from pydantic_core import PydanticSerializationError, to_jsonable_python

from .bounds import check_value
from .errors import InvalidInputError
from .legible import brief
from .states import ENDED, RunStatus
from .webhooks.masking import HIDE_WEBHOOKS, masked

JsonValue: TypeAlias = Any
"""What JSON can say. Pydantic takes it as it is: :mod:`~runner.bounds` looks at what comes in, once, and what was stored was
looked at. Asking a validator of each value in it takes as long as all else that is done with a message."""
JsonObject: TypeAlias = dict[str, JsonValue]

Role = Literal["system", "user", "assistant", "tool"]
StopReason = Literal["stop", "max_tokens", "tool_calls", "content_filter", "refusal", "error", "aborted", "cancelled"]
RunKind = Literal["prompt", "fork", "fork_once", "fork_many", "external"]
VersionPolicy = Literal["run", "wait", "fail"]
StopAt = Literal["all", "first"]
MultitaskStrategy = Literal["enqueue", "reject", "interrupt", "rollback"]
Priority = Literal["high", "normal", "low"]

PRIORITIES: Final[tuple[Priority, ...]] = ("high", "normal", "low")
MAX_ID_LENGTH: Final = 255
MAX_TAG_LENGTH: Final = 64
MAX_EXPIRY: Final = 10 * 365 * 86400
"""Seconds that a run may be given to start."""
LARGE: Final = 8192
"""Bytes of a value over which lists leave it out."""


def new_id() -> str:
    """A fresh uuid7 as text; ids made later sort later."""
    return str(uuid_utils.uuid7())


def check_id(value: Any, name: str) -> str:
    """Return ``value`` if it is a valid id, else raise :class:`InvalidInputError`.

    An id has 1 to 255 printable characters, and is not ``.`` or ``..``: whoever resolves a path takes them for steps in it
    (RFC 3986, 5.2.4), encoded or not.
    """
    if not (isinstance(value, str) and 1 <= len(value) <= MAX_ID_LENGTH and value.isprintable()):
        raise InvalidInputError(f"{name} must be 1 to {MAX_ID_LENGTH} printable characters, got {brief(value)}", field=name)
    if value in (".", ".."):
        raise InvalidInputError(f"{name} cannot be {value!r}, which paths have for a step; choose another", field=name)
    return str(value)


def check_name(value: Any, name: str) -> str | None:
    """As :func:`check_id`, of the name of an agent or a queue, where None leaves it open."""
    return None if value is None else check_id(value, name)


def check_tags(tags: Mapping[str, Any], title: str | None = None) -> dict[str, str]:
    """A copy of ``tags`` (text under keys of 1 to 64 printable characters), with ``title`` mirrored in it (semantics: F7).

    Raises InvalidInputError, also for more text than :data:`~runner.bounds.MAX_BYTES` allows.
    """
    check_value(title, "title")
    check_value(tags, "tags")
    for key, value in tags.items():
        if not (isinstance(value, str) and 1 <= len(key) <= MAX_TAG_LENGTH and key.isprintable()):
            raise InvalidInputError(
                f"tags are text under keys of 1 to {MAX_TAG_LENGTH} printable characters, got {brief(key)}", field="tags"
            )
    return {**tags, "title": title} if title is not None else dict(tags)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class _Stored(BaseModel):
    """What messages are made of. A field that a newer version stored is passed over, so that older processes can still read."""

    model_config = ConfigDict(extra="ignore")


class Usage(_Stored):
    """Tokens and cost of model calls. ``cost`` is in US dollars; ``seconds`` is the time that they and their tools took,
    without that spent waiting for people."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=self.cost + other.cost,
            seconds=self.seconds + other.seconds,
        )


def check_usage(usage: Usage) -> Usage:
    """Return ``usage`` if every store can keep it and add to it, else raise :class:`InvalidInputError`."""
    for name, amount in usage.__dict__.items():
        kinds = (int, float) if name in ("cost", "seconds") else int
        if not (isinstance(amount, kinds) and 0 <= amount < 2**63):
            raise InvalidInputError(f"usage is made of numbers from 0 to 2**63; {name} is none", field=f"usage.{name}")
    return usage


class TextPart(_Stored):
    type: Literal["text"] = "text"
    text: str


class ThinkingPart(_Stored):
    """A model's reasoning; ``signature`` is the provider's proof that must be sent back unchanged."""

    type: Literal["thinking"] = "thinking"
    text: str
    signature: str | None = None


class ImagePart(_Stored):
    """An image: either ``url`` or base64 ``data`` with its ``media_type``."""

    type: Literal["image"] = "image"
    url: str | None = None
    data: str | None = None
    media_type: str | None = None


class ToolCallPart(_Stored):
    """The model asks for a tool; ``id`` ties the result to the call."""

    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    arguments: JsonObject = Field(default_factory=dict)


class ToolResultPart(_Stored):
    """What a tool answered to the call ``call_id``."""

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    content: JsonValue = None
    is_error: bool = False


Part = Annotated[TextPart | ThinkingPart | ImagePart | ToolCallPart | ToolResultPart, Field(discriminator="type")]


def _parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class Message(_Stored):
    """One immutable entry of a thread.

    ``content`` is a list of parts; a plain string becomes one text part. ``id`` is a uuid7, made here unless given. ``run_id``,
    ``parent_id``, ``seq`` (the message's number in its thread) and ``created_at`` are set by the store.

    ``metadata`` is the writer's own; nothing of it reaches a model. ``provider_details`` is what an agent's model layer keeps
    of a message beside its content: ids and proofs of a provider, its built-in tools, other media. Stores keep it of what an
    attempt or a checkpointer appends, and drop it from whatever a caller sends (semantics: M5).
    """

    id: str = Field(default_factory=new_id)
    role: Role
    content: Annotated[list[Part], BeforeValidator(_parts)]
    run_id: str | None = None
    parent_id: str | None = None
    seq: int | None = None
    created_at: datetime | None = None
    stop_reason: StopReason | None = None
    usage: Usage | None = None
    metadata: JsonObject = Field(default_factory=dict)
    provider_details: JsonObject | None = None

    @classmethod
    def user(cls, content: str | list[Part], **fields: Any) -> Self:
        """A message of the user."""
        return cls(role="user", content=content, **fields)

    @classmethod
    def assistant(cls, content: str | Sequence[Part], **fields: Any) -> Self:
        """A message of the model."""
        return cls(role="assistant", content=content, **fields)

    @classmethod
    def tool(cls, *results: ToolResultPart, **fields: Any) -> Self:
        """The results of tool calls, in one message."""
        return cls(role="tool", content=list(results), **fields)

    def by_caller(self) -> Self:
        """The message without what only an agent may say (semantics: M5)."""
        return self if self.provider_details is None else self.model_copy(update={"provider_details": None})

    def says(self, other: Message) -> bool:
        """Whether all that a caller can say is the same."""
        told = {"role", "content", "stop_reason", "usage", "metadata"}
        return self.model_dump(include=told) == other.model_dump(include=told)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> list[ToolCallPart]:
        """The tool calls in this message, in order."""
        return [part for part in self.content if isinstance(part, ToolCallPart)]

    @property
    def tool_results(self) -> list[ToolResultPart]:
        """The tool results in this message, in order."""
        return [part for part in self.content if isinstance(part, ToolResultPart)]


def check_message(value: Any) -> Message:
    """Return ``value`` if it is a :class:`Message`, else raise :class:`InvalidInputError`: other libraries have such, too."""
    if not isinstance(value, Message):
        kind = type(value)
        raise InvalidInputError(
            f"a message is a runyard Message, got {kind.__module__}.{kind.__qualname__}; convert it first", field="message"
        )
    return value


def check_named_once(messages: Iterable[Message]) -> None:
    """Raise :class:`InvalidInputError` if two of ``messages`` have one id and different runs; the same twice is one message."""
    runs: dict[str, str | None] = {}
    for message in messages:
        if runs.setdefault(check_message(message).id, message.run_id) != message.run_id:
            raise InvalidInputError(
                f"message id {message.id} is given to two messages; use a fresh one for each", message_id=message.id
            )


def check_fields(message: Message) -> None:
    """Raise :class:`InvalidInputError` if ``message`` has become what no message is: pydantic looks at what one is made of, and
    not at what is assigned, copied over it or constructed."""
    try:
        content = [part.__dict__ for part in message.content]
        _FIELDS.validate_python({**message.__dict__, "content": content})
    except (ValidationError, AttributeError, TypeError) as error:
        found = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
        where = ".".join(map(str, found["loc"])) if found else "content"
        why = found["msg"] if found else "it is made of parts"
        raise InvalidInputError(f"{where} of a message cannot be stored: {why}", field="message") from None


_FIELDS: Final = TypeAdapter(Message)
MESSAGES: Final = TypeAdapter(list[Message])
"""Validates many messages in one call, which is several times faster than one by one."""


def by_run(ordered: Iterable[Message]) -> list[Message]:
    """One run's messages together, at the place of its first; messages without a run stay where they are (design: context)."""
    groups: dict[str, list[Message]] = {}
    order: list[list[Message]] = []
    for message in ordered:
        if message.run_id is not None and message.run_id in groups:
            groups[message.run_id].append(message)
            continue
        group = [message]
        order.append(group)
        if message.run_id is not None:
            groups[message.run_id] = group
    return [message for group in order for message in group]


def open_tool_calls(messages: Iterable[Message]) -> list[str]:
    """Ids of the tool calls in ``messages`` that no later message answers, in order (semantics: R5, F6)."""
    calls: dict[str, None] = {}
    for message in messages:
        for result in message.tool_results:
            calls.pop(result.call_id, None)
        calls.update(dict.fromkeys(call.id for call in message.tool_calls))
    return list(calls)


def cycles_closed(context: Iterable[Message], own: Iterable[Message]) -> bool:
    """Every tool call of a run's ``own`` messages is directly followed by its results (semantics: R5); these may also close
    what its ``context`` left open."""
    before = set(open_tool_calls(context))
    expected: set[str] = set()
    for message in own:
        results = [part.call_id for part in message.tool_results]
        if results:
            if len(set(results)) != len(results) or not set(results) <= expected | before:
                return False
            expected -= set(results)
            before -= set(results)
        elif expected:
            return False
        else:
            before = set()
        calls = [call.id for call in message.tool_calls]
        if calls and (expected or len(set(calls)) != len(calls)):
            return False
        expected |= set(calls)
    return not expected


class ErrorInfo(_Model):
    """Why a run failed: a stable ``code``, a sentence, and JSON details."""

    code: str
    message: str
    details: JsonObject = Field(default_factory=dict)


class RetryPolicy(_Model):
    """Exponential backoff between attempts: ``min(initial * factor ** n, maximum)`` seconds, ± ``jitter`` as a fraction.

    ``errors``: other policies for some classes of errors, by the name of the class or of one of its bases; the closest one
    applies, and None means that such an error is not retried: ``RetryPolicy(errors={"RateLimitError": RetryPolicy(initial=30),
    "ValueError": None})``.
    """

    # One schema for what goes in and what comes out: generators of clients take two of one title for one another.
    model_config = ConfigDict(json_schema_mode_override="validation")

    initial: float = Field(1.0, ge=0, allow_inf_nan=False)
    factor: float = Field(2.0, ge=1, le=1000, allow_inf_nan=False)
    maximum: float = Field(60.0, ge=0, allow_inf_nan=False)
    jitter: float = Field(0.2, ge=0, le=1, allow_inf_nan=False)
    errors: dict[str, RetryPolicy | None] = Field(default_factory=dict)

    def of(self, error: BaseException) -> RetryPolicy | None:
        """The policy for ``error``, or None if it is not to be retried."""
        named = (cls.__name__ for cls in type(error).__mro__ if cls.__name__ in self.errors)
        return self.errors[name] if (name := next(named, None)) is not None else self


class RunOptions(_Model):
    """How a run is executed. ``timeout`` (seconds) bounds one attempt; ``max_attempts`` bounds attempts that ended in an
    error. ``expires_in``: seconds, from when it is due, in which its first attempt has to start. ``webhook``: the URL that is
    told of its end."""

    timeout: float | None = Field(None, gt=0, allow_inf_nan=False)
    max_attempts: int = Field(1, ge=1, le=1000)
    retry: RetryPolicy = Field(default_factory=RetryPolicy)
    multitask_strategy: MultitaskStrategy = "enqueue"
    parallel: bool = False
    webhook: str | None = None
    expires_in: float | None = Field(None, gt=0, le=MAX_EXPIRY, allow_inf_nan=False)

    @field_serializer("webhook", when_used="json-unless-none")
    def _hide(self, url: str, info: SerializationInfo) -> str:
        return masked(url) if info.context and info.context.get(HIDE_WEBHOOKS) else url


class Run(_Model):
    """One prompt → final assistant message cycle, or a fork job, as the store knows it.

    ``expires_at``: it fails if its first attempt has not started by then. ``deleted_at``: its
    content was deleted; what is left says that it was there. ``omitted``: fields that an entry of a list leaves
    empty, because each has more than :data:`LARGE` bytes; the run itself, asked for by its id, has them. Of ``input``,
    ``result`` and ``metadata``. ``damaged``: fields that an entry of a list leaves empty, because what is stored cannot be
    decoded; the run itself, asked for by its id, raises DataCorruptedError.
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
        """True once nothing more can happen to the run but a redrive."""
        return self.status in ENDED


class AttemptInfo(_Model):
    """One attempt of a run, for people. ``outcome``: ``running`` while it lasts; then how the run ended (``completed``,
    ``failed``, ``cancelled``, ``dead``), or why it goes on in another one: ``suspended``, ``retried`` after an error,
    ``released`` (a hand-over), ``lost`` with its worker. ``damaged``: ``error`` if what is stored of it cannot be decoded."""

    fence: int
    worker_id: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str
    error: ErrorInfo | None = None
    damaged: list[str] = Field(default_factory=list)


class Thread(_Model):
    """One conversation.

    ``omitted``: which of ``extra`` and ``config`` an entry of a list leaves empty, because it has more than :data:`LARGE`
    bytes; the thread itself, asked for by its id, has it. ``damaged``: as of a run.
    """

    thread_id: str
    parent_thread_id: str | None = None
    forked_after_run_id: str | None = None
    forked_at_seq: int | None = None
    agent: str | None = None
    title: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    extra: JsonObject = Field(default_factory=dict)
    config: JsonObject = Field(default_factory=dict)
    usage: Usage = Field(default_factory=Usage)
    created_at: datetime
    updated_at: datetime
    omitted: list[str] = Field(default_factory=list)
    damaged: list[str] = Field(default_factory=list)


class Branch(_Model):
    """One leaf of a thread's message tree: the end of a path. ``depth`` counts the messages root..leaf."""

    message_id: str
    depth: int
    created_at: datetime
    run_id: str | None = None
    run_status: RunStatus | None = None


class HitlRequest(_Model):
    """What a run waits for: a question, an approval, or whether a step was done. ``answer_schema``: JSON schema of the answers.

    ``deadline_at`` bounds the wait; ``on_deadline`` says what happens then: ``{"fail": true}`` or ``{"answer": …}``.
    ``timeout``: seconds; the store turns it into ``deadline_at`` by its own clock when it keeps the request. ``thread_id``,
    ``run_id``, ``agent`` (that of the run, None where it names none) and ``created_at`` are set by the store. ``answered_by``:
    who answered; over HTTP the name of the API key. ``on_behalf_of``: for whom, as they say. ``damaged``: as of a run.
    """

    request_id: str = Field(default_factory=new_id)
    kind: Literal["question", "approval", "step"] = "question"
    payload: JsonObject = Field(default_factory=dict)
    answer_schema: JsonObject | None = None
    deadline_at: datetime | None = None
    timeout: float | None = Field(None, ge=0, allow_inf_nan=False)
    on_deadline: JsonObject | None = None
    thread_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    created_at: datetime | None = None
    answer: JsonValue = None
    response_id: str | None = None
    answered_by: str | None = None
    on_behalf_of: str | None = None
    answered_at: datetime | None = None
    damaged: list[str] = Field(default_factory=list)


def check_requests(*requests: HitlRequest) -> None:
    """Raise :class:`InvalidInputError` if one of ``requests`` has an id that is none, or holds more than may be stored."""
    for request in requests:
        check_id(request.request_id, "request_id")
        for name in ("payload", "answer_schema", "on_deadline"):
            check_value(getattr(request, name), name)


class Event(_Model):
    """One event of a run's stream. ``id`` is ``"<fence>-<n>"``; a ``gap`` has none. ``type`` is one of EVENT_TYPES."""

    __slots__ = ("_json",)

    id: str | None
    type: str
    thread_id: str
    run_id: str
    data: JsonObject = Field(default_factory=dict)

    def share(self) -> None:
        """Several readers hold this event: :meth:`to_json` keeps what it made, as long as they do."""
        object.__setattr__(self, "_json", b"")

    def to_json(self) -> bytes:
        """The event as JSON; also of text that is no valid Unicode, which agents may have sent."""
        kept: bytes | None = getattr(self, "_json", None)
        if kept:
            return kept
        try:
            made = self.model_dump_json().encode()
        except (PydanticSerializationError, UnicodeEncodeError):  # a lone surrogate, which only an escape can show
            made = json.dumps(to_jsonable_python(self.__dict__)).encode()
        if kept is not None:
            object.__setattr__(self, "_json", made)
        return made


LimitName = Literal[
    "queued", "queued_per_tenant", "queued_per_lane", "queued_seconds", "message_bytes", "running_per_agent",
    "running_per_tenant",
]  # fmt: skip
LIMITS: Final = get_args(LimitName)


class Limit(_Model):
    """A limit of the deployment (semantics: R16). ``subject``: the tenant or agent of which a limit per tenant or per agent
    speaks; None for each that has none of its own, and for limits without subjects."""

    name: LimitName
    subject: str | None = None
    most: int = Field(ge=0, lt=2**48)

    @model_validator(mode="after")
    def _names_what_it_can(self) -> Self:
        if self.subject is not None and not self.name.endswith(("_per_tenant", "_per_agent")):
            raise ValueError(f"{self.name} has no subject, got {self.subject!r}")
        return self


FeedType = Literal[
    "run.completed", "run.failed", "run.cancelled", "run.dead", "run.suspended",
    "message.stored", "thread.forked", "thread.deleted",
]  # fmt: skip
FEED_TYPES: Final[tuple[FeedType, ...]] = get_args(FeedType)


class FeedEntry(_Model):
    """Something that was committed (semantics: E5). ``cursor`` continues the feed after this entry; ``run_id`` is set where
    ``type`` is a run's."""

    cursor: str
    type: FeedType
    thread_id: str
    run_id: str | None = None
    created_at: datetime


EVENT_TYPES: Final = (
    *("run.queued", "run.started", "run.suspended", "run.resumed", "run.rewound"),
    *("run.completed", "run.failed", "run.cancelled", "run.dead"),
    *("message.started", "message.delta", "message.completed", "tool.started", "tool.completed"),
    *("hitl.requested", "hitl.answered", "gap"),
)
STREAM_ENDS: Final = frozenset({"run.completed", "run.failed", "run.cancelled", "run.dead", "run.suspended"})


@dataclass(frozen=True)
class ForkOnceResult:
    """What a probe answered: ``text`` of its last assistant message, only the ``messages`` it added, why it stopped (F9)."""

    text: str
    messages: list[Message]
    stop_reason: StopReason


@dataclass(frozen=True)
class Candidate(ForkOnceResult):
    """What became of one message of a fan-out. ``thread_id``: its thread, if it has one. ``error``: why it failed."""

    thread_id: str | None = None
    error: ErrorInfo | None = None

    @property
    def ok(self) -> bool:
        """True if the agent came to its end."""
        return self.stop_reason not in ("error", "aborted", "cancelled")


@dataclass(frozen=True)
class ForkManyResult:
    """What a fan-out brought (F11): ``results`` in the order of its messages, ``winner`` as an index into them.

    ``winner`` is None where nobody chose, where no candidate succeeded, or where the judge named none; ``verdict`` is what the
    judge answered, None if it was not asked.
    """

    results: list[Candidate]
    winner: int | None = None
    verdict: ForkOnceResult | None = None


@dataclass
class CheckpointData:
    """A thread as a checkpointer loads it (semantics: R15)."""

    messages: list[Message] = field(default_factory=list)
    extra: JsonObject = field(default_factory=dict)
    parent_thread_id: str | None = None
