"""The answers: threads with their lineage, and messages with their event numbers."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from runyard.domain.states import RunStatus
from runyard.models import JsonObject, Message, Part, Role, TextPart, Thread


class EventThread(BaseModel):
    """A thread. A fork names the thread from which it was forked, and the number of the last inherited event."""

    thread_id: str
    title: str | None
    agent: str | None
    parent_thread_id: str | None
    from_event_number: int | None = Field(
        description="Number of the last inherited event. Null for a thread without inherited events."
    )
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, thread: Thread) -> EventThread:
        """Return ``thread`` as an answer."""
        kept = {name: getattr(thread, name) for name in cls.model_fields if name != "from_event_number"}
        return cls.model_construct(**kept, from_event_number=thread.forked_at_seq)


class EventThreadPage(BaseModel):
    """A page of threads, the oldest first. ``next``: the cursor of the next page, or null at the end."""

    items: list[EventThread]
    next: str | None


class EventMessage(BaseModel):
    """A message of a thread, which this API calls an event. ``run_id``: the run that wrote the message, or null."""

    event_number: int = Field(description="The message's `seq`. It grows along a history, with gaps.")
    message_id: str
    role: Role
    content: str | list[Part] = Field(description="The text of a message that has only text, otherwise its parts.")
    run_id: str | None
    run_status: RunStatus | None
    metadata: JsonObject
    created_at: datetime

    @classmethod
    def of(cls, message: Message) -> EventMessage:
        """Return a message that was read from a thread."""
        assert message.seq is not None and message.created_at is not None
        only_text = len(message.content) == 1 and isinstance(message.content[0], TextPart)
        return cls.model_construct(
            event_number=message.seq,
            message_id=message.id,
            role=message.role,
            content=message.text if only_text else message.content,
            run_id=message.run_id,
            run_status=message.run_status,
            metadata=message.metadata,
            created_at=message.created_at,
        )


class EventMessagePage(BaseModel):
    """A page of a history. ``next``: the cursor of the next page, or null at the end."""

    items: list[EventMessage]
    next: str | None


class EventHead(BaseModel):
    """The last event of a thread. Both fields are null for a thread without messages."""

    thread_id: str
    event_number: int | None
    message: EventMessage | None
