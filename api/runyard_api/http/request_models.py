"""The bodies of requests."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    SkipValidation,
    StrictBool,
    StrictFloat,
    StrictInt,
    Tag,
    model_validator,
)

from runyard.client.fan_out import MAX_PARALLEL
from runyard.domain.fan_outs import MAX_CANDIDATES, MAX_PARALLEL_CANDIDATES
from runyard.domain.size_limits import MAX_PARTS
from runyard.formats.conversion import Blob, Format
from runyard.models import (
    ROOT_ID,
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    JsonObject,
    Message,
    MultitaskStrategy,
    Part,
    Priority,
    RetryPolicy,
    Source,
    StopAt,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    new_id,
)

from .field_types import MAX_SEQ, YEAR_SECONDS, Id, Moment, Name, Tags, Uuid, WebhookUrl, few, few_fields


class StrictBody(BaseModel):
    """A body that may have only the fields of its class."""

    model_config = ConfigDict(extra="forbid")

    _check_fields = model_validator(mode="before")(few_fields)


class TextInput(TextPart, StrictBody):
    type: Literal["text"]


class ThinkingInput(ThinkingPart, StrictBody):
    type: Literal["thinking"]


class ImageInput(ImagePart, StrictBody):
    type: Literal["image"]


class AudioInput(AudioPart, StrictBody):
    type: Literal["audio"]


class DocumentInput(DocumentPart, StrictBody):
    type: Literal["document"]


class FileInput(FilePart, StrictBody):
    type: Literal["file"]


class ToolCallInput(ToolCallPart, StrictBody):
    type: Literal["tool_call"]


class ToolResultInput(ToolResultPart, StrictBody):
    type: Literal["tool_result"]


PartInput = Annotated[
    TextInput | ThinkingInput | ImageInput | AudioInput | DocumentInput | FileInput | ToolCallInput | ToolResultInput,
    Field(discriminator="type"),
]


_PARTS: Final[dict[str, type[Part]]] = {
    "text": TextPart,
    "thinking": ThinkingPart,
    "image": ImagePart,
    "audio": AudioPart,
    "document": DocumentPart,
    "file": FilePart,
    "tool_call": ToolCallPart,
    "tool_result": ToolResultPart,
}


class MessageInput(StrictBody):
    """A message to store. ``id``: a UUID of your choice. Without it the server generates one."""

    id: Uuid | None = None
    role: Literal["system", "user", "assistant", "tool"] = "user"
    content: str | Annotated[list[PartInput], Field(fail_fast=True, max_length=MAX_PARTS)]
    stop_reason: StopReason | None = None
    metadata: JsonObject = Field(default_factory=dict)
    source: Source | None = Field(None, description="Original of a message that was converted from another format.")

    def message(self) -> Message:
        """Return this body as a message. The values are already validated, and a second validation would be slow."""
        content = self.content
        parts: list[Part] = [TextPart(text=content)] if isinstance(content, str) else [_part(part) for part in content]
        return Message.model_construct(
            id=self.id or new_id(),
            role=self.role,
            content=parts,
            stop_reason=self.stop_reason,
            metadata=self.metadata,
            source=self.source,
        )


def _part(part: PartInput) -> Part:
    return _PARTS[part.type].model_construct(**part.__dict__)


def as_message(message: str | MessageInput | None) -> str | Message | None:
    """Return the message of a body as an argument for the client's methods."""
    return message.message() if isinstance(message, MessageInput) else message


