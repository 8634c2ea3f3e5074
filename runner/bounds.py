"""How much one value may hold that is stored or sent: depth, number of values, digits, bytes. One place, whoever brings it.

What copies, compares, encodes or decodes a value is recursive in one place or another, and most of it is one call of C that
lets nothing else of its process run. Of a value that was taken once, none may run out of stack or stall a process later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from .errors import InvalidInputError
from .legible import brief

if TYPE_CHECKING:
    from .models import Message

MAX_NESTING: Final = 100
"""Levels of objects and lists, the outermost included."""
MAX_VALUES: Final = 25_000
"""Values in one value: the members of its objects and lists, at every level; of a message, in all that its parts hold."""
MAX_PARTS: Final = 2_000
"""Parts of one message: each is an object of its own wherever the message goes."""
MAX_RESULT_VALUES: Final = 100_000
"""Values in the result of a run or a step: that of a job holds the messages of all its candidates."""
MAX_BITS: Final = 64
"""Of an integer, with a sign or without. No store and no reader of JSON keeps more in the same way."""
MESSAGE_BYTES: Final = 8 * 2**20
"""Of one message as it is stored, where the limit ``message_bytes`` is not set. Images come inline."""
MAX_EXTRA: Final = 2**21
"""Bytes of a thread's whole extra as JSON, merged of what was saved; with it the metadata of a fork."""
MAX_BYTES: Final[Mapping[str, int]] = {
    "title": 2**12,
    "tags": 2**14,
    "error": 2**19,
    "metadata": 2**18,
    "reason": 2**14,
    "answer_schema": 2**18,
    "delta": 2**20,
    "extra": 2**20,
    "config": 2**20,
    "payload": 2**20,
    "on_deadline": 2**20,
    "answer": 2**20,
    "details": 2**18,
    "result": MESSAGE_BYTES,
}
"""Of the text in one value, names of fields included, by the argument or field that the value is."""

OBJECTS: Final = frozenset({"tags", "metadata", "answer_schema", "extra", "config", "payload", "on_deadline", "details"})
TEXTS: Final = frozenset({"title", "reason"})

_NESTED: Final = (dict, list, tuple)
_INTEGERS: Final = range(-(2 ** (MAX_BITS - 1)), 2**MAX_BITS)


def check_value(value: Any, name: str) -> None:
    """Raise InvalidInputError if ``value``, which is the field ``name``, holds what may not be stored or sent, or more of it.

    Its details have the ``field``, the ``most`` that it may have, and ``got`` where the whole was counted.
    """
    if value is None:
        return
    if name in OBJECTS and not isinstance(value, dict):
        raise InvalidInputError(f"{name} is an object of JSON, got {brief(value)}", field=name)
    if name in TEXTS and not isinstance(value, str):
        raise InvalidInputError(f"{name} is text, got {brief(value)}", field=name)
    _walk([value], name, MAX_RESULT_VALUES if name == "result" else MAX_VALUES, MAX_BYTES[name])


def check_content(message: Message) -> None:
    """Raise InvalidInputError for too many parts or values, too deep ones, or numbers out of range in ``message``.

    Its bytes are counted as it is stored.
    """
    if len(message.content) > MAX_PARTS:
        words = f"a message has {MAX_PARTS} parts at most, got {len(message.content)}; make it several messages"
        raise InvalidInputError(words, field="message", most=MAX_PARTS, got=len(message.content))
    values: list[Any] = [value for value in (message.metadata, message.provider_details) if value]
    for part in message.content:
        if part.type == "tool_call":
            values.append(part.arguments)
        elif part.type == "tool_result":
            values.append(part.content)
    if values:
        _walk(values, "message", MAX_VALUES, None)


def _walk(layer: list[Any], name: str, values: int, most: int | None) -> None:
    """Level by level: what contains itself ends at one of the limits as well."""
    level = count = size = 0
    while layer:
        level += 1
        below: list[Any] = []
        for part in layer:
            if part is None:
                continue
            if isinstance(part, str):
                size += len(part) if part.isascii() else _bytes(part)
            elif isinstance(part, _NESTED):
                if level > MAX_NESTING:
                    words = f"is nested more than {MAX_NESTING} levels deep; make it flatter, or a string of its JSON"
                    raise InvalidInputError(f"{name} {words}", field=name, most=MAX_NESTING)
                count += len(part)
                if count > values:
                    words = f"holds more than {values} values; keep large data elsewhere and store a reference"
                    raise InvalidInputError(f"{name} {words}", field=name, most=values)
                if isinstance(part, dict):
                    size += _names(part, name)
                    below += part.values()
                else:
                    below += part
            elif isinstance(part, int):
                if part not in _INTEGERS:
                    words = f"holds an integer of more than {MAX_BITS} bits; make it a string"
                    raise InvalidInputError(f"{name} {words}", field=name, most=MAX_BITS)
            elif not isinstance(part, float):
                words = f"holds a {type(part).__qualname__}, which JSON cannot say; convert it"
                raise InvalidInputError(f"{name} {words}", field=name)
            elif not isfinite(part):
                raise InvalidInputError(f"{name} holds {part}, which JSON cannot say; make it null or a string", field=name)
        layer = below
    if most is not None and size > most:
        words = f"holds {size} bytes of text, and may hold {most}; keep large data elsewhere and store a reference"
        raise InvalidInputError(f"{name} {words}", field=name, most=most, got=size)


def _names(names: Iterable[Any], field: str) -> int:
    size = 0
    for name in names:
        if not isinstance(name, str):
            raise InvalidInputError(f"{field} has {brief(name)} for a name, and JSON has only text; convert it", field=field)
        size += len(name) if name.isascii() else _bytes(name)
    return size


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def message_size(message: Message) -> int:
    """Bytes of the text that ``message`` holds, about what it takes to store it."""
    told = [part.__dict__ for part in message.content]
    layer: list[Any] = [told, message.metadata, message.provider_details]
    size = 0
    while layer:
        below: list[Any] = []
        for part in layer:
            if isinstance(part, str):
                size += _bytes(part)
            elif isinstance(part, dict):
                size += _names(part, "message")
                below += part.values()
            elif isinstance(part, _NESTED):
                below += part
        layer = below
    return size
