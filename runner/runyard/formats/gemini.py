"""The format ``gemini``: contents of the Gemini API.

Gemini matches a function's response to its call by the name of the function. Ids are optional. A call or a response without an
id gets a generated id. This id has the name of the function and a number. The number counts the parts with this name in the
content. Generated ids repeat in a thread.

Gemini's API has a parameter ``systemInstruction`` for the system prompt. In this format, the value of this parameter is a
content of the role ``system``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter, model_validator
from pydantic.alias_generators import to_camel

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
from .media import is_base64, media_part
from .wire import Many, Read, Wire, Written, fault, lose_unknown, parse, to_text

FORMAT: Final = "gemini"
PROVIDER: Final = "google"
PROVIDERS: Final = frozenset({"google", "google-gla", "google-vertex", "google-cloud"})
OUTPUT: Final = "output"
ERROR: Final = "error"
KINDS: Final = ("text", "inline_data", "file_data", "function_call", "function_response")
"""The fields that a part can have. Each part has exactly one of these fields."""


class Camel(Wire):
    """A JSON object whose field names are in camel case, or in snake case as in Google's Python library."""

    model_config = ConfigDict(alias_generator=to_camel)

    @model_validator(mode="after")
    def _check_spelling(self) -> Self:
        for name in self.model_extra or ():
            if name in type(self).model_fields:
                raise ValueError(f"{name} is given in two spellings")
        return self


class Blob(Camel):
    mime_type: str
    data: str
    display_name: str | None = None


class FileData(Camel):
    file_uri: str
    mime_type: str | None = None
    display_name: str | None = None


class FunctionCall(Camel):
    id: str | None = None
    name: str
    args: JsonObject | None = None


class ResponsePart(Camel):
    inline_data: Blob | None = None
    file_data: FileData | None = None


class FunctionResponse(Camel):
    id: str | None = None
    name: str
    response: JsonObject
    parts: Many[ResponsePart] | None = None


class ContentPart(Camel):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None


class Content(Camel):
    """A message. If the answer of a model was empty, the content has no parts."""

    role: Literal["user", "model", "system", "function"] = "user"
    parts: Many[ContentPart] = Field(default_factory=list)


_ONE: Final = TypeAdapter(Content)


class Ids:
    """The ids of the calls and the responses of a content. A generated id differs from every given id."""

    def __init__(self, parts: Sequence[ContentPart]) -> None:
        named = [each for part in parts for each in (part.function_call, part.function_response) if each is not None]
        self._taken = {(type(each), each.id) for each in named}
        self._numbers: Counter[tuple[type, str]] = Counter()

    def of(self, made: Read, held: FunctionCall | FunctionResponse, at: str) -> str:
        """Return the id of a call or of a response."""
        if held.id:
            return held.id
        made.alter(f"{at}/id", "there is no id, so an id is made from the name")
        while True:
            self._numbers[type(held), held.name] += 1
            found = f"{held.name}-{self._numbers[type(held), held.name]}"
            if (type(held), found) not in self._taken:
                self._taken.add((type(held), found))
                return found


def read(blob: JsonValue) -> Read:
    """Return the message for a Gemini content. A content with a function's response becomes a tool message."""
    made = Read(FORMAT)
    one = parse(_ONE, blob, FORMAT)
    lose_unknown(made, one, blob)
    made.role = {"user": "user", "model": "assistant", "system": "system", "function": "tool"}[one.role]  # type: ignore[assignment]
    if "parts" not in one.model_fields_set and one.model_extra:
        raise fault(FORMAT, "/parts", "Field required")
    ids = Ids(one.parts)
    for n, part in enumerate(one.parts):
        if (held := _part(made, part, blob["parts"][n], f"/parts/{n}", ids)) is not None:
            made.parts.append(held)
            if isinstance(held, ToolResultPart) and made.role == "user":
                made.role = "tool"
    return made


def _part(made: Read, part: ContentPart, blob: JsonObject, at: str, ids: Ids) -> Part | None:
    found = [kind for kind in KINDS if getattr(part, kind) is not None]
    if len(found) > 1:
        raise fault(FORMAT, at, f"has {' and '.join(found)}; a part has one of them")
    if part.thought_signature is not None and not (part.thought and part.text is not None):
        made.lose(f"{at}/{_key(blob, 'thought_signature')}", "only reasoning has a signature")
    if part.thought and part.text is None:
        made.lose(f"{at}/thought", "only text can be reasoning")
    if part.text is not None:
        if part.thought:
            return _thinking(part.text, part.thought_signature)
        return TextPart(text=part.text)
    if part.function_call is not None:
        call = part.function_call
        where = f"{at}/{_key(blob, 'function_call')}"
        return ToolCallPart(id=ids.of(made, call, where), name=call.name, arguments=call.args or {})
    if part.function_response is not None:
        return _result(made, part.function_response, f"{at}/{_key(blob, 'function_response')}", ids)
    return _file(made, part, at)


def _thinking(text: str, signature: str | None) -> ThinkingPart:
    return ThinkingPart(text=text, signature=signature, provider=PROVIDER if signature is not None else None)


def _key(blob: JsonObject, name: str) -> str:
    """Return the field ``name`` as ``blob`` spells it, in camel case or in snake case."""
    return name if name in blob else to_camel(name)


