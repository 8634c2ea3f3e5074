"""Messages, their parts and their usage, and the checks of messages before they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from ..errors import InvalidInputError
from .base_models import StrictModel
from .size_limits import JsonObject, JsonValue
from .states import RunStatus
from .validation import check_id, new_id

T = TypeVar("T")

Role = Literal["system", "user", "assistant", "tool"]

StopReason = Literal["stop", "max_tokens", "tool_calls", "content_filter", "refusal", "error", "aborted", "cancelled"]


class Usage(StrictModel):
    """Tokens, cost and time of model calls.

    ``requests``: the number of model requests. ``cost`` is in US dollars. ``seconds``: the time that models and tools took.
    The time in which the run waits for people does not count.
    """

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

    def at_least(self, other: Usage) -> Usage:
        """Return a usage that has, for each field, the larger of the two amounts."""
        return Usage(**{name: max(getattr(self, name), getattr(other, name)) for name in Usage.model_fields})


def check_usage(usage: Usage) -> Usage:
    """Return ``usage`` if every amount is from 0 to less than 2**63. Otherwise raise :class:`InvalidInputError`."""
    for name, amount in usage.__dict__.items():
        kinds = (int, float) if name in ("cost", "seconds") else int
        if not (isinstance(amount, kinds) and 0 <= amount < 2**63):
            raise InvalidInputError(f"usage.{name} must be a number from 0 to 2**63", field=f"usage.{name}")
    return usage


class TextPart(StrictModel):
    type: Literal["text"] = "text"
    text: str


class ThinkingPart(StrictModel):
    """A model's reasoning.

    ``signature``: the provider's signature of the reasoning. Later requests must send this signature unchanged. ``provider``:
    the name of the provider that signed the reasoning. ``redacted``: True if the provider encrypted the reasoning.
    ``signature`` is then the encrypted text.
    """

    type: Literal["thinking"] = "thinking"
    text: str
    signature: str | None = None
    provider: str | None = None
    redacted: bool = False


class ImagePart(StrictModel):
    """An image: either ``url`` or base64 ``data`` with its ``media_type``."""

    type: Literal["image"] = "image"
    url: str | None = None
    data: str | None = None
    media_type: str | None = None


class AudioPart(StrictModel):
    """A sound: either ``url`` or base64 ``data`` with its ``media_type``."""

    type: Literal["audio"] = "audio"
    url: str | None = None
    data: str | None = None
    media_type: str | None = None


class DocumentPart(StrictModel):
    """A text to read, such as a PDF: either ``url`` or base64 ``data`` with its ``media_type``. ``name``: its title."""

    type: Literal["document"] = "document"
    url: str | None = None
    data: str | None = None
    media_type: str | None = None
    name: str | None = None


class FilePart(StrictModel):
    """Any other file, such as a video: ``url``, base64 ``data`` with its ``media_type``, or ``file_id``.

    ``file_id``: the id of a file that was uploaded to ``provider``. The id is never sent to a model, because the same id could
    name another file in the account of the worker's operator.
    """

    type: Literal["file"] = "file"
    url: str | None = None
    data: str | None = None
    media_type: str | None = None
    name: str | None = None
    file_id: str | None = None
    provider: str | None = None


class ToolCallPart(StrictModel):
    """A tool call of the model. The ``call_id`` of its result is the ``id`` of this call."""

    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    arguments: JsonObject = Field(default_factory=dict)


MediaPart: TypeAlias = ImagePart | AudioPart | DocumentPart | FilePart

ResultPart = Annotated[TextPart | MediaPart, Field(discriminator="type")]

RESULT_PARTS: Final[TypeAdapter[list[TextPart | MediaPart]]] = TypeAdapter(Annotated[list[ResultPart], Field(fail_fast=True)])


class ToolResultPart(StrictModel):
    """The result of the tool call ``call_id``. ``name``: the name of the tool, if the writer gave it.

    ``content``: a JSON value. ``has_parts``: True if ``content`` is a list of text, image, audio, document and file parts.
    """

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    content: JsonValue = None
    is_error: bool = False
    name: str | None = None
    has_parts: bool = False

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.has_parts:
            RESULT_PARTS.validate_python(self.content, extra="ignore")  # stored parts may have fields of a newer version
        return self

    @property
    def parts(self) -> list[TextPart | MediaPart]:
        """The parts in ``content``. The list is empty if ``has_parts`` is False."""
        return RESULT_PARTS.validate_python(self.content, extra="ignore") if self.has_parts else []


Part = Annotated[
    TextPart | ThinkingPart | ImagePart | AudioPart | DocumentPart | FilePart | ToolCallPart | ToolResultPart,
    Field(discriminator="type"),
]


class Source(StrictModel):
    """The original JSON of a message that a client sent in the format of a provider.

    ``format``: the name of the message format of ``blob``, such as ``openai`` or ``anthropic``. The adapter of the OpenAI
    Agents SDK uses ``openai_agents_item`` for an item that corresponds to no message. ``blob``: the JSON object that was sent,
    or the list of objects.
    """

    format: str = Field(max_length=64)
    blob: JsonValue


def _parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class Message(StrictModel):
    """One immutable entry of a thread. The constructor refuses unknown fields. Stores ignore fields of a newer version.

    ``content``: a list of parts. A plain string becomes one text part. ``id``: a UUID, by default a new uuid7. The store
    sets ``run_id``, ``parent_id``, ``seq`` (the message's number in its thread) and ``created_at``. A read of a thread's path
    sets ``run_status``, the present status of the message's run.

    ``metadata``: a JSON object of the writer. No model sees this object. ``provider_details``: further data of the provider,
    for example ids, signatures, calls of built-in tools, and other media. Only the adapter of the framework reads this data.
    Stores keep the ``provider_details`` of messages that an attempt or a checkpointer appends. Stores drop the
    ``provider_details`` of messages that a client sends (M5). ``source``: the original of a message that was stored in the
    format of a provider. No model sees the original.
    """

    id: str = Field(default_factory=new_id)
    role: Role
    content: Annotated[list[Part], BeforeValidator(_parts)]
    run_id: str | None = None
    parent_id: str | None = None
    seq: int | None = None
    created_at: datetime | None = None
    run_status: RunStatus | None = None
    stop_reason: StopReason | None = None
    usage: Usage | None = None
    metadata: JsonObject = Field(default_factory=dict)
    provider_details: JsonObject | None = None
    source: Source | None = None

    @classmethod
    def user(cls, content: str | list[Part], **fields: Any) -> Self:
        """Return a message of the user."""
        return cls(role="user", content=content, **fields)

    @classmethod
    def assistant(cls, content: str | Sequence[Part], **fields: Any) -> Self:
        """Return a message of the model."""
        return cls(role="assistant", content=content, **fields)

    @classmethod
    def tool(cls, *results: ToolResultPart, **fields: Any) -> Self:
        """Return one message with the results of tool calls."""
        return cls(role="tool", content=list(results), **fields)

    def by_caller(self) -> Self:
        """Return the message without ``provider_details``. Only an agent may write ``provider_details`` (M5)."""
        return self if self.provider_details is None else self.model_copy(update={"provider_details": None})

    def says(self, other: Message) -> bool:
        """Return whether ``other`` has the same values as this message in all fields that a client can set."""
        compared = {"role", "content", "stop_reason", "usage", "metadata", "source"}
        return self.model_dump(include=compared) == other.model_dump(include=compared)

    @property
    def text(self) -> str:
        """The text parts as one text."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> list[ToolCallPart]:
        """The tool calls in this message, in order."""
        return [part for part in self.content if isinstance(part, ToolCallPart)]

    @property
    def tool_results(self) -> list[ToolResultPart]:
        """The tool results in this message, in order."""
        return [part for part in self.content if isinstance(part, ToolResultPart)]


def model_name(message: Message) -> str:
    """Return the name of the model that wrote ``message``, or an empty text if the message has no such name.

    Each adapter of a framework writes its data under a separate key in ``provider_details``. The data of pydantic-ai has the
    name of the model under ``response.model_name``. The data of cubeloop has the name under ``model_id``. The data of other
    frameworks has the name under ``model``.
    """
    for kept in (message.provider_details or {}).values():
        if isinstance(kept, dict):
            response = kept.get("response")
            named = response.get("model_name") if isinstance(response, dict) else kept.get("model") or kept.get("model_id")
            if isinstance(named, str):
                return named
    return ""


def check_message(value: Any) -> Message:
    """Return ``value`` if it is a :class:`Message`. Raise :class:`InvalidInputError` for any other object."""
    if not isinstance(value, Message):
        kind = type(value)
        raise InvalidInputError(
            f"a message is a runyard Message, got {kind.__module__}.{kind.__qualname__}; convert it first", field="message"
        )
    return value


def check_named_once(messages: Iterable[Message]) -> None:
    """Raise :class:`InvalidInputError` if messages of different runs have the same id, or if a run id is not valid."""
    runs: dict[str, str | None] = {}
    for message in messages:
        if check_message(message).run_id is not None:
            check_id(message.run_id, "run_id")
        if runs.setdefault(message.id, message.run_id) != message.run_id:
            raise InvalidInputError(
                f"two messages have the id {message.id}; give one of them another id", message_id=message.id
            )


def check_fields(message: Message) -> None:
    """Raise :class:`InvalidInputError` if a field of ``message`` has a wrong type or value.

    Pydantic validates a message when its constructor is called. Later assignments and copies are not validated. This function
    also refuses unknown fields in the parts of a tool result.
    """
    try:
        content = [part.__dict__ for part in message.content]
        _FIELDS.validate_python({**message.__dict__, "content": content})
        for part in message.tool_results:
            if part.has_parts:
                RESULT_PARTS.validate_python(part.content)
    except (ValidationError, AttributeError, TypeError) as error:
        found = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
        where = ".".join(map(str, found["loc"])) if found else "content"
        why = found["msg"] if found else "content is a list of parts"
        raise InvalidInputError(f"{where} of a message cannot be stored: {why}", field="message") from None


_FIELDS: Final = TypeAdapter(Message)

_MESSAGES: Final = TypeAdapter(list[Message])


def stored_messages(fields: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return messages made from stored fields. Ignore fields of a newer version. Raise pydantic's ValidationError.

    One call for many messages is several times faster than one call per message.
    """
    return _MESSAGES.validate_python(fields, extra="ignore")


def by_run(ordered: Iterable[T], run_of: Callable[[T], str | None] = attrgetter("run_id")) -> list[T]:
    """Return ``ordered``, grouped by run (S5). Each group is at the place of the run's first message.

    Messages without a run keep their places. ``run_of``: a function that returns the run id of a message. By default, this is
    the message's ``run_id``.
    """
    found = list(ordered)
    runs = [run_id for run_id, _ in groupby(map(run_of, found)) if run_id is not None]
    if len(set(runs)) == len(runs):
        return found  # no run is between the messages of another run
    groups: dict[str, list[T]] = {}
    order: list[list[T]] = []
    for message in found:
        run_id = run_of(message)
        if run_id is not None and run_id in groups:
            groups[run_id].append(message)
            continue
        group = [message]
        order.append(group)
        if run_id is not None:
            groups[run_id] = group
    return [message for group in order for message in group]
