"""What requests hold."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)

from runyard.client.fan_out import MAX_CANDIDATES, MAX_PARALLEL
from runyard.client.webhooks import DEFAULT_OVERLAP_SECONDS, MAX_OVERLAP_SECONDS
from runyard.domain.json_bounds import MAX_PARTS
from runyard.models import (
    ImagePart,
    JsonObject,
    Message,
    MultitaskStrategy,
    Part,
    Priority,
    RetryPolicy,
    StopAt,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    new_id,
)

from .field_types import MAX_SEQ, YEAR_SECONDS, Id, Moment, Name, Tags, Uuid, few, few_fields


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    _check_fields = model_validator(mode="before")(few_fields)


class TextInput(TextPart, _Request):
    type: Literal["text"]


class ThinkingInput(ThinkingPart, _Request):
    type: Literal["thinking"]


class ImageInput(ImagePart, _Request):
    type: Literal["image"]


class ToolCallInput(ToolCallPart, _Request):
    type: Literal["tool_call"]


class ToolResultInput(ToolResultPart, _Request):
    type: Literal["tool_result"]


PartInput = Annotated[TextInput | ThinkingInput | ImageInput | ToolCallInput | ToolResultInput, Field(discriminator="type")]


_PARTS: Final[dict[str, type[Part]]] = {
    "text": TextPart,
    "thinking": ThinkingPart,
    "image": ImagePart,
    "tool_call": ToolCallPart,
    "tool_result": ToolResultPart,
}


class MessageInput(_Request):
    """A message to store. ``id``: yours, a UUID; without it one is made."""

    id: Uuid | None = None
    role: Literal["system", "user", "assistant", "tool"] = "user"
    content: str | Annotated[list[PartInput], Field(fail_fast=True, max_length=MAX_PARTS)]
    stop_reason: StopReason | None = None
    metadata: JsonObject = Field(default_factory=dict)

    def message(self) -> Message:
        """As the client takes it. Not validated once more: that would take several times as long as the first time."""
        content = self.content
        parts: list[Part] = [TextPart(text=content)] if isinstance(content, str) else [_part(part) for part in content]
        return Message.model_construct(
            id=self.id or new_id(), role=self.role, content=parts, stop_reason=self.stop_reason, metadata=self.metadata
        )


def _part(part: PartInput) -> Part:
    return _PARTS[part.type].model_construct(**part.__dict__)


def as_message(message: str | MessageInput | None) -> str | Message | None:
    """What a body says as the client takes it."""
    return message.message() if isinstance(message, MessageInput) else message


class CreateThread(_Request):
    """A thread to make. Not needed before a prompt, which makes its thread by itself."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"thread_id": "support-4711", "title": "Refund", "tags": {"team": "eu"}}]}
    )

    thread_id: Id | None = None
    agent: Name | None = None
    title: str | None = None
    tags: Tags = Field(default_factory=dict)
    extra: JsonObject = Field(default_factory=dict)
    config: JsonObject = Field(default_factory=dict, description="Forks copy it, by value.")


class UpdateThread(_Request):
    """What is given is changed, what is null is cleared (RFC 7396). ``tags`` replaces all tags; ``extra`` is merged at its top
    level, where a key with null is removed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"title": "Refund of order 12"}]})

    title: str | None = None
    tags: Tags | None = None
    extra: JsonObject | None = None

    def given(self) -> dict[str, Any]:
        """The fields that the body names."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class _Execution(_Request):
    """How a run is executed."""

    run_id: Id | None = Field(None, description="Yours: the same id with the same content again is the same run.")
    agent: Name | None = None
    queue: Name | None = None
    parallel: StrictBool = Field(False, description="On a branch and lane of its own.")
    priority: Priority = "normal"
    run_at: Moment | None = None
    delay: StrictFloat | None = Field(None, ge=0, lt=10 * YEAR_SECONDS, description="Seconds; instead of run_at.")
    timeout: StrictFloat | None = Field(None, gt=0, lt=YEAR_SECONDS, description="Seconds for one attempt.")
    expires_in: StrictFloat | None = Field(
        None, gt=0, le=10 * YEAR_SECONDS, description="Seconds, from when it is due; a run that has not started by then fails."
    )
    max_attempts: StrictInt = Field(1, ge=1, le=1000)
    retry: Annotated[RetryPolicy | None, BeforeValidator(few)] = None
    multitask_strategy: MultitaskStrategy = "enqueue"
    metadata: JsonObject = Field(default_factory=dict)
    webhook: str | None = Field(
        None, max_length=2048, pattern=r"^https?://[^/?#@\s]+([/?][^#\s]*)?$", description="Told when the run ends."
    )

    def execution(self) -> dict[str, Any]:
        """The arguments of ``client.enqueue`` that these fields are."""
        return {name: getattr(self, name) for name in _Execution.model_fields if name != "run_id"}