def _result(made: Read, held: FunctionResponse, at: str, ids: Ids) -> ToolResultPart:
    call_id = ids.of(made, held, at)
    content: JsonValue = held.response
    is_error = False
    if len(held.response) == 1 and (key := next(iter(held.response))) in (OUTPUT, ERROR):
        content, is_error = held.response[key], key == ERROR
    if not held.parts:
        return ToolResultPart(call_id=call_id, name=held.name, content=content, is_error=is_error)
    made.nest(held.parts, f"{at}/parts")
    parts: list[JsonObject] = []
    if content is not None and not (isinstance(content, dict) and not content):
        if not isinstance(content, str):
            made.alter(f"{at}/response", "a value in a response with files is held as JSON text")
        parts.append({"type": "text", "text": content if isinstance(content, str) else to_text(content)})
    for k, part in enumerate(held.parts):
        if (file := _file(made, part, f"{at}/parts/{k}")) is not None:
            parts.append(file.model_dump(exclude_none=True))
    return ToolResultPart(call_id=call_id, name=held.name, content=parts, is_error=is_error, has_parts=True)


def _file(made: Read, part: ContentPart | ResponsePart, at: str) -> MediaPart | None:
    if part.inline_data is not None:
        about: Blob | FileData = part.inline_data
        held = media_part(about.mime_type, data=part.inline_data.data, name=about.display_name)
    elif part.file_data is not None:
        about = part.file_data
        held = media_part(about.mime_type, url=part.file_data.file_uri, name=about.display_name)
    else:
        if not part.model_extra:
            made.lose(at, "the part is empty")
        return None
    if about.display_name is not None and not isinstance(held, DocumentPart | FilePart):
        made.lose(f"{at}/displayName", f"a part of the type {held.type} has no name")
    return held


def write(message: Message, names: Mapping[str, str]) -> Written:
    """Convert a message to one Gemini content. The result is empty if a Gemini content can hold no part of the message."""
    made = Written(names)
    role = {"user": "user", "tool": "user", "assistant": "model", "system": "system"}[message.role]
    parts: list[JsonObject] = []
    for n, part in enumerate(message.content):
        if (written := _write_part(made, part, n, message.role)) is not None:
            parts.append(written)
    with_results = any(isinstance(part, ToolResultPart) for part in message.content)
    if message.role in ("user", "tool") and with_results != (message.role == "tool"):
        made.alter("/role", "on reading, the role is tool if there is a function's response, and user if not")
    if parts or not message.content:
        made.items.append({"role": role, "parts": parts})
    return made


def _write_part(made: Written, part: Part, n: int, role: str) -> JsonObject | None:
    at = f"/content/{n}"
    match part:
        case TextPart():
            return {"text": part.text}
        case ThinkingPart(redacted=False) if role == "assistant":
            own = part.signature is not None and part.provider in PROVIDERS and is_base64(part.signature)
            if part.signature is not None and not own:
                made.lose(f"{at}/signature", "Gemini accepts only its own signatures, as base64")
            if part.provider not in (None, PROVIDER) or (part.provider is not None and part.signature is None):
                made.alter(f"{at}/provider", "Gemini's JSON has no provider; a signature stands for the provider google")
            return {"text": part.text, "thought": True} | ({"thoughtSignature": part.signature} if own else {})
        case ToolCallPart() if role == "assistant":
            return {"functionCall": {"id": part.id, "name": part.name, "args": part.arguments}}
        case ToolResultPart() if role in ("user", "tool"):
            return {"functionResponse": _response(made, part, at)}
        case ImagePart() | AudioPart() | DocumentPart() | FilePart() if role != "system":
            return _write_file(made, part, at)
    made.lose_kind(n, part, role)
    return None


def _response(made: Written, part: ToolResultPart, at: str) -> JsonObject:
    name = part.name or made.names.get(part.call_id)
    if name is None:
        made.alter(f"{at}/name", "the name of the tool is not known, so the id of the call is used as the name")
    content, files = part.content, []
    if part.has_parts:
        texts = [each.text for each in part.parts if isinstance(each, TextPart)]
        written = [
            _write_file(made, each, f"{at}/content/{k}") for k, each in enumerate(part.parts) if not isinstance(each, TextPart)
        ]
        files = [file for file in written if file is not None]
        content = "\n".join(texts) if texts else None
        kinds = [isinstance(each, TextPart) for each in part.parts]
        if len(texts) > 1 or True in kinds[1:] or not files:
            made.alter(f"{at}/content", "a response has one text, which comes before its files")
    elif isinstance(content, dict) and not part.is_error and [*content] not in ([OUTPUT], [ERROR]):
        return {"id": part.call_id, "name": name or part.call_id, "response": content}
    response = {ERROR if part.is_error else OUTPUT: content}
    return {"id": part.call_id, "name": name or part.call_id, "response": response} | ({"parts": files} if files else {})


def _write_file(made: Written, part: MediaPart, at: str) -> JsonObject | None:
    """Return a part that :func:`read` converts back to the same file.

    If there is no such part, record a loss and return None.
    """
    name = getattr(part, "name", None)
    shown = {"displayName": name} if name is not None else {}
    if isinstance(part, FilePart) and part.file_id is None and part.provider is not None:
        made.lose(f"{at}/provider", "only a file with a file id has a provider")
    if media_part(part.media_type).type == part.type and not (isinstance(part, FilePart) and part.file_id is not None):
        if part.data is not None and part.url is None and part.media_type is not None:
            return {"inlineData": {"mimeType": part.media_type, "data": part.data} | shown}
        if part.url is not None and part.data is None:
            kind = {"mimeType": part.media_type} if part.media_type is not None else {}
            return {"fileData": {"fileUri": part.url} | kind | shown}
    if part.url is not None and part.data is None and part.media_type is None:
        made.alter(f"{at}/type", f"without a media type, a file is held as a file and not as {part.type}")
        return {"fileData": {"fileUri": part.url} | shown}
    made.lose(at, f"a Gemini content cannot hold this {part.type} part")
    return None