class CreateThread(StrictBody):
    """A thread to create. A prompt creates its thread if the thread does not exist."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"thread_id": "support-4711", "title": "Refund", "tags": {"team": "eu"}}]}
    )

    thread_id: Id | None = None
    agent: Name | None = None
    title: str | None = None
    tags: Tags = Field(default_factory=dict)
    extra: JsonObject = Field(default_factory=dict)
    config: JsonObject = Field(default_factory=dict, description="Agents read the config. A fork gets a copy of it.")


class UpdateThread(StrictBody):
    """A change of a thread (RFC 7396). ``agent`` applies to later prompts that name no agent. An omitted field stays unchanged.
    Null clears a field. ``tags`` replaces all tags. ``extra`` and ``config`` are merged at their top level. In them, a key
    with the value null is removed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"title": "Refund of order 12"}]})

    agent: Name | None = None
    title: str | None = None
    tags: Tags | None = None
    extra: JsonObject | None = None
    config: JsonObject | None = None

    def given(self) -> dict[str, Any]:
        """Return the fields that the body contains, with their values."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class _Execution(StrictBody):
    """How a run is executed."""

    run_id: Id | None = Field(None, description="Id of your choice. The same request with the same id returns its run.")
    agent: Name | None = None
    queue: Name | None = None
    parallel: StrictBool = Field(False, description="Execute the run on its own branch and lane.")
    priority: Priority = "normal"
    run_at: Moment | None = None
    delay: StrictFloat | None = Field(
        None, ge=0, lt=10 * YEAR_SECONDS, description="Seconds until the run is due, instead of `run_at`."
    )
    timeout: StrictFloat | None = Field(None, gt=0, lt=YEAR_SECONDS, description="Maximum seconds of one attempt.")
    expires_in: StrictFloat | None = Field(
        None,
        gt=0,
        le=10 * YEAR_SECONDS,
        description="Seconds after the due time within which the run must start. Otherwise the run fails.",
    )
    max_attempts: StrictInt | None = Field(
        None,
        ge=1,
        le=1000,
        description="Number of errors after which the run fails. Crashes, releases and questions do not count as errors. "
        "Null: temporary errors of a provider are retried, any other error fails the run.",
    )
    retry: Annotated[RetryPolicy | None, BeforeValidator(few)] = None
    multitask_strategy: MultitaskStrategy = "enqueue"
    metadata: JsonObject = Field(default_factory=dict)
    webhook: WebhookUrl | None = Field(None, description="URL that gets a signed POST when the run has ended.")

    def execution(self) -> dict[str, Any]:
        """Return these fields as arguments of ``client.enqueue``."""
        return {name: getattr(self, name) for name in _Execution.model_fields if name != "run_id"}


class Prompt(_Execution):
    """A prompt. If ``message`` is null, the run continues from the last message."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": "hello", "run_id": "order-12"}]})

    message: str | MessageInput | None
    parent_id: Uuid | None = Field(None, description=f"Id of the message to branch at. {ROOT_ID}: begin another tree.")


class StreamedPrompt(Prompt):
    """A prompt. The response is the stream of its run's events."""

    on_disconnect: Literal["continue", "cancel"] = Field(
        "continue", description="Continue or cancel the run if the client disconnects."
    )


class Regenerate(_Execution):
    """Answer a user message again, on a new branch."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message_id": None}]})

    message_id: Uuid | None = Field(None, description="Id of the answer to replace, or of the user message. Null: the newest.")
    message: str | MessageInput | None = Field(None, description="New content in place of the user message (edit and resend).")


class Cancel(StrictBody):
    """The options of a cancel."""

    keep: StrictBool = Field(False, description="Keep the messages of the run in the conversation.")


class Respond(StrictBody):
    """An answer to a question or an approval."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"answer": "blue", "response_id": "click-1"}]})

    answer: JsonValue
    response_id: Id | None = Field(None, description="Id of your choice that makes a repetition safe.")
    on_behalf_of: Name | None = Field(
        None,
        description="Person for whom you answer, unchecked. `answered_by` of the request is the name of the API key.",
    )


class RespondOnThread(Respond):
    """An answer to a HITL request. Without ``request_id``, it answers the only pending request of the thread."""

    request_id: Id | None = None


class SendSignal(StrictBody):
    """A signal to a thread. The run that waits for ``name`` takes it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "paid", "value": {"order": 7}, "signal_id": "order-7"}]})
    name: Id
    value: JsonValue = None
    signal_id: Id | None = Field(None, description="Id that makes a repetition safe.")


class Abort(StrictBody):
    """The end of a run that waits for a human."""

    reason: str = Field("no answer is expected", min_length=1, max_length=2000, description="The model will read it.")
    run_id: Id | None = Field(None, description="Id of the run, if several wait.")


class _Stored(StrictBody):
    parent_id: Uuid | None = Field(
        None,
        description="Id of the message to branch at. Null: store after the newest message. "
        f"{ROOT_ID}: store another first message.",
    )
    expected_leaf: Uuid | None = Field(
        None, description="Expected id of the last message. If another message is the last one, the request is refused."
    )


class StoreMessage(_Stored):
    """A message without a run. The next run sees it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": {"role": "user", "content": "by the way"}}]})

    message: str | MessageInput


