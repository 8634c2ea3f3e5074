"""Conversion between messages and the formats, by name. Every function is pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from ..domain.messages import Message, Source, ToolCallPart
from ..domain.quoting import brief
from ..domain.size_limits import JsonObject, JsonValue, check_blob
from ..errors import InvalidInputError
from . import acontext, anthropic, gemini, native, openai_chat, openai_responses
from .wire import Loss, Read, Reader, Writer, same_json

Format: TypeAlias = Literal["openai", "openai_responses", "anthropic", "gemini", "acontext", "native"]


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
"""The formats of others, which are kept verbatim where a message alone would not give them back."""


class Converted(NamedTuple):
    """The JSON objects of a format for one message, in order, and what they lose."""

    items: list[JsonObject]
    losses: list[Loss]


def check_format(format: object) -> None:
    """Raise InvalidInputError if ``format`` is no name of a format."""
    if format not in get_args(Format):
        names = ", ".join(get_args(Format))
        raise InvalidInputError(f"there is no message format {brief(format)}; choose one of {names}", field="format")


def from_blob(format: Format, blob: JsonValue) -> Message:
    """Return the message for ``blob``, a JSON object of the format (or a list, where the format has several for one message).

    The message keeps the original as ``source`` if its other fields would not give the same JSON.

    Raises InvalidBlobError, whose ``details["path"]`` is the JSON pointer of the fault, and InvalidInputError for an unknown
    format and for a blob beyond the bounds of :mod:`runyard.domain.size_limits`.
    """
    check_format(format)
    check_blob(blob)
    if format == "native":
        return native.read(blob)
    message = CODECS[format].read(blob).message()
    again = CODECS[format].write(message, {})
    content = acontext.without_store_fields(blob) if format == "acontext" else blob
    if again.losses or not same_json(again.items, _listed(content)):
        message.source = Source(format=format, blob=content)
    return message


def to_format(format: Format, message: Message, names: Mapping[str, str] | None = None) -> Converted:
    """Return the JSON objects of the format for a message, and what they lose.

    ``names``: the names of tools by the ids of their calls, for formats whose results name their tool. A message that came in
    the same format is returned as it was. An original whose content is not that of the message is ignored.

    Raises InvalidInputError for an unknown format.
    """
    check_format(format)
    if format == "native":
        return Converted([native.write(message)], [])
    original = _original(message)
    if original is not None and message.source is not None and message.source.format == format:
        items = _listed(message.source.blob)
        return Converted([acontext.with_store_fields(items[0], message)] if format == "acontext" else items, [])
    written = CODECS[format].write(message, names or {})
    losses = [*(original.losses if original is not None else ()), *written.losses, *_beside(format, message)]
    if message.source is not None and original is None:
        losses.append(Loss(format="native", path="/source", what="the original differs from the content and is ignored"))
    items = written.items
    return Converted([acontext.with_store_fields(item, message) for item in items] if format == "acontext" else items, losses)


def tool_names(message: Message) -> dict[str, str]:
    """Return the names of the tools that a message calls, by the ids of the calls."""
    return {part.id: part.name for part in message.content if isinstance(part, ToolCallPart)}


def _original(message: Message) -> Read | None:
    """Return what the original of a message says, or None if it has none, or one that says something else."""
    if message.source is None or message.source.format not in CODECS:
        return None
    try:
        check_blob(message.source.blob)
        read = CODECS[message.source.format].read(message.source.blob)
    except InvalidInputError:
        return None
    said = read.message()
    same = (said.role, said.content, said.metadata) == (message.role, message.content, _metadata(message))
    return read if same and said.stop_reason in (None, message.stop_reason) else None


def _metadata(message: Message) -> JsonObject:
    """Return the metadata that the original has. Only the format ``acontext`` has metadata."""
    return message.metadata if message.source is not None and message.source.format == "acontext" else {}


def _beside(format: Format, message: Message) -> list[Loss]:
    """Return what is lost beside the content. Ids, times and usage belong to the store and not to the conversation."""
    lost = []
    if message.metadata and format != "acontext":
        lost.append(Loss(format="native", path="/metadata", what="the format has no metadata of a message"))
    if message.provider_details is not None:
        lost.append(Loss(format="native", path="/provider_details", what="only an agent's model layer reads these"))
    kept = ("stop", "tool_calls", *(("refusal",) if format in ("openai", "openai_responses") else ()))
    if message.stop_reason is not None and message.stop_reason not in kept:
        lost.append(Loss(format="native", path="/stop_reason", what="the format's messages have no stop reason"))
    return lost


def _listed(blob: JsonValue) -> list[JsonObject]:
    return blob if isinstance(blob, list) else [blob]
