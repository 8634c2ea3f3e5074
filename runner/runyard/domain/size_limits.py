"""Bounds of one value that is stored or sent.

A bound exists for the depth, the number of values, the size of integers, and the bytes.

``postgres/functions/size_limits.sql`` has the same limits. ``max_body`` in ``runyard_api/http/settings.py`` bounds a request.

Recursive code that copies, compares, encodes or decodes a deep value can exhaust the stack. A C function that processes a
large value stops all other work of the process. Values within the bounds cause neither problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..errors import InvalidInputError
from .quoting import brief

if TYPE_CHECKING:
    from .messages import Message

MAX_NESTING: Final = 100
"""Maximum number of levels of objects and lists inside each other. The outermost level counts."""
MAX_VALUES: Final = 25_000
"""Maximum number of members of all objects and lists in one value. All parts of a message together are one value."""
MAX_PARTS: Final = 2_000
"""Maximum number of parts of one message. The parts of the message's tool results count too.

Each part becomes an object in every process that handles the message.
"""
MAX_RESULT_VALUES: Final = 100_000
"""Maximum number of values in the result of a run or a step. A fan-out's result has the messages of all its candidates."""
MAX_BITS: Final = 64
"""Maximum number of bits of an integer, signed or unsigned.

Some stores and readers of JSON change or refuse larger integers.
"""
MESSAGE_BYTES: Final = 8 * 2**20
"""Default of the limit ``message_bytes``: the maximum number of bytes of one stored message, including its images."""
MAX_TRACEBACK_BYTES: Final = 8192
"""Maximum size of a traceback or a stack, in bytes of UTF-8."""
MAX_TRACEBACK_LINES: Final = 500
"""Maximum number of lines in a traceback or a stack."""
MAX_EXTRA: Final = 2**21
"""Maximum number of bytes of a thread's extra as JSON, and of its config. The metadata of a fork are part of the extra."""
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
    "schema": 2**18,
    "value": 2**20,
    "details": 2**18,
    "result": MESSAGE_BYTES,
}
"""Name of an argument or field → maximum number of bytes of text in its value.

The names of fields inside the value count as text.
"""

OBJECTS: Final = frozenset(
    {"tags", "metadata", "answer_schema", "extra", "config", "payload", "on_deadline", "details", "schema"}
)
TEXTS: Final = frozenset({"title", "reason"})

_NESTED: Final = (dict, list, tuple)
_INTEGERS: Final = range(-(2 ** (MAX_BITS - 1)), 2**MAX_BITS)


def check_value(value: Any, name: str) -> None:
    """Raise InvalidInputError if ``value`` is not JSON, or exceeds the bounds of the field ``name``.

    The error's ``details`` have the ``field`` and the bound ``most``. If the whole value was counted, ``got`` is its count.
    """
    if value is None:
        return
    if name in OBJECTS and not isinstance(value, dict):
        raise InvalidInputError(f"{name} is a JSON object, got {brief(value)}", field=name)
    if name in TEXTS and not isinstance(value, str):
        raise InvalidInputError(f"{name} is text, got {brief(value)}", field=name)
    if type(value) is dict and not value:
        return
    _walk([value], name, MAX_RESULT_VALUES if name == "result" else MAX_VALUES, MAX_BYTES[name])


def bounded_trace(text: str, most: int = MAX_TRACEBACK_BYTES) -> str:
    """Return the end of a traceback or of a stack, as text that every store accepts. ``most``: the maximum number of bytes."""
    lines = "".join(text.splitlines(keepends=True)[-MAX_TRACEBACK_LINES:])
    return lines.replace("\0", "\\x00").encode("utf-8", "backslashreplace")[-most:].decode("utf-8", "ignore")


def check_blob(blob: Any) -> None:
    """Raise InvalidInputError if ``blob`` is not JSON, is nested too deep, or has too many values.

    The store checks its size.
    """
    _walk([blob], "blob", MAX_VALUES, None)


def check_content(message: Message) -> None:
    """Raise InvalidInputError if ``message`` has too many parts or values, is nested too deep, or has an integer out of range.

    The store checks the number of bytes.
    """
    parts = len(message.content)
    if parts <= MAX_PARTS:
        parts += sum(len(result.content) for result in message.tool_results if result.has_parts)
    if parts > MAX_PARTS:
        words = f"a message has at most {MAX_PARTS} parts, got {parts}; split it into several messages"
        raise InvalidInputError(words, field="message", most=MAX_PARTS, got=parts)
    original = message.source.blob if message.source is not None else None
    values: list[Any] = [value for value in (message.metadata, message.provider_details, original) if value]
    for part in message.content:
        if part.type == "tool_call":
            values.append(part.arguments)
        elif part.type == "tool_result":
            values.append(part.content)
    if values:
        _walk(values, "message", MAX_VALUES, None)


def _walk(layer: list[Any], name: str, values: int, most: int | None) -> None:
    """Check the values in ``layer`` and all values inside them, level by level.

    A value that contains itself exceeds a bound.
    """
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
                    words = f"is nested more than {MAX_NESTING} levels deep; make it flatter, or store it as a string of JSON"
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
                words = f"holds a {type(part).__qualname__}, which JSON cannot express; convert it"
                raise InvalidInputError(f"{name} {words}", field=name)
            elif not isfinite(part):
                raise InvalidInputError(f"{name} holds {part}, which JSON cannot express; use null or a string", field=name)
        layer = below
    if most is not None and size > most:
        words = f"holds {size} bytes of text, and the limit is {most}; keep large data elsewhere and store a reference"
        raise InvalidInputError(f"{name} {words}", field=name, most=most, got=size)


def _names(names: Iterable[Any], field: str) -> int:
    size = 0
    for name in names:
        if not isinstance(name, str):
            raise InvalidInputError(f"{field} has the key {brief(name)}, and keys in JSON are text; convert it", field=field)
        size += len(name) if name.isascii() else _bytes(name)
    return size


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def message_size(message: Message) -> int:
    """Return the number of bytes of text in ``message``. The size in the store is about the same."""
    layer: list[Any] = [[part.__dict__ for part in message.content], message.metadata, message.provider_details]
    if message.source is not None:
        layer.append(message.source.blob)
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


JsonValue: TypeAlias = Any
"""A JSON value. Pydantic does not validate this value, but runyard checks each incoming value once.

A validation by Pydantic would take as long as all other work on a message.
"""

JsonObject: TypeAlias = dict[str, JsonValue]
