"""Blobs that are refused, and the place that the error names (M6, A2)."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from runyard.domain.json_text import MAX_DIGITS
from runyard.domain.size_limits import MAX_NESTING, MAX_PARTS, MAX_VALUES
from runyard.errors import InvalidBlobError, InvalidInputError
from runyard.formats.conversion import Format, from_blob, to_format
from runyard.models import Message

FORMATS = get_args(Format)

TEXT = {"type": "text", "text": ""}
FAULTS: list[tuple[Format, Any, str]] = [
    ("openai", {"role": "user", "content": [{"type": "image_url", "image_url": {"url": 3}}]}, "/content/0/image_url/url"),
    ("openai", {"role": "user"}, "/content"),
    ("openai", {"role": "owner", "content": "a"}, ""),
    ("openai", {"role": "user", "content": [{"type": "text"}]}, "/content/0/text"),
    ("openai", {"role": "user", "content": [{"type": "vidoe"}]}, "/content/0"),
    ("openai", [], ""),
    ("openai", "hi", ""),
    ("openai", [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "/0/role"),
    (
        "openai",
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "[["}}]},
        "/tool_calls/0/function/arguments",
    ),
    ("openai_responses", {"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"}, "/arguments"),
    ("openai_responses", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "/1"),
    ("openai_responses", {"type": "odd"}, "/type"),
    ("openai_responses", {"role": "user", "content": [{"type": "input_file"}]}, "/content/0"),
    ("anthropic", {"role": "user", "content": [{"type": "tool_result", "content": "a"}]}, "/content/0/tool_use_id"),
    (
        "anthropic",
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": 1}]},
        "/content/0/input",
    ),
    ("anthropic", ["a"], ""),
    ("gemini", {"role": "user", "parts": [{"text": "a", "functionCall": {"name": "f"}}]}, "/parts/0"),
    ("gemini", {"role": "user", "parts": [{"inlineData": {"data": "aGk="}}]}, "/parts/0/inlineData/mimeType"),
    ("gemini", {"role": "user", "content": "a message of OpenAI"}, "/parts"),
    ("gemini", {"parts": [{"functionCall": {"name": "a"}, "function_call": {"name": "b"}}]}, "/parts/0"),
    ("gemini", {"parts": [{"inlineData": {"mimeType": "a/b", "mime_type": "c/d", "data": ""}}]}, "/parts/0/inlineData"),
    ("acontext", {"role": "user", "parts": [{"type": "tool-call", "meta": {"id": "a"}}]}, "/parts/0/meta/name"),
    ("native", {"role": "user", "content": "hi", "odd": 1}, "/odd"),
    ("native", {"role": "user", "content": [{"type": "text", "text": 1}]}, "/content/0/text"),
    (
        "native",
        {"role": "tool", "content": [{"type": "tool_result", "call_id": "c", "has_parts": True, "content": [TEXT | {"x": 1}]}]},
        "/content/0/content/0/x",
    ),
    ("native", {"role": "user", "content": "hi", **dict.fromkeys(map(str, range(1000)))}, ""),
    ("native", {"role": "user", "content": [TEXT] * (MAX_PARTS + 1)}, "/content"),
    ("native", "hi", ""),
]


@pytest.mark.parametrize(("format", "blob", "path"), FAULTS)
def test_m6_a_fault_is_named_by_its_place(format: Format, blob: Any, path: str) -> None:
    """M6."""
    with pytest.raises(InvalidBlobError) as error:
        from_blob(format, blob)
    assert error.value.details["path"] == path


@pytest.mark.parametrize("format", FORMATS)
def test_m6_a_hostile_shape_is_refused(format: Format) -> None:
    """M6, A2: before anything is built of it."""
    deep: Any = []
    for _ in range(MAX_NESTING):
        deep = [deep]
    for content in (deep, [None] * (MAX_VALUES + 1), float("nan")):
        blob = {"role": "user", "content": content}
        with pytest.raises(InvalidInputError):
            from_blob(format, blob)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":"\\ud800"}',
        '{"a":"\ud800"}',
        '{"a":' + "7" * (MAX_DIGITS + 1) + "}",
        '{"a":NaN}',
        '{"a":99999999999999999999}',
        '{"a":1}}',
        '{"a":[' + '"",' * MAX_VALUES,
        '{"a":' + "[" * 5000,
        '{"a":[' + "1," * MAX_VALUES + "1]}",
        '{"a":' + '"\\"' * 99,
        '{"a":1e999}',
        "1",
    ],
    ids=range(12),
)
def test_m6_hostile_json_in_a_text_is_refused(text: str) -> None:
    """M6, A2: before it is read, as far as its values are too many."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
    with pytest.raises(InvalidBlobError) as error:
        from_blob("openai", {"role": "assistant", "tool_calls": [call]})
    assert error.value.details["path"] == "/tool_calls/0/function/arguments"