class Prompt(_Execution):
    """A prompt. ``message`` null continues from the last message."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": "hello", "run_id": "order-12"}]})

    message: str | MessageInput | None
    parent_id: Uuid | None = Field(None, description="Branch at this message.")


class StreamedPrompt(Prompt):
    """A prompt whose events are the answer."""

    on_disconnect: Literal["continue", "cancel"] = Field("continue", description="What becomes of the run if you leave.")


class Regenerate(_Execution):
    """Answer a user message once more, on a branch of its own."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message_id": None}]})

    message_id: Uuid | None = Field(None, description="The answer to replace, or the user message; null: the newest.")
    message: str | MessageInput | None = Field(None, description="Edit and resend: takes the place of the user message.")


class Cancel(_Request):
    """How to cancel."""

    keep: StrictBool = Field(False, description="What the run said so far stays in the conversation.")


class Respond(_Request):
    """An answer to a question or an approval."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"answer": "blue", "response_id": "click-1"}]})

    answer: JsonValue
    response_id: Id | None = Field(None, description="Yours, to make a repetition safe.")
    on_behalf_of: Name | None = Field(
        None, description="For whom, by your own account; `answered_by` of the request is the name of the API key."
    )


class RespondOnThread(Respond):
    """An answer; ``request_id`` null takes the thread's only pending request."""

    request_id: Id | None = None


class Abort(_Request):
    """Why the run that waits for a human is given up."""

    reason: str = Field("no answer is to be expected", min_length=1, max_length=2000, description="The model will read it.")
    run_id: Id | None = Field(None, description="Which run, where several wait.")


class RotateSecret(_Request):
    """How to change over to another secret."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"overlap": 3600}]})

    overlap: StrictFloat = Field(
        DEFAULT_OVERLAP_SECONDS, ge=0, le=MAX_OVERLAP_SECONDS, description="Seconds for which the one before signs too."
    )
    rotation_id: Id | None = Field(None, description="Yours, to make a repetition safe.")


class StoreMessage(_Request):
    """A message without a run; the next run sees it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": {"role": "user", "content": "by the way"}}]})

    message: str | MessageInput
    parent_id: Uuid | None = Field(None, description="Branch at this message; null: after the newest.")
    expected_leaf: Uuid | None = Field(None, description="Refuse if the last message is another.")


class _Cut(_Request):
    after_run_id: Id | None = Field(None, description="Cut after this run; without any cut: after the last completed one.")


class Fork(_Cut):
    """A thread that starts from a snapshot of this one."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"new": "support-4711-b", "after_run_id": "order-12", "message": "and in green?"}]}
    )

    new: Id | None = Field(None, description="The new thread's id.")
    at_message_id: Uuid | None = None
    at_seq: StrictInt | None = Field(None, ge=0, le=MAX_SEQ)
    repair: StrictBool = Field(False, description="Close open tool calls at the cut with error results.")
    metadata: JsonObject | None = None
    title: str | None = None
    tags: Tags = Field(default_factory=dict)
    agent: Name | None = None
    reset_usage: StrictBool = True
    message: str | MessageInput | None = Field(None, description="The fork's first prompt, in the same call.")
    run_id: Id | None = Field(None, description="Of that prompt.")
    wait: StrictBool = Field(
        False, description="If the run of the cut has not ended: accept a job that forks when it completes."
    )
    job_id: Id | None = Field(None, description="The job's run id, with `wait`.")


class Probe(_Cut):
    """One question to a snapshot; nothing is written to any thread."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": "what if it rains?"}]})

    message: str | MessageInput
    run_id: Id | None = Field(None, description="The job's own id, so that a repetition gets the same answer.")
    agent: Name | None = None
    timeout: StrictFloat | None = Field(None, gt=0, lt=YEAR_SECONDS, description="Seconds for the probe.")


class FanOut(_Cut):
    """Several messages tried on the same snapshot, as one job."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"messages": ["in verse", "in prose"], "judge": "critic"}]})

    messages: list[str | MessageInput] = Field(min_length=1, fail_fast=True, max_length=MAX_CANDIDATES)
    threads: StrictBool = Field(False, description="Each gets a fork of its own, which stays; else each is a probe.")
    stop: StopAt = Field("all", description="`first` takes the first that succeeds and cancels the others.")
    judge: Name | None = Field(None, description="The agent that chooses among those that succeeded.")
    max_parallel: StrictInt = Field(MAX_PARALLEL, ge=1, le=MAX_CANDIDATES)
    agent: Name | None = None
    run_id: Id | None = Field(None, description="The job's own id, so that a repetition gets the same answer.")
    timeout: StrictFloat | None = Field(
        None, gt=0, lt=YEAR_SECONDS, description="Seconds for each candidate, and for the judge."
    )


class TokenRequest(_Request):
    """What a stream token is for: one run's stream, or without ``run_id`` all streams of the thread."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"thread_id": "support-4711", "lifetime": 300}]})

    thread_id: Id
    run_id: Id | None = None
    lifetime: StrictFloat = Field(300.0, gt=0, description="Seconds; the server has an upper bound.")