class StoreBlob(_Stored):
    """A message without a run, as a provider's JSON. The next run sees it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"format": "openai", "blob": {"role": "user", "content": "by the way"}}]}
    )

    format: Format
    blob: Blob = Field(
        description="One message in the format. A list if the format has several objects for one message, such as a tool "
        "message for each result."
    )


def _kind_of_store(body: Any) -> str:
    given = body if isinstance(body, dict) else getattr(body, "__dict__", {})
    return "blob" if "blob" in given or "format" in given else "message"


StoreBody = Annotated[
    Annotated[StoreMessage, Tag("message")] | Annotated[StoreBlob, Tag("blob")], Discriminator(_kind_of_store)
]


class SetLabel(StrictBody):
    """The branch that gets a label."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}]})

    message_id: Uuid | None = Field(None, description="Id of a message of the branch. Default: the branch of the head.")


class _Cut(StrictBody):
    after_run_id: Id | None = Field(None, description="Id of the run to cut after. Without any cut: the last completed run.")


class Fork(_Cut):
    """A new thread that starts from a snapshot of the thread."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"new_thread_id": "support-4711-b", "after_run_id": "order-12", "message": "and in green?"}]
        }
    )

    new_thread_id: Id | None = Field(None, description="Id of the new thread.")
    at_message_id: Uuid | None = None
    at_seq: StrictInt | None = Field(None, ge=0, le=MAX_SEQ)
    repair: StrictBool = Field(False, description="Close open tool calls at the cut with error results.")
    metadata: JsonObject | None = None
    title: str | None = None
    tags: Tags = Field(default_factory=dict)
    agent: Name | None = None
    reset_usage: StrictBool = True
    message: str | MessageInput | None = Field(
        None, description="First prompt of the new thread. With `wait`, the fork job enqueues it."
    )
    run_id: Id | None = Field(None, description="Run id of the first prompt. Only with `message`.")
    wait: StrictBool = Field(False, description="Accept a fork job. It makes the fork when the run at the cut has completed.")
    job_id: Id | None = Field(None, description="Run id of the fork job, with `wait`.")


class Probe(_Cut):
    """One question to a snapshot. Nothing is written to a thread."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": "what if it rains?"}]})

    message: str | MessageInput
    run_id: Id | None = Field(None, description="Id of the fork job. A repetition with the same id gets the same answer.")
    agent: Name | None = None
    timeout: StrictFloat | None = Field(None, gt=0, lt=YEAR_SECONDS, description="Maximum seconds of the probe.")


class FanOut(_Cut):
    """Several messages to try on the same snapshot, as one fork job."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"messages": ["in verse", "in prose"], "judge": "critic"}]})

    # The route checks each message. The event loop runs between them.
    messages: list[SkipValidation[str | MessageInput]] = Field(min_length=1, fail_fast=True, max_length=MAX_CANDIDATES)
    threads: StrictBool = Field(
        False, description="True: run each message on a fork that is kept. False: each message is a probe."
    )
    stop: StopAt = Field("all", description="`all`: wait for all. `first`: take the first that succeeds and cancel the others.")
    judge: Name | None = Field(None, description="Name of the agent that chooses among the successful answers.")
    max_parallel: StrictInt = Field(MAX_PARALLEL, ge=1, le=MAX_PARALLEL_CANDIDATES)
    agent: Name | None = None
    run_id: Id | None = Field(None, description="Id of the fork job. A repetition with the same id gets the same answer.")
    timeout: StrictFloat | None = Field(
        None, gt=0, lt=YEAR_SECONDS, description="Maximum seconds of each candidate, and of the judge."
    )


class TokenRequest(StrictBody):
    """A stream token to create. The token opens the stream of one run. Without ``run_id``, it opens all streams of the
    thread."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"thread_id": "support-4711", "lifetime": 300}]})

    thread_id: Id
    run_id: Id | None = None
    lifetime: StrictFloat = Field(
        300.0, gt=0, description="Seconds for which the token is valid. The server has an upper bound."
    )
