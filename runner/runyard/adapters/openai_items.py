"""Conversion between messages and the items of the OpenAI Agents SDK. An item of the SDK is an item of OpenAI's Responses API.

Some items have no corresponding message, for example items of a type that OpenAI added later. The text of the stored message is
then the JSON of the item. The ``source`` of the message has the item itself, in the format :data:`ITEM`. This module does not
import the SDK.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..domain.messages import (
    DocumentPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    Role,
    Source,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from ..domain.quoting import brief
from ..domain.size_limits import MAX_PARTS, JsonObject, check_blob
from ..errors import InvalidInputError
from ..formats.conversion import from_blob, to_format
from ..formats.openai_responses import FORMAT, PROVIDER
from ..formats.wire import to_text
from ..support.fetch_hosts import check_files

ITEM: Final = "openai_agents_item"
"""The format of a ``source`` that is an item without a corresponding message."""
ROLES: Final[Mapping[str, Role]] = {"user": "user", "system": "system", "developer": "system"}
"""The item's role → the role of the message. For any other role of an item, the message has the role assistant."""


def checked(items: Iterable[Any]) -> list[JsonObject]:
    """Return a copy of ``items`` as JSON objects.

    Raise InvalidInputError for an item that is not a JSON object or is too large.
    """
    made: list[JsonObject] = []
    for n, item in enumerate(items):
        try:
            value = to_jsonable_python(item)
        except (PydanticSerializationError, ValueError) as error:
            raise InvalidInputError(f"items[{n}] is not JSON: {brief(str(error))}", field="items") from None
        if not isinstance(value, dict):
            raise InvalidInputError(f"items[{n}] must be a JSON object, got {brief(item)}", field="items")
        check_blob(value)
        made.append(value)
    return made


def to_messages(items: Sequence[JsonObject]) -> list[Message]:
    """Return messages with the content of ``items``, in order.

    Consecutive items of a model become one message, because one answer of a model consists of several items. Consecutive
    results of tools also become one message.
    """
    made: list[Message] = []
    for kind, group in groupby(items, _kind):
        stretch = list(group)
        together = MAX_PARTS // 4 if kind in ("model", "results") else 1
        for start in range(0, len(stretch), together):
            made += _stored(stretch[start : start + together])
    return made


def to_items(message: Message) -> list[JsonObject]:
    """Return the items of a message. If :func:`to_messages` made the message, return its original items."""
    source = message.source
    if source is not None and source.format == ITEM and message.content == _text_of(source.blob):
        return [dict(source.blob)] if isinstance(source.blob, dict) else []
    return to_format(FORMAT, message).items


def for_model(message: Message) -> list[JsonObject]:
    """Return the items of a message for a model (M5).

    The conversion reads only the parts of the message, and not its ``source``. Any caller may have sent a ``source`` that
    refers to files and items in the account of the worker's operator.

    Raises FetchNotAllowedError for a file of a host that is not allowed.
    """
    check_files(message)
    parts = [part for part in message.content if _allowed(message.role, part)]
    if not parts:
        return []
    shown = Message(id=message.id, role=message.role, content=parts, stop_reason=message.stop_reason)
    return to_format(FORMAT, shown).items


def _allowed(role: Role, part: Part) -> bool:
    match part:
        case TextPart():
            return True
        case ToolCallPart():
            return role == "assistant"
        case ThinkingPart():
            return role == "assistant" and part.signature is not None and part.provider == PROVIDER
        case ToolResultPart():
            return role == "tool" and not any(isinstance(each, FilePart) and each.file_id for each in part.parts)
        case FilePart():
            return role == "user" and part.file_id is None
        case ImagePart() | DocumentPart():
            return role == "user"
    return False


def _kind(item: JsonObject) -> str:
    """Return the kind of an item.

    Consecutive items of the kind ``model`` may become one message, and so may items of the kind ``results``.
    """
    type_ = item.get("type", "message")
    if type_ == "message":
        return "model" if item.get("role") == "assistant" else "caller"
    if isinstance(type_, str) and (type_.endswith("_output") or type_ == "mcp_approval_response"):
        return "results"
    return "model"


def _stored(items: Sequence[JsonObject]) -> list[Message]:
    """Return the items as one message, or as several messages if one message cannot hold them."""
    try:
        return [from_blob(FORMAT, items[0] if len(items) == 1 else [*items])]
    except InvalidInputError:
        if len(items) > 1:
            return [message for item in items for message in _stored([item])]
    role = item_role if isinstance(item_role := items[0].get("role"), str) else ""
    content = _text_of(items[0])
    return [Message(role=ROLES.get(role, "assistant"), content=content, source=Source(format=ITEM, blob=items[0]))]


def _text_of(item: Any) -> list[Part]:
    return [TextPart(text=to_text(item))]
