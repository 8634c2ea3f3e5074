"""The format ``openai``: messages of OpenAI's chat completions.

A tool message holds one result. A message with N results is therefore a list of N tool messages, in both directions. Most
results become text. ``wire.result_text`` records the losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from ..domain.messages import (
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    MediaPart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from ..domain.size_limits import JsonObject, JsonValue
from .media import data_url, media_part, split_data_url
from .wire import Many, Read, Wire, Written, fault, from_text, is_refusal, lose_unknown, objects, parse, result_text, to_text

FORMAT: Final = "openai"
PROVIDER: Final = "openai"
SOUNDS: Final[Mapping[str, str]] = {"wav": "audio/wav", "mp3": "audio/mpeg"}
SOUND_NAMES: Final = {media_type: name for name, media_type in SOUNDS.items()}


class Text(Wire):
    type: Literal["text"]
    text: str


class Refusal(Wire):
    type: Literal["refusal"]
    refusal: str


class ImageUrl(Wire):
    url: str


class Image(Wire):
    type: Literal["image_url"]
    image_url: ImageUrl


class Sound(Wire):
    data: str
    format: Literal["wav", "mp3"]


class InputAudio(Wire):
    type: Literal["input_audio"]
    input_audio: Sound


class FileSource(Wire):
    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class File(Wire):
    type: Literal["file"]
    file: FileSource


class Function(Wire):
    name: str
    arguments: str


class FunctionCall(Wire):
    type: Literal["function"]
    id: str
    function: Function


class CustomCall(Wire):
    type: Literal["custom"]
    id: str


UserContent = Annotated[Text | Image | InputAudio | File, Field(discriminator="type")]
AnswerContent = Annotated[Text | Refusal, Field(discriminator="type")]
Call = Annotated[FunctionCall | CustomCall, Field(discriminator="type")]


class System(Wire):
    role: Literal["system", "developer"]
    content: str | Many[Text]


class User(Wire):
    role: Literal["user"]
    content: str | Many[UserContent]


class Assistant(Wire):
    role: Literal["assistant"]
    content: str | Many[AnswerContent] | None = None
    refusal: str | None = None
    tool_calls: Many[Call] | None = None


class Tool(Wire):
    role: Literal["tool"]
    tool_call_id: str
    content: str | Many[Text]


_ONE: Final[TypeAdapter[System | User | Assistant | Tool]] = TypeAdapter(
    Annotated[System | User | Assistant | Tool, Field(discriminator="role")]
)


def read(blob: JsonValue) -> Read:
    """Return the message for an OpenAI message, or for a list of tool messages. Raise InvalidBlobError."""
    made = Read(FORMAT)
    listed = objects(blob, FORMAT)
    for n, each in enumerate(listed):
        at = f"/{n}" if isinstance(blob, list) else ""
        one = parse(_ONE, each, FORMAT, at)
        if len(listed) > 1 and not isinstance(one, Tool):
            raise fault(FORMAT, f"{at}/role", "a list may have tool messages only; store every other message separately")
        lose_unknown(made, one, each, at)
        _read_one(made, one, at)
    return made


def _read_one(made: Read, one: System | User | Assistant | Tool, at: str) -> None:
    match one:
        case System():
            made.role = "system"
            made.parts += _texts(one.content)
            if one.role != "system":
                made.alter(f"{at}/role", "the role developer becomes system")
        case User():
            made.role = "user"
            for n, part in enumerate([Text(type="text", text=one.content)] if isinstance(one.content, str) else one.content):
                made.parts.append(_user_part(made, part, f"{at}/content/{n}"))
        case Assistant():
            made.role = "assistant"
            _read_answer(made, one, at)
        case Tool():
            made.role = "tool"
            content: JsonValue = one.content
            if not isinstance(content, str):
                made.nest(content, f"{at}/content")
                content = [part.model_dump() for part in _texts(content)]
            has_parts = not isinstance(content, str)
            made.parts.append(ToolResultPart(call_id=one.tool_call_id, content=content, has_parts=has_parts))


def _texts(content: str | Sequence[Text]) -> list[TextPart]:
    return [TextPart(text=content)] if isinstance(content, str) else [TextPart(text=part.text) for part in content]


def _user_part(made: Read, part: Text | Image | InputAudio | File, at: str) -> Part:
    match part:
        case Text():
            return TextPart(text=part.text)
        case Image():
            if (split := split_data_url(part.image_url.url)) is not None:
                return ImagePart(media_type=split[0], data=split[1])
            return ImagePart(url=part.image_url.url)
        case InputAudio():
            return AudioPart(data=part.input_audio.data, media_type=SOUNDS[part.input_audio.format])
    file = part.file
    if file.file_data is None:
        if file.file_id is None:
            raise fault(FORMAT, f"{at}/file", "has neither file_data nor file_id")
        return FilePart(file_id=file.file_id, name=file.filename, provider=PROVIDER)
    if file.file_id is not None:
        made.lose(f"{at}/file/file_id", "the file is held as data")
    media_type, data = split_data_url(file.file_data) or (None, file.file_data)
    held = media_part(media_type, data=data, name=file.filename)
    if file.filename and not isinstance(held, DocumentPart | FilePart):
        made.lose(f"{at}/file/filename", f"a part of the type {held.type} has no name")
    return held


def _read_answer(made: Read, one: Assistant, at: str) -> None:
    for part in [Text(type="text", text=one.content)] if isinstance(one.content, str) else one.content or ():
        made.parts.append(TextPart(text=part.text if isinstance(part, Text) else part.refusal))
        if isinstance(part, Refusal):
            made.stop_reason = "refusal"
    if one.refusal is not None:
        made.parts.append(TextPart(text=one.refusal))
        made.stop_reason = "refusal"
    for n, call in enumerate(one.tool_calls or ()):
        place = f"{at}/tool_calls/{n}"
        if isinstance(call, CustomCall):
            made.lose(place, "messages can hold only calls with JSON arguments")
            continue
        arguments = from_text(made, call.function.arguments, f"{place}/function/arguments")
        made.parts.append(ToolCallPart(id=call.id, name=call.function.name, arguments=arguments))


def write(message: Message, names: Mapping[str, str]) -> Written:
    """Return OpenAI messages for a message: one for each of its tool results, and one for all its other parts."""
    made = Written(names)
    match message.role:
        case "assistant":
            _write_answer(made, message)
        case "system":
            _write_system(made, message)
        case _:
            _write_user(made, message)
    return made


def _write_system(made: Written, message: Message) -> None:
    texts: list[JsonObject] = []
    for n, part in enumerate(message.content):
        if isinstance(part, TextPart):
            texts.append({"type": "text", "text": part.text})
        else:
            made.lose_kind(n, part, "system")
    if texts or not message.content:
        made.items.append({"role": "system", "content": _shortest(texts)})


def _write_user(made: Written, message: Message) -> None:
    parts: list[JsonObject] = []
    for n, part in enumerate(message.content):
        if isinstance(part, ToolResultPart):
            made.items.append({"role": "tool", "tool_call_id": part.call_id, "content": _result(made, part, n)})
            if parts or message.role == "user":
                made.alter(f"/content/{n}", "a result becomes a tool message before the user's content")
        elif (written := _write_part(made, part, n)) is None:
            continue
        else:
            parts.append(written)
            if message.role == "tool":
                made.alter(f"/content/{n}", "a tool message holds only a result, so this part becomes a user message")
    if parts or not message.content:
        made.items.append({"role": "user", "content": _shortest(parts)})


def _result(made: Written, part: ToolResultPart, n: int) -> str | list[JsonObject]:
    if part.is_error:
        made.lose(f"/content/{n}/is_error", "tool messages cannot mark an error")
    if part.name is not None:
        made.lose(f"/content/{n}/name", "tool messages do not name the tool")
    if part.has_parts and all(isinstance(each, TextPart) for each in part.parts):
        return [{"type": "text", "text": each.text} for each in part.parts if isinstance(each, TextPart)]
    return result_text(part, n, made)


def _write_part(made: Written, part: Part, n: int) -> JsonObject | None:
    at = f"/content/{n}"
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart(data=str(data)):
            if part.url is not None:
                made.lose(f"{at}/url", "the image is written as data")
            if part.media_type is None:
                made.alter(f"{at}/media_type", "an image without media type is written as image/png")
            return {
                "type": "image_url",
                "image_url": {"url": data_url("image/png" if part.media_type is None else part.media_type, data)},
            }
        case ImagePart(url=str(url)) if split_data_url(url) is None:
            if part.media_type is not None:
                made.lose(f"{at}/media_type", "an image by URL has no media type")
            return {"type": "image_url", "image_url": {"url": url}}
        case AudioPart(data=str(data), url=None, media_type=str(kind)) if kind in SOUND_NAMES:
            return {"type": "input_audio", "input_audio": {"data": data, "format": SOUND_NAMES[kind]}}
        case DocumentPart() | FilePart() if (source := _file(part)) is not None:
            return {"type": "file", "file": source | ({"filename": part.name} if part.name is not None else {})}
    made.lose_kind(n, part, "user")
    return None


def _file(part: MediaPart) -> JsonObject | None:
    """Return a JSON object that :func:`read` converts back to the same file, or None if there is no such object."""
    match part:
        case (
            DocumentPart(data=str(data), url=None, media_type=str(kind))
            | FilePart(data=str(data), url=None, media_type=str(kind), file_id=None, provider=None)
        ) if media_part(kind).type == part.type and split_data_url(data_url(kind, data)) == (kind, data):
            return {"file_data": data_url(kind, data)}
        case FilePart(file_id=str(file_id), provider="openai", data=None, url=None, media_type=None):
            return {"file_id": file_id}
    return None


def _write_answer(made: Written, message: Message) -> None:
    texts: list[JsonObject] = []
    calls: list[JsonObject] = []
    for n, part in enumerate(message.content):
        if isinstance(part, TextPart):
            texts.append({"type": "text", "text": part.text})
            if calls:
                made.alter(f"/content/{n}", "the text is moved before the tool calls")
        elif isinstance(part, ToolCallPart):
            function = {"name": part.name, "arguments": to_text(part.arguments)}
            calls.append({"id": part.id, "type": "function", "function": function})
        else:
            made.lose_kind(n, part, "assistant")
    if not texts and not calls and message.content:
        return
    refused = is_refusal(message)
    item: JsonObject = {"role": "assistant", "content": _shortest(texts) if not refused and (texts or not calls) else None}
    if refused:
        item["refusal"] = texts[0]["text"]
    if calls:
        item["tool_calls"] = calls
    made.items.append(item)


def _shortest(parts: list[JsonObject]) -> str | list[JsonObject]:
    """Return the text if ``parts`` is a single text part. In all other cases, return ``parts``."""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
