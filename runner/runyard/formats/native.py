"""The format ``native``: runyard's own messages as JSON."""

from __future__ import annotations

from typing import Final

from pydantic import TypeAdapter

from ..domain.messages import Message
from ..domain.size_limits import JsonObject, JsonValue
from .wire import fault, parse

FORMAT: Final = "native"
SET_BY_STORE: Final = frozenset({"run_id", "parent_id", "seq", "created_at", "usage", "provider_details"})
"""Fields that a blob may have because a read returned them. Storing the blob ignores them: a caller cannot set them."""

_MESSAGE: Final = TypeAdapter(Message)


def read(blob: JsonValue) -> Message:
    """Return the message of ``blob``. Raise InvalidBlobError, also for fields that a message does not have."""
    if not isinstance(blob, dict):
        raise fault(FORMAT, "", "is no JSON object")
    return parse(_MESSAGE, {name: value for name, value in blob.items() if name not in SET_BY_STORE}, FORMAT)


def write(message: Message) -> JsonObject:
    """Return the message as JSON."""
    return message.model_dump(mode="json")
