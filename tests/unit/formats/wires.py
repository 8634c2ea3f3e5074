"""Strategies for the JSON that each provider documents, and for runyard's own messages."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from json import dumps
from typing import Any, Final

from hypothesis import strategies as st

from runyard.models import (
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    JsonObject,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.from_regex(r"[a-z]{1,4}", fullmatch=True)
urls = st.sampled_from(["https://example.org/a.png", "https://example.org/b", "gs://bucket/c"])
data = st.binary(max_size=6).map(lambda each: base64.b64encode(each).decode())
json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(texts, json, max_size=2)
image_types = st.sampled_from(["image/png", "image/jpeg", "image/webp"])


def some(required: Mapping[str, Any], **optional: Any) -> st.SearchStrategy[Any]:
    """Objects with the fields of ``required``, any of ``optional``, and at times one that nobody knows."""
    chosen = {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in required.items()}
    unknown = st.dictionaries(st.sampled_from(["x_new", "x/odd~name"]), json, max_size=1)
    made = st.fixed_dictionaries(chosen, optional={"cache_control": st.just({"type": "ephemeral"}), **optional})
    return st.tuples(made, unknown).map(lambda each: {**each[0], **each[1]})


def data_url(kinds: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda kind, held: f"data:{kind};base64,{held}", kinds, data)


arguments = objects.map(dumps) | st.just("")

_text = some({"type": "text", "text": texts})
_images = some(
    {"type": "image_url", "image_url": some({"url": urls | data_url(image_types)}, detail=st.sampled_from(["low", "high"]))}
)
_sound = some({"type": "input_audio", "input_audio": some({"data": data, "format": st.sampled_from(["wav", "mp3"])})})
_files = st.one_of(
    some({"file_data": data_url(st.sampled_from(["application/pdf", "text/plain", "x/y"]))}, filename=texts),
    some({"file_id": names}, filename=texts),
).map(lambda file: {"type": "file", "file": file})
_call = some({"id": names, "type": "function", "function": some({"name": names, "arguments": arguments})})
_custom = some({"id": names, "type": "custom", "custom": some({"name": names, "input": texts})})
_tool = some({"role": "tool", "tool_call_id": names, "content": texts | st.lists(_text, max_size=2)})
openai = st.one_of(
    some({"role": st.sampled_from(["system", "developer"]), "content": texts | st.lists(_text, max_size=2)}, name=names),
    some({"role": "user", "content": texts | st.lists(st.one_of(_text, _images, _sound, _files), max_size=3)}, name=names),
    some(
        {
            "role": "assistant",
            "content": st.none() | texts | st.lists(_text | some({"type": "refusal", "refusal": texts}), max_size=2),
        },
        refusal=st.none() | texts,
        tool_calls=st.lists(_call | _custom, max_size=2),
        audio=st.none() | some({"id": names}),
    ),
    _tool,
    st.lists(_tool, min_size=1, max_size=3),
)

_input = st.one_of(
    some({"type": "input_text", "text": texts}),
    some({"type": "input_image", "image_url": urls | data_url(image_types)}, detail=st.just("auto")),
    some({"type": "input_image", "file_id": names}),
    some({"type": "input_file", "file_data": data_url(st.sampled_from(["application/pdf", "x/y"]))}, filename=texts),
    some({"type": "input_file", "file_url": urls}, filename=texts),
    some({"type": "input_file", "file_id": names}),
)
_output = some({"type": "output_text", "text": texts, "annotations": st.just([])}) | some({"type": "refusal", "refusal": texts})
_answers = st.one_of(
    some({"type": "message", "role": "assistant", "content": texts | st.lists(_output, max_size=2)}, id=names),
    some({"type": "function_call", "call_id": names, "name": names, "arguments": arguments}, id=names),
    some(
        {
            "type": "reasoning",
            "id": names,
            "summary": st.lists(some({"type": "summary_text", "text": texts}), max_size=2),
        },
        encrypted_content=st.none() | texts,
    ),
    some({"type": "web_search_call", "id": names, "status": "completed"}),
)
_results = some({"type": "function_call_output", "call_id": names, "output": texts | st.lists(_input, max_size=2)})
_said = some(
    {"role": st.sampled_from(["user", "system", "developer"]), "content": texts | st.lists(_input, max_size=2)},
    type=st.just("message"),
)
openai_responses = st.one_of(
    _said, _answers, _results, st.lists(_answers, min_size=1, max_size=3), st.lists(_results, min_size=1, max_size=3)
)

_block = some({"type": "text", "text": texts}, citations=st.none() | st.just([{"type": "char_location", "cited_text": "a"}]))
_picture = some(
    {
        "type": "image",
        "source": st.one_of(
            some({"type": "base64", "media_type": image_types, "data": data}),
            some({"type": "url", "url": urls}),
            some({"type": "file", "file_id": names}),
        ),
    }
)
_document = some(
    {
        "type": "document",
        "source": st.one_of(
            some({"type": "base64", "media_type": "application/pdf", "data": data}),
            some({"type": "text", "media_type": "text/plain", "data": texts}),
            some({"type": "url", "url": urls}),
            some({"type": "file", "file_id": names}),
            some({"type": "content", "content": texts}),
        ),
    },
    title=st.none() | texts,
    context=texts,
)
_result = some(
    {"type": "tool_result", "tool_use_id": names},
    content=texts | st.lists(st.one_of(_block, _picture, _document), max_size=3),
    is_error=st.booleans(),
)
_thought = st.one_of(
    some({"type": "thinking", "thinking": texts, "signature": texts}),
    some({"type": "redacted_thinking", "data": texts}),
    some({"type": "tool_use", "id": names, "name": names, "input": objects}),
    some({"type": "server_tool_use", "id": names, "name": "web_search", "input": objects}),
)
anthropic = st.one_of(
    some({"role": "user", "content": texts | st.lists(st.one_of(_block, _picture, _document, _result), max_size=3)}),
    some({"role": "assistant", "content": texts | st.lists(_block | _thought, max_size=3)}),
    some({"role": "system", "content": texts | st.lists(_block, max_size=2)}),
)

_mime = st.sampled_from(["image/png", "audio/wav", "application/pdf", "video/mp4"])
_held = st.one_of(
    some({"inlineData": some({"mimeType": _mime, "data": data}, displayName=texts)}),
    some({"fileData": some({"fileUri": urls}, mimeType=_mime)}),
)
_response = some(
    {"name": names, "response": st.one_of(objects, texts.map(lambda t: {"output": t}), texts.map(lambda t: {"error": t}))},
    id=names,
    parts=st.lists(_held, max_size=2),
)
gemini = st.one_of(
    some({"role": "user", "parts": st.lists(some({"text": texts}) | _held, max_size=3)}),
    some({"role": "user", "parts": st.lists(some({"functionResponse": _response}), min_size=1, max_size=2)}),
    some(
        {
            "role": "model",
            "parts": st.lists(
                st.one_of(
                    some({"text": texts}, thought=st.booleans(), thoughtSignature=data),
                    some({"functionCall": some({"name": names}, id=names, args=objects)}, thoughtSignature=data),
                    some({"function_call": some({"name": names}, args=objects)}),
                    some({"executableCode": some({"code": texts, "language": "PYTHON"})}),
                ),
                max_size=3,
            ),
        }
    ),
    some({"parts": st.lists(some({"text": texts}), max_size=1)}),
    some({"role": "system", "parts": st.lists(some({"text": texts}), max_size=2)}),
)

_meta = some({"type": "base64", "media_type": _mime, "data": data}) | some({"type": "url", "url": urls})
acontext = some(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "parts": st.lists(
            st.one_of(
                some({"type": "text", "text": texts}, meta=objects),
                some({"type": "thinking", "text": texts, "meta": some({"signature": texts})}),
                some({"type": st.sampled_from(["image", "audio", "video", "file"]), "meta": _meta}, filename=texts),
                some({"type": "tool-call", "meta": some({"id": names, "name": names, "arguments": arguments | objects})}),
                some({"type": "tool-result", "text": texts, "meta": some({"tool_call_id": names}, is_error=st.booleans())}),
                some({"type": "data", "meta": objects}),
            ),
            max_size=3,
        ),
    },
    meta=objects,
)

BLOBS: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "openai": openai,
    "openai_responses": openai_responses,
    "anthropic": anthropic,
    "gemini": gemini,
    "acontext": acontext,
}

_maybe = st.none() | texts
_where = {"url": st.none() | urls, "data": st.none() | data}
_kinds = st.none() | st.sampled_from(
    [
        "image/png",
        "image/tiff",
        "audio/wav",
        "audio/mpeg",
        "audio/ogg",
        "application/pdf",
        "text/plain",
        "text/csv",
        "video/mp4",
    ]
)
_providers = st.none() | st.sampled_from(["openai", "anthropic", "google"])
media = st.one_of(
    st.builds(ImagePart, **_where, media_type=_kinds),
    st.builds(AudioPart, **_where, media_type=_kinds),
    st.builds(DocumentPart, **_where, media_type=_kinds, name=_maybe),
    st.builds(FilePart, **_where, media_type=_kinds, name=_maybe, file_id=st.none() | names, provider=_providers),
)
_content: st.SearchStrategy[JsonObject] = st.fixed_dictionaries({"content": json}) | st.fixed_dictionaries(
    {
        "content": st.lists(st.builds(TextPart, text=texts) | media, max_size=3).map(
            lambda parts: [part.model_dump(exclude_none=True) for part in parts]
        ),
        "has_parts": st.just(True),
    }
)
parts = st.one_of(
    st.builds(TextPart, text=texts),
    st.builds(ThinkingPart, text=texts, signature=_maybe, provider=_providers, redacted=st.booleans()),
    media,
    st.builds(ToolCallPart, id=names, name=names, arguments=objects),
    st.builds(
        lambda given, **fields: ToolResultPart(**given, **fields),
        _content,
        call_id=names,
        is_error=st.booleans(),
        name=st.none() | names,
    ),
)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=st.lists(parts, max_size=4),
    stop_reason=st.sampled_from([None, "stop", "refusal", "error"]),
    metadata=objects,
)
