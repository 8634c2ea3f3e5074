"""Conversion between messages and the formats, by name. Every function is pure.

The module of a format determines which values of a message the format cannot hold. ``wire.py`` defines these losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias, get_args

from pydantic import Field

from ..domain.messages import Message, Part, Source
from ..domain.quoting import brief
from ..domain.size_limits import JsonObject, JsonValue, check_blob
from ..errors import InvalidInputError
from . import acontext, anthropic, gemini, native, openai_chat, openai_responses
from .wire import Loss, Read, Reader, Writer, is_refusal, same_json

Format: TypeAlias = Literal["openai", "openai_responses", "anthropic", "gemini", "acontext", "native"]
Blob: TypeAlias = JsonObject | Annotated[list[JsonObject], Field(fail_fast=True)]
"""A message in a format: a JSON object, or a list if the format has several objects for one message."""


class Codec(NamedTuple):
    read: Reader
    write: Writer


CODECS: Final[Mapping[str, Codec]] = {
    "openai": Codec(openai_chat.read, openai_chat.write),
    "openai_responses": Codec(openai_responses.read, openai_responses.write),
    "anthropic": Codec(anthropic.read, anthropic.write),
    "gemini": Codec(gemini.read, gemini.write),
    "acontext": Codec(acontext.read, acontext.write),
}
"""The formats of providers. A message keeps its original in such a format, if a conversion back would give other JSON."""


class Converted(NamedTuple):
    """The JSON objects of a format for one message, in order, and the losses of the conversion."""

    items: list[JsonObject]
    losses: list[Loss]


def check_format(format: object) -> None:
    """Raise InvalidInputError if ``format`` is not the name of a format."""
    if format not in get_args(Format):
        names = ", ".join(get_args(Format))
        raise InvalidInputError(f"there is no message format {brief(format)}; choose one of {names}", field="format")


def from_blob(format: Format, blob: JsonValue) -> Message:
    """Return the message for ``blob``: a JSON object, or a list if the format has several objects for one message.

    The message keeps the original as ``source`` if its other fields would not give the same JSON.

    Raises InvalidBlobError for an invalid blob. The ``details["path"]`` of this error is the JSON pointer of the fault. Raises
    InvalidInputError for an unknown format, and for a blob that is larger than :mod:`runyard.domain.size_limits` allows.
    """
    check_format(format)
    check_blob(blob)
    if format == "native":
        return native.read(blob)
    message = CODECS[format].read(blob).message()
    again = CODECS[format].write(message, {})
    content = acontext.without_store_fields(blob) if format == "acontext" and isinstance(blob, dict) else blob
    if again.losses.found or not same_json(again.items, _listed(content)):
        message.source = Source(format=format, blob=content)
    return message


def to_format(format: Format, message: Message, names: Mapping[str, str] | None = None) -> Converted:
    """Return the JSON objects of the format for a message, and the losses of the conversion.

    ``names``: the names of tools by the ids of their calls. Some formats need these names for results. A message that was
    stored in the same format is returned unchanged. If the content of an original differs from the content of its message, the
    original is ignored.

    Raises InvalidInputError for an unknown format.
    """
    check_format(format)
    if format == "native":
        return Converted([native.write(message)], [])
    original = _original(message)
    if original is not None and message.source is not None and message.source.format == format:
        losses = _beside(format, message, original.stop_reason == "refusal")
        return Converted(_of_store(format, _listed(message.source.blob), message), losses)
    written = CODECS[format].write(message, names or {})
    refuses = format in ("openai", "openai_responses") and is_refusal(message)
    losses = [*(original.losses.listed() if original is not None else ()), *written.losses.listed()]
    losses += _beside(format, message, refuses)
    if message.source is not None and original is None:
        losses.append(Loss(format="native", path="/source", what="the original is ignored: it differs from the content"))
    return Converted(_of_store(format, written.items, message), losses)


def _original(message: Message) -> Read | None:
    """Return the content of a message's original. Return None if there is no original, or if it differs from the message."""
    if message.source is None or message.source.format not in CODECS:
        return None
    try:
        check_blob(message.source.blob)
        read = CODECS[message.source.format].read(message.source.blob)
    except InvalidInputError:
        return None
    said = read.message()
    same = said.role == message.role and _alike(said.content, message.content) and same_json(said.metadata, _metadata(message))
    return read if same and said.stop_reason in (None, message.stop_reason) else None


def _alike(said: Sequence[Part], parts: Sequence[Part]) -> bool:
    """Return whether both lists have equal parts. ``==`` is not enough, because in Python ``{"x": 1} == {"x": True}``."""
    return len(said) == len(parts) and all(
        one.type == other.type and same_json(one.__dict__, other.__dict__) for one, other in zip(said, parts, strict=True)
    )


def _metadata(message: Message) -> JsonObject:
    """Return the metadata that the original has. Only the format ``acontext`` has metadata."""
    return message.metadata if message.source is not None and message.source.format == "acontext" else {}


def _beside(format: Format, message: Message, refuses: bool) -> list[Loss]:
    """Return the losses outside of the message's content. Missing ids, times and usage do not count as losses, because the
    store sets these fields.

    ``refuses``: True if the format's JSON says that the model refused to answer.
    """
    lost: list[Loss] = []
    if message.metadata and format != "acontext":
        lost.append(Loss(format="native", path="/metadata", what="the format has no metadata of a message"))
    if message.provider_details is not None:
        lost.append(Loss(format="native", path="/provider_details", what="only the library that calls the model reads these"))
    kept = ("stop", "tool_calls", *(("refusal",) if refuses else ()))
    if message.stop_reason is not None and message.stop_reason not in kept:
        lost.append(Loss(format="native", path="/stop_reason", what="the format's messages have no stop reason"))
    return lost


def _of_store(format: Format, items: list[JsonObject], message: Message) -> list[JsonObject]:
    """Return ``items`` with the fields that the store sets. Of the providers' formats, only ``acontext`` has such fields."""
    return [acontext.with_store_fields(item, message) for item in items] if format == "acontext" else items


def _listed(blob: JsonValue) -> list[JsonObject]:
    return blob if isinstance(blob, list) else [blob]
