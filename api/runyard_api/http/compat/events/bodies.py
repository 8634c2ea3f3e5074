"""The bodies of commands."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from runyard.domain.size_limits import MAX_PARTS
from runyard.models import Message

from ...field_types import MAX_SEQ, Id, few_fields
from ...request_models import MessageInput, PartInput


class _Command(BaseModel):
    model_config = ConfigDict(extra="forbid")

    _check_fields = model_validator(mode="before")(few_fields)


class SendMessage(_Command):
    """A message of the user, which a run answers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"thread_id": "t1", "content": "I am Devansh"}]})

    thread_id: Id
    content: str | Annotated[list[PartInput], Field(fail_fast=True, max_length=MAX_PARTS)]
    run_id: Id | None = Field(
        None, description="Id of your choice. A repetition with the same id and content returns the same run."
    )

    def message(self) -> Message:
        """Return the message."""
        return MessageInput.model_construct(role="user", content=self.content).message()


class ForkThread(_Command):
    """A fork to create."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"source_thread_id": "t1", "event_number": 9}]})

    source_thread_id: Id
    event_number: StrictInt = Field(ge=1, le=MAX_SEQ, description="Number of the last event that the fork inherits.")
    thread_id: Id | None = Field(None, description="Id of the fork. Default: the server makes one.")
    title: str | None = None
