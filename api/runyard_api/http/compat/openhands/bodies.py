"""The body of a fork, and the conversation that a fork returns."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, model_validator

from runyard.domain.validation import check_message_id, check_uuid
from runyard.models import JsonObject, Thread, Usage

from ...field_types import Tags, few_fields

MAX_TITLE_CHARACTERS: Final = 200


def _new_id(value: str) -> str:
    return check_uuid(value, "id")


def _event_id(value: str) -> str:
    return check_message_id(value, "from_event_id")


class ForkConversation(BaseModel):
    """A fork of a conversation. Every field is optional."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"title": "Debug investigation", "tags": {"purpose": "debugging"}, "reset_metrics": True}]
        },
    )

    id: Annotated[str, AfterValidator(_new_id)] | None = Field(
        None, description="UUID of the fork. Default: the server makes one.", json_schema_extra={"format": "uuid"}
    )
    title: str | None = Field(
        None,
        max_length=MAX_TITLE_CHARACTERS,
        description="Title of the fork. The fork also has the tag `title` with this text.",
    )
    tags: Tags | None = None
    reset_metrics: StrictBool = Field(
        True, description="Tokens and cost start at zero. False: they start at those of the source."
    )
    from_event_id: Annotated[str, AfterValidator(_event_id)] | None = Field(
        None,
        description="Id of the last message that the fork shows. Default: the last message of the last completed run.",
        json_schema_extra={"format": "uuid"},
    )

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and "agent" in value:
            raise ValueError("agent cannot be changed here; use POST /v1/threads/{id}/fork to fork with another agent")
        return few_fields(value)


class TokenUsage(BaseModel):
    """Tokens of model calls."""

    model: str = ""
    prompt_tokens: int
    completion_tokens: int


class Metrics(BaseModel):
    """Cost and tokens of the runs of a conversation. ``accumulated_cost`` is in US dollars."""

    model_name: str = "default"
    accumulated_cost: float
    accumulated_token_usage: TokenUsage

    @classmethod
    def of(cls, usage: Usage) -> Metrics:
        """Return ``usage`` as metrics."""
        tokens = TokenUsage(prompt_tokens=usage.input_tokens, completion_tokens=usage.output_tokens)
        return cls(accumulated_cost=usage.cost, accumulated_token_usage=tokens)


class Stats(BaseModel):
    """The metrics of each model of a conversation. The threads of runyard have one entry, ``default``."""

    usage_to_metrics: dict[str, Metrics]


class Model(BaseModel):
    """The model of an agent. ``model``: the name of the thread's agent, or ``default`` for a thread without an agent."""

    model: str
    usage_id: str = "default"


class AgentInfo(BaseModel):
    """The agent of a conversation."""

    kind: Literal["Agent"] = "Agent"
    llm: Model
    tools: list[JsonObject] = Field(default_factory=list)


class ConversationInfo(BaseModel):
    """A conversation. ``workspace``, ``confirmation_policy`` and ``security_analyzer`` are fields of the thread's config."""

    id: str = Field(description="Id of the thread.", json_schema_extra={"format": "uuid"})
    title: str | None
    tags: dict[str, str]
    execution_status: Literal["idle"] = Field("idle", description="No run of a fork has begun.")
    agent: AgentInfo
    workspace: JsonObject
    confirmation_policy: JsonObject
    security_analyzer: JsonObject | None
    max_iterations: int = 500
    stats: Stats
    metrics: Metrics
    forked_from_conversation_id: str | None = Field(description="Id of the source.")
    forked_from_event_id: str | None = Field(description="The `from_event_id` of the request.")
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, fork: Thread, from_event_id: str | None) -> ConversationInfo:
        """Return ``fork`` as a conversation. ``from_event_id``: the message at the cut, or None if the request named no
        message."""
        metrics = Metrics.of(fork.usage)
        return cls(
            id=fork.thread_id,
            title=fork.title,
            tags=fork.tags,
            agent=AgentInfo(llm=Model(model=fork.agent or "default")),
            workspace=_workspace(fork.config.get("workspace")),
            confirmation_policy=_kind(fork.config.get("confirmation_policy")) or {"kind": "NeverConfirm"},
            security_analyzer=_kind(fork.config.get("security_analyzer")),
            stats=Stats(usage_to_metrics={"default": metrics}),
            metrics=metrics,
            forked_from_conversation_id=fork.parent_thread_id,
            forked_from_event_id=from_event_id,
            created_at=fork.created_at,
            updated_at=fork.updated_at,
        )


def _kind(value: Any) -> JsonObject | None:
    """Return ``value`` if it is an object with the name of its OpenHands class, else None."""
    return value if isinstance(value, dict) and isinstance(value.get("kind"), str) else None


def _workspace(value: Any) -> JsonObject:
    """Return the workspace in the form of the API. ``value``: an object with a ``kind``, or the path of a local directory."""
    return _kind(value) or {"kind": "LocalWorkspace", "working_dir": value if isinstance(value, str) else ""}
