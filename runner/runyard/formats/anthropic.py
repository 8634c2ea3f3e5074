"""The format ``anthropic``: messages of Anthropic's Messages API.

Tool results are blocks of a user message. A message with N results therefore stays one message. Anthropic's API has a
parameter ``system`` for the system prompt. In this format, the value of this parameter is the content of a message of the role
``system``.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from ..domain.size_limits import JsonObject, JsonValue
from .media import data_of, media_part, text_of
from .wire import Many, Read, Wire, Written, fault, lose_unknown, parse, to_text

FORMAT: Final = "anthropic"
PROVIDER: Final = "anthropic"
IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
PDF: Final = "application/pdf"
PLAIN: Final = "text/plain"


class Text(Wire):
    type: Literal["text"]
    text: str


class Data(Wire):
    type: Literal["base64"]
    media_type: str
    data: str


class PlainText(Wire):
    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


class Url(Wire):
    type: Literal["url"]
    url: str


class Uploaded(Wire):
    type: Literal["file"]
    file_id: str


class Nested(Wire):
    type: Literal["content"]


class Image(Wire):
    type: Literal["image"]
    source: Annotated[Data | Url | Uploaded, Field(discriminator="type")]


class Document(Wire):
    type: Literal["document"]
    source: Annotated[Data | PlainText | Url | Uploaded | Nested, Field(discriminator="type")]
    title: str | None = None


class Thinking(Wire):
    type: Literal["thinking"]
    thinking: str
    signature: str


class RedactedThinking(Wire):
    type: Literal["redacted_thinking"]
    data: str


class ToolUse(Wire):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject


class Other(Wire):
    """A block that messages cannot hold. Only the original of the message contains this block."""

    type: Literal[
        "search_result",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "container_upload",
        "compaction",
        "tool_reference",
        "browser_state",
    ]


class ToolResult(Wire):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Many[Annotated[Text | Image | Document | Other, Field(discriminator="type")]] | None = None
    is_error: bool = False


class OfUser(Wire):
    role: Literal["user"]
    content: str | Many[Annotated[Text | Image | Document | ToolResult | Other, Field(discriminator="type")]]


class OfAssistant(Wire):
    role: Literal["assistant"]
    content: (
        str
        | Many[Annotated[Text | Image | Document | Thinking | RedactedThinking | ToolUse | Other, Field(discriminator="type")]]
    )


class System(Wire):
    role: Literal["system"]
    content: str | Many[Text]


_ONE: Final[TypeAdapter[OfUser | OfAssistant | System]] = TypeAdapter(
    Annotated[OfUser | OfAssistant | System, Field(discriminator="role")]
)


def read(blob: JsonValue) -> Read:
    """Return the message for an Anthropic message. A user message with a tool result becomes a tool message."""
    made = Read(FORMAT)
    one = parse(_ONE, blob, FORMAT)
    if not isinstance(blob, dict):
        raise fault(FORMAT, "", "is not a JSON object")
    lose_unknown(made, one, {name: value for name, value in blob.items() if name != "content"})
    made.role = one.role
    if isinstance(one.content, str):
        made.parts.append(TextPart(text=one.content))
        return made
    for n, block in enumerate(one.content):
        if (part := _part(made, block, blob["content"][n], f"/content/{n}")) is not None:
            made.parts.append(part)
            if isinstance(part, ToolResultPart):
                made.role = "tool"
    return made


def _part(made: Read, block: Wire, blob: JsonObject, at: str) -> Part | None:
    """Return the part for a block, or None if no part can hold the block. Record the losses in ``made``."""
    if isinstance(block, Other) or (isinstance(block, Document) and isinstance(block.source, Nested)):
        made.lose(at, f"messages cannot hold this {blob['type']} block")
        return None
    if not isinstance(block, ToolResult):
        lose_unknown(made, block, blob, at)
    match block:
        case Text():
            return TextPart(text=block.text)
        case Thinking():
            return ThinkingPart(text=block.thinking, signature=block.signature, provider=PROVIDER)
        case RedactedThinking():
            return ThinkingPart(text="", signature=block.data, provider=PROVIDER, redacted=True)
        case ToolUse():
            return ToolCallPart(id=block.id, name=block.name, arguments=block.input)
        case ToolResult():
            return _result(made, block, blob, at)
        case Image(source=Uploaded(file_id=file_id)):
            made.alter(f"{at}/type", "an uploaded image becomes a file")
            return FilePart(file_id=file_id, provider=PROVIDER)
        case Image(source=Data(media_type=kind, data=data)):
            return ImagePart(media_type=kind, data=data)
        case Image(source=Url(url=url)):
            return ImagePart(url=url)
        case Document(source=Url(url=url), title=title):
            return DocumentPart(url=url, name=title)
        case Document(source=Uploaded(file_id=file_id), title=title):
            return FilePart(file_id=file_id, provider=PROVIDER, name=title)
        case Document(source=Data(media_type=kind, data=data), title=title):
            held = media_part(kind, data=data, name=title)
            return held if isinstance(held, DocumentPart) else DocumentPart(data=data, media_type=kind, name=title)
        case Document(source=PlainText(data=text), title=title):
            return DocumentPart(data=data_of(text), media_type=PLAIN, name=title)
    raise AssertionError(block)


def _result(made: Read, block: ToolResult, blob: JsonObject, at: str) -> ToolResultPart:
    lose_unknown(made, block, {name: value for name, value in blob.items() if name != "content"}, at)
    if block.content is None or isinstance(block.content, str):
        return ToolResultPart(call_id=block.tool_use_id, content=block.content, is_error=block.is_error)
    made.nest(block.content, f"{at}/content")
    parts = [_part(made, each, blob["content"][k], f"{at}/content/{k}") for k, each in enumerate(block.content)]
    content = [part.model_dump(exclude_none=True) for part in parts if part is not None]
    return ToolResultPart(call_id=block.tool_use_id, content=content, is_error=block.is_error, has_parts=True)


def write(message: Message, names: Mapping[str, str]) -> Written:
    """Convert a message to one Anthropic message.

    The result is empty if an Anthropic message can hold no part of the content.
    """
    made = Written(names)
    role = "user" if message.role == "tool" else message.role
    blocks: list[JsonObject] = []
    for n, part in enumerate(message.content):
        if (block := _block(made, part, n, message.role)) is not None:
            blocks.append(block)
    if message.role == "tool" and not any(isinstance(part, ToolResultPart) for part in message.content):
        made.alter("/role", "a message without tool results becomes a user message")
    if message.role == "user" and any(isinstance(part, ToolResultPart) for part in message.content):
        made.alter("/role", "a message with tool results becomes a tool message")
    if blocks or not message.content:
        text = blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else None
        made.items.append({"role": role, "content": blocks if text is None else text})
    return made


def _block(made: Written, part: Part, n: int, role: str) -> JsonObject | None:
    at = f"/content/{n}"
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ThinkingPart() if role == "assistant":
            return _thinking(made, part, at)
        case ToolCallPart() if role == "assistant":
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": part.arguments}
        case ToolResultPart() if role in ("user", "tool"):
            return _result_block(made, part, at)
        case ImagePart() | AudioPart() | DocumentPart() | FilePart() if role != "system":
            return _media(made, part, at)
    made.lose_kind(n, part, role)
    return None


def _thinking(made: Written, part: ThinkingPart, at: str) -> JsonObject | None:
    own = part.signature is not None and part.provider == PROVIDER
    if part.redacted:
        if not own:
            made.lose(at, "Anthropic reads only its own redacted reasoning")
        elif part.text:
            made.lose(f"{at}/text", "redacted reasoning has no text")
        return {"type": "redacted_thinking", "data": part.signature} if own else None
    if not own:
        made.lose(f"{at}/signature", "Anthropic accepts reasoning in a request only with Anthropic's signature")
    return {"type": "thinking", "thinking": part.text, "signature": part.signature if own else ""}


def _result_block(made: Written, part: ToolResultPart, at: str) -> JsonObject:
    block: JsonObject = {"type": "tool_result", "tool_use_id": part.call_id}
    if part.name is not None:
        made.lose(f"{at}/name", "tool results do not name the tool")
    if part.has_parts:
        blocks = [_result_part(made, each, f"{at}/content/{k}") for k, each in enumerate(part.parts)]
        block["content"] = [each for each in blocks if each is not None]
    elif isinstance(part.content, str):
        block["content"] = part.content
    elif part.content is not None:
        made.alter(f"{at}/content", "a tool result is a text, so this value becomes JSON text")
        block["content"] = to_text(part.content)
    return block | ({"is_error": True} if part.is_error else {})


def _result_part(made: Written, part: TextPart | MediaPart, at: str) -> JsonObject | None:
    return {"type": "text", "text": part.text} if isinstance(part, TextPart) else _media(made, part, at)


def _media(made: Written, part: MediaPart, at: str) -> JsonObject | None:
    """Return a block that :func:`read` converts back to the same file.

    If no such block exists, record a loss and return None.
    """
    match part:
        case ImagePart(data=str(data), url=None) if part.media_type in IMAGES:
            return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": data}}
        case ImagePart(url=str(url), data=None):
            if part.media_type is not None:
                made.lose(f"{at}/media_type", "an image by URL has no media type")
            return {"type": "image", "source": {"type": "url", "url": url}}
        case DocumentPart(data=str(data), url=None, media_type="application/pdf"):
            return _document({"type": "base64", "media_type": PDF, "data": data}, part.name)
        case DocumentPart(data=str(data), url=None, media_type="text/plain") if (text := text_of(data)) is not None:
            return _document({"type": "text", "media_type": PLAIN, "data": text}, part.name)
        case DocumentPart(url=str(url), data=None):
            if part.media_type is not None:
                made.lose(f"{at}/media_type", "a document by URL has no media type")
            return _document({"type": "url", "url": url}, part.name)
        case FilePart(file_id=str(file_id), provider="anthropic", url=None, data=None, media_type=None):
            return _document({"type": "file", "file_id": file_id}, part.name)
    made.lose(at, f"Anthropic's messages cannot hold this {part.type} part")
    return None


def _document(source: JsonObject, title: str | None) -> JsonObject:
    return {"type": "document", "source": source} | ({"title": title} if title is not None else {})
