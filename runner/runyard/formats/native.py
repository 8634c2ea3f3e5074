"""The format ``native``: runyard's own messages as JSON."""

from __future__ import annotations

from typing import Final

from pydantic import TypeAdapter

from ..domain.messages import RESULT_PARTS, Message, ToolResultPart
from ..domain.size_limits import MAX_PARTS, JsonObject, JsonValue
from .wire import fault, parse

FORMAT: Final = "native"
SET_BY_STORE: Final = frozenset({"run_id", "parent_id", "seq", "created_at", "usage", "provider_details", "run_status"})
"""Fields that only the store sets. They are ignored in a blob, which may come from an earlier read."""

MAX_FIELDS: Final = 50
"""Maximum number of fields of a blob. Pydantic makes one error for each unknown field."""
_MESSAGE: Final = TypeAdapter(Message)


def read(blob: JsonValue) -> Message:
    """Return the message of ``blob``. Raise InvalidBlobError for a fault, and for a field that messages do not have."""
    if not isinstance(blob, dict):
        raise fault(FORMAT, "", "is not a JSON object")
    fields = {name: value for name, value in blob.items() if name not in SET_BY_STORE}
    if isinstance(fields.get("content"), list) and len(fields["content"]) > MAX_PARTS:
        raise fault(FORMAT, "/content", f"has {len(fields['content'])} parts; the maximum is {MAX_PARTS}")
    if len(fields) > MAX_FIELDS:
        raise fault(FORMAT, "", f"has {len(fields)} fields; the maximum is {MAX_FIELDS}")
    message = parse(_MESSAGE, fields, FORMAT)
    for n, part in enumerate(message.content):
        if isinstance(part, ToolResultPart) and part.has_parts:
            parse(RESULT_PARTS, part.content, FORMAT, f"/content/{n}/content")
    return message


def write(message: Message) -> JsonObject:
    """Return the message as JSON."""
    return message.model_dump(mode="json")