def test_m6_the_values_of_all_texts_count_together() -> None:
    """M6, A2: a comma in a text is none of them."""

    def calls(text: str, other: str | None = None) -> dict[str, Any]:
        texts = (text, text if other is None else other)
        listed = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": each}} for each in texts]
        return {"role": "assistant", "content": None, "tool_calls": listed}

    commas = json.dumps({"a": "," * (MAX_VALUES - 9)})
    assert len(from_blob("openai", calls(commas, json.dumps({"a": [1] * 99}))).tool_calls) == 2

    assert len(from_blob("openai", calls(json.dumps({"a": ",[{" * MAX_VALUES}))).tool_calls) == 2
    assert len(from_blob("openai", calls(json.dumps({"a": [1] * (MAX_VALUES // 2 - 9)}))).tool_calls) == 2
    with pytest.raises(InvalidBlobError):
        from_blob("openai", calls(json.dumps({"a": [1] * (MAX_VALUES // 2 + 9)})))


@pytest.mark.parametrize(
    ("format", "blob"),
    [
        ("openai", {"role": "user", "content": [{"type": "text", "text": ""}] * (MAX_PARTS + 1)}),
        ("openai", [{"role": "tool", "tool_call_id": "c", "content": ""}] * (MAX_PARTS + 1)),
        ("openai_responses", [{"role": "user", "content": ""}] * (MAX_PARTS + 1)),
        ("anthropic", {"role": "assistant", "content": [{"type": "text", "text": ""}] * (MAX_PARTS + 1)}),
        ("gemini", {"parts": [{"text": ""}] * (MAX_PARTS + 1)}),
        ("acontext", {"role": "user", "parts": [{"type": "text", "text": ""}] * (MAX_PARTS + 1)}),
    ],
)
def test_m6_a_message_of_too_many_parts_is_refused(format: Format, blob: Any) -> None:
    """M6, A2."""
    with pytest.raises(InvalidBlobError, match=str(MAX_PARTS)):
        from_blob(format, blob)


def test_m1_an_unknown_format_is_refused() -> None:
    for call in (lambda: from_blob("odd", {}), lambda: to_format("odd", Message.user("a"))):  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError):
            call()


OUTPUT = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": ""}] * 1500}
RESPONSE = {"name": "f", "response": {}, "parts": [{"fileData": {"fileUri": ""}}] * 1500}
RESULTS: list[tuple[Format, Any]] = [
    ("openai", [{"role": "tool", "tool_call_id": "c", "content": [TEXT] * 1500}] * 2),
    ("openai_responses", [OUTPUT] * 2),
    ("anthropic", {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [TEXT] * 1500}] * 2}),
    ("gemini", {"parts": [{"functionResponse": RESPONSE}] * 2}),
]


@pytest.mark.parametrize(("format", "blob"), RESULTS)
def test_m6_parts_of_results_count_together(format: Format, blob: Any) -> None:
    """M6, A2: each of them becomes an object."""
    with pytest.raises(InvalidBlobError, match=f"more than {MAX_PARTS} parts"):
        from_blob(format, blob)
