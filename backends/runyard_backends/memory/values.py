"""Check and copy the values that the memory store stores. The checks are the same as in Postgres."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

from runyard.domain.size_limits import MAX_EXTRA, check_value
from runyard.errors import InvalidInputError
from runyard.models import ErrorInfo, JsonObject, Message, check_message, check_message_id, check_usage


def check_messages(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with ids in canonical form. Raises InvalidInputError for an invalid message, id or usage."""
    checked = []
    for message in messages:
        check_message(message)
        if message.usage is not None:
            check_usage(message.usage)
        checked.append(message.model_copy(update={"id": check_message_id(message.id, "id")}))
    return checked


def check_json(value: Any, name: str) -> Any:
    """Return a copy of ``value``. Raises InvalidInputError if the value exceeds a limit. Raises InvalidInputError for the
    character NUL, because jsonb cannot store it."""
    check_value(value, name)
    return _copied(value, name)


def merged(before: JsonObject, more: JsonObject, name: str = "extra") -> JsonObject:
    """Return ``before`` merged with ``more``. If both have a key, the value of ``more`` is used. ``name``: the field of a
    thread, ``extra`` or ``config``. Raises InvalidInputError if the result has more than MAX_EXTRA bytes."""
    both = {**before, **more}
    size = len(json.dumps(both, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass"))
    if size > MAX_EXTRA:
        words = f"{name} would have {size} bytes, and a thread's {name} may have {MAX_EXTRA}; keep large data elsewhere"
        raise InvalidInputError(f"{words} and store a reference", field=name, most=MAX_EXTRA, got=size)
    return both


def patched(before: JsonObject, patch: JsonObject | None, name: str) -> JsonObject:
    """Return ``before`` merged with ``patch``. A key with the value None in ``patch`` is removed. Without a patch, return
    {}."""
    more = check_json(patch or {}, name)
    both = merged({} if patch is None else before, more, name)
    return {key: value for key, value in both.items() if key not in more or value is not None}


def copied(value: Any) -> Any:
    """Return a copy of ``value`` for storage."""
    return _copied(value, "value")


def _copied(value: Any, name: str) -> Any:
    if isinstance(value, str) and "\0" in value:
        raise InvalidInputError(f"{name} holds a NUL character", field=name)
    if isinstance(value, dict):
        return {_copied(k, name): _copied(v, name) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(v, name) for v in value]
    return copy.deepcopy(value)


def check_error(error: ErrorInfo) -> ErrorInfo:
    """Return ``error``. Raises InvalidInputError if jsonb cannot store it."""
    said = check_json(error.__dict__, "error")
    try:
        json.dumps(said, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as refused:
        raise InvalidInputError(f"error cannot be stored as JSON: {refused}", field="error") from None
    return error
