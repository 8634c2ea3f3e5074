"""The format ``openai_responses``: input and output items of OpenAI's Responses API.

An assistant message can be several items: its reasoning, its text, its tool calls. A tool result is also an item. A message is
therefore one item or a list of items of one role, in both directions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter

from ..domain.messages import (
    DocumentPart,
    FilePart,
    ImagePart,
    MediaPart,
    Message,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from ..domain.size_limits import JsonObject, JsonValue
from .media import data_url, media_part, split_data_url
from .wire import Many, Read, Wire, Written, fault, from_text, is_refusal, lose_unknown, objects, parse, to_text

FORMAT: Final = "openai_responses"
PROVIDER: Final = "openai"


class InputText(Wire):
    type: Literal["input_text"]
    text: str


class InputImage(Wire):
    type: Literal["input_image"]
    image_url: str | None = None
    file_id: str | None = None


class InputFile(Wire):
    type: Literal["input_file"]
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None


class OutputText(Wire):
    type: Literal["output_text"]
    text: str


class Refusal(Wire):
    type: Literal["refusal"]
    refusal: str


Content = Annotated[InputText | InputImage | InputFile | OutputText | Refusal, Field(discriminator="type")]
Input = Annotated[InputText | InputImage | InputFile, Field(discriminator="type")]


class MessageItem(Wire):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Many[Content]


class FunctionCall(Wire):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionCallOutput(Wire):
    type: Literal["function_call_output"]
    call_id: str
    output: str | Many[Input]


class Text(Wire):
    type: Literal["summary_text", "reasoning_text"]
    text: str


class Reasoning(Wire):
    type: Literal["reasoning"]
    summary: Many[Text]
    encrypted_content: str | None = None


class Other(Wire):
    """An item that messages cannot hold. Only the original of the message contains this item."""

    type: Literal[
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "image_generation_call",
        "item_reference",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    ]


KINDS: Final = ("message", "function_call", "function_call_output", "reasoning")


def _kind(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else "message"
    return kind if kind in KINDS else "other"


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[Reasoning, Tag("reasoning")]
    | Annotated[Other, Tag("other")],
    Discriminator(_kind),
]

_ONE: Final[TypeAdapter[MessageItem | FunctionCall | FunctionCallOutput | Reasoning | Other]] = TypeAdapter(Item)


def read(blob: JsonValue) -> Read:
    """Return the message for an item, or for a list of items of one role. Raise InvalidBlobError."""
    made = Read(FORMAT)
    listed = objects(blob, FORMAT)
    roles: list[Role] = []
    for n, each in enumerate(listed):
        at = f"/{n}" if isinstance(blob, list) else ""
        one = parse(_ONE, each, FORMAT, at)
        roles.append(_role(one))
        if roles[-1] != roles[0]:
            raise fault(FORMAT, at, f"is an item of the role {roles[-1]} after items of {roles[0]}; store them separately")
        if isinstance(one, Other):
            made.lose(at, f"messages cannot hold this {one.type} item")
            continue
        lose_unknown(made, one, each, at)
        _read_one(made, one, at)
    made.role = roles[0]
    return made


def _role(one: MessageItem | FunctionCall | FunctionCallOutput | Reasoning | Other) -> Role:
    match one:
        case MessageItem(role="developer"):
            return "system"
        case MessageItem(role=("user" | "assistant" | "system") as role):
            return role
        case FunctionCallOutput():
            return "tool"
        case Other(type=kind) if kind.endswith("_output") or kind == "mcp_approval_response":
            return "tool"
    return "assistant"


def _read_one(made: Read, one: MessageItem | FunctionCall | FunctionCallOutput | Reasoning, at: str) -> None:
    match one:
        case MessageItem():
            if one.role == "developer":
                made.alter(f"{at}/role", "the role developer becomes system")
            if isinstance(one.content, str):
                made.parts.append(TextPart(text=one.content))
                return
            for n, part in enumerate(one.content):
                made.parts.append(_content(made, part, f"{at}/content/{n}"))
        case FunctionCall():
            arguments = from_text(made, one.arguments, f"{at}/arguments")
            made.parts.append(ToolCallPart(id=one.call_id, name=one.name, arguments=arguments))
        case FunctionCallOutput():
            content: JsonValue = one.output
            if not isinstance(content, str):
                made.nest(content, f"{at}/output")
                parts = [_content(made, part, f"{at}/output/{n}") for n, part in enumerate(content)]
                content = [part.model_dump(exclude_none=True) for part in parts]
            made.parts.append(ToolResultPart(call_id=one.call_id, content=content, has_parts=isinstance(content, list)))
        case Reasoning():
            text = "\n\n".join(part.text for part in one.summary)
            if len(one.summary) > 1:
                made.alter(f"{at}/summary", "the summaries are held as one text")
            made.parts.append(
                ThinkingPart(
                    text=text, signature=one.encrypted_content, provider=PROVIDER if one.encrypted_content is not None else None
                )
            )


def _content(made: Read, part: InputText | InputImage | InputFile | OutputText | Refusal, at: str) -> Part:
    match part:
        case InputText() | OutputText():
            return TextPart(text=part.text)
        case Refusal():
            made.stop_reason = "refusal"
            return TextPart(text=part.refusal)
        case InputImage(image_url=str(url)):
            if part.file_id is not None:
                made.lose(f"{at}/file_id", "the image is held by URL or data")
            if (split := split_data_url(url)) is not None:
                return ImagePart(media_type=split[0], data=split[1])
            return ImagePart(url=url)
        case InputImage(file_id=str(file_id)):
            made.alter(f"{at}/type", "an uploaded image becomes a file")
            return FilePart(file_id=file_id, provider=PROVIDER)
        case InputFile():
            return _file(made, part, at)
    raise fault(FORMAT, at, "has neither image_url nor file_id")


def _file(made: Read, part: InputFile, at: str) -> Part:
    given = [name for name in ("file_data", "file_url", "file_id") if getattr(part, name) is not None]
    if not given:
        raise fault(FORMAT, at, "has none of file_data, file_url and file_id")
    for name in given[1:]:
        made.lose(f"{at}/{name}", f"the file is held as {given[0]}")
    if part.file_data is not None:
        media_type, data = split_data_url(part.file_data) or (None, part.file_data)
        held = media_part(media_type, data=data, name=part.filename)
        if part.filename and not isinstance(held, DocumentPart | FilePart):
            made.lose(f"{at}/filename", f"a part of the type {held.type} has no name")
        return held
    if part.file_url is not None:
        return DocumentPart(url=part.file_url, name=part.filename)
    return FilePart(file_id=part.file_id, provider=PROVIDER, name=part.filename)


def write(message: Message, names: Mapping[str, str]) -> Written:
    """Return the items for a message, in the order of its content. Adjacent texts become one item."""
    made = Written(names)
    role = "user" if message.role == "tool" else message.role
    texts: list[JsonObject] = []
    for n, part in enumerate(message.content):
        if (content := _write_content(made, part, n, message)) is not None:
            texts.append(content)
            if message.role == "tool":
                made.alter(f"/content/{n}", "an item of a result holds only the result, so this part becomes a user item")
        elif (item := _write_item(made, part, n, message)) is not None:
            _flush(made, role, texts, message)
            made.items.append(item)
            if role == "user" and message.role != "tool":
                made.alter(f"/content/{n}", "a result becomes a tool item")
    _flush(made, role, texts, message)
    if not made.items and not message.content:
        made.items.append({"type": "message", "role": role, "content": []})
    return made


def _flush(made: Written, role: str, texts: list[JsonObject], message: Message) -> None:
    """Append one item with the collected ``texts``, and empty the list of texts."""
    if not texts:
        return
    plain = len(texts) == 1 and texts[0]["type"] in ("input_text", "output_text")
    item: JsonObject = {"type": "message", "role": role, "content": texts[0]["text"] if plain else [*texts]}
    if role == "assistant" and not plain:
        digest = hashlib.sha256(f"{message.id}/{len(made.items)}".encode()).hexdigest()[:48]
        item = {"id": f"msg_{digest}", **item, "status": "completed"}
    made.items.append(item)
    texts.clear()


def _write_item(made: Written, part: Part, n: int, message: Message) -> JsonObject | None:
    match part:
        case ToolCallPart() if message.role == "assistant":
            return {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": to_text(part.arguments)}
        case ToolResultPart() if message.role in ("user", "tool"):
            return {"type": "function_call_output", "call_id": part.call_id, "output": _output(made, part, f"/content/{n}")}
        case ThinkingPart(redacted=False) if message.role == "assistant":
            return _reasoning(made, part, n, message)
        case TextPart() | ImagePart() | DocumentPart() | FilePart() if message.role != "system":
            return None  # the loss was noted before
    made.lose_kind(n, part, message.role)
    return None


def _reasoning(made: Written, part: ThinkingPart, n: int, message: Message) -> JsonObject:
    own = part.signature is not None and part.provider == PROVIDER
    if part.signature is not None and not own:
        made.lose(f"/content/{n}/signature", "OpenAI accepts only its own encrypted reasoning")
    if part.signature is None and part.provider is not None:
        made.lose(f"/content/{n}/provider", "without a signature, an item cannot hold the provider of reasoning")
    digest = hashlib.sha256(f"{message.id}/{n}".encode()).hexdigest()[:48]
    made.alter(f"/content/{n}/id", "the reasoning has no id of OpenAI, so a new id is made")
    item = {"type": "reasoning", "id": f"rs_{digest}", "summary": [{"type": "summary_text", "text": part.text}]}
    return item | ({"encrypted_content": part.signature} if own else {})


def _output(made: Written, part: ToolResultPart, at: str) -> str | list[JsonObject]:
    if part.is_error:
        made.lose(f"{at}/is_error", "outputs cannot mark an error")
    if part.name is not None:
        made.lose(f"{at}/name", "outputs do not name the tool")
    if part.has_parts:
        parts = [_input(made, each, f"{at}/content/{k}") for k, each in enumerate(part.parts)]
        return [each for each in parts if each is not None]
    if isinstance(part.content, str):
        return part.content
    made.alter(f"{at}/content", "an output is a text, so this value becomes JSON text")
    return to_text(part.content)


def _write_content(made: Written, part: Part, n: int, message: Message) -> JsonObject | None:
    """Return a part as content of a message item. Return None if the part becomes a separate item or is lost."""
    match part:
        case TextPart() if message.role == "assistant":
            if is_refusal(message):
                return {"type": "refusal", "refusal": part.text}
            return {"type": "output_text", "text": part.text, "annotations": []}
        case TextPart():
            return {"type": "input_text", "text": part.text}
        case ImagePart() | DocumentPart() | FilePart() if message.role in ("user", "tool"):
            return _input(made, part, f"/content/{n}")
        case ImagePart() | DocumentPart() | FilePart() if message.role == "assistant":
            made.lose_kind(n, part, message.role)
    return None


def _input(made: Written, part: TextPart | MediaPart, at: str) -> JsonObject | None:
    """Return input that :func:`read` converts back to the same part.

    If no such input exists, record a loss and return None.
    """
    match part:
        case TextPart():
            return {"type": "input_text", "text": part.text}
        case ImagePart(data=str(data), url=None, media_type=str(kind)):
            return {"type": "input_image", "image_url": data_url(kind, data), "detail": "auto"}
        case ImagePart(url=str(url), data=None) if split_data_url(url) is None:
            if part.media_type is not None:
                made.lose(f"{at}/media_type", "an image by URL has no media type")
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case (
            DocumentPart(data=str(data), url=None, media_type=str(kind))
            | FilePart(data=str(data), url=None, media_type=str(kind), file_id=None, provider=None)
        ) if media_part(kind).type == part.type and split_data_url(data_url(kind, data)) == (kind, data):
            return _input_file({"file_data": data_url(kind, data)}, part.name)
        case DocumentPart(url=str(url), data=None):
            if part.media_type is not None:
                made.lose(f"{at}/media_type", "a file by URL has no media type")
            return _input_file({"file_url": url}, part.name)
        case FilePart(file_id=str(file_id), provider="openai", url=None, data=None, media_type=None):
            return _input_file({"file_id": file_id}, part.name)
    made.lose(at, f"an item cannot hold this {part.type} part")
    return None


def _input_file(source: JsonObject, name: str | None) -> JsonObject:
    return {"type": "input_file"} | source | ({"filename": name} if name is not None else {})
