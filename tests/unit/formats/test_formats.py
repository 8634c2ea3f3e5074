"""What each format documents, and where it lands: roles, results with their ids, proofs, and faults (M1 to M6)."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from runyard.formats.conversion import CODECS, Format, from_blob, to_format
from runyard.formats.pages import formatted
from runyard.formats.wire import MAX_LOSSES
from runyard.models import (
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)

FORMATS = get_args(Format)
IMAGE = ImagePart(data="aGk=", media_type="image/png")
EXAMPLES: list[tuple[Format, Any, str, list[Part]]] = [
    ("openai", {"role": "system", "content": "be kind"}, "system", [TextPart(text="be kind")]),
    ("openai", {"role": "developer", "content": "be kind"}, "system", [TextPart(text="be kind")]),
    (
        "openai",
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
                {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk=", "filename": "a.pdf"}},
                {"type": "file", "file": {"file_id": "file-1"}},
            ],
        },
        "user",
        [
            TextPart(text="see"),
            IMAGE,
            ImagePart(url="https://example.org/a.png"),
            AudioPart(data="aGk=", media_type="audio/mpeg"),
            DocumentPart(data="aGk=", media_type="application/pdf", name="a.pdf"),
            FilePart(file_id="file-1", provider="openai"),
        ],
    ),
    (
        "openai",
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}],
        },
        "assistant",
        [ToolCallPart(id="c", name="add", arguments={"x": 1})],
    ),
    ("openai", {"role": "assistant", "refusal": "no"}, "assistant", [TextPart(text="no")]),
    ("openai", {"role": "tool", "tool_call_id": "c", "content": "2"}, "tool", [ToolResultPart(call_id="c", content="2")]),
    (
        "openai_responses",
        [
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "s"},
            {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "add", "arguments": "{}"},
        ],
        "assistant",
        [ThinkingPart(text="hm", signature="s", provider="openai"), ToolCallPart(id="c", name="add")],
    ),
    (
        "openai_responses",
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"}],
        },
        "tool",
        [ToolResultPart(call_id="c", content=[IMAGE.model_dump(exclude_none=True)], has_parts=True)],
    ),
    (
        "anthropic",
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see", "cache_control": {"type": "ephemeral"}},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}, "title": "a"},
                {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}},
            ],
        },
        "user",
        [
            TextPart(text="see"),
            IMAGE,
            DocumentPart(data="aGk=", media_type="text/plain", name="a"),
            DocumentPart(url="https://example.org/a.pdf"),
        ],
    ),
    (
        "anthropic",
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "encrypted"},
                {"type": "tool_use", "id": "c", "name": "add", "input": {"x": 1}},
            ],
        },
        "assistant",
        [
            ThinkingPart(text="hm", signature="s", provider="anthropic"),
            ThinkingPart(text="", signature="encrypted", provider="anthropic", redacted=True),
            ToolCallPart(id="c", name="add", arguments={"x": 1}),
        ],
    ),
    (
        "gemini",
        {
            "role": "model",
            "parts": [
                {"text": "hm", "thought": True, "thoughtSignature": "cw=="},
                {"functionCall": {"name": "add", "args": {"x": 1}}, "thoughtSignature": "cw=="},
                {"functionCall": {"name": "add", "args": {"x": 2}}},
            ],
        },
        "assistant",
        [
            ThinkingPart(text="hm", signature="cw==", provider="google"),
            ToolCallPart(id="add-1", name="add", arguments={"x": 1}),
            ToolCallPart(id="add-2", name="add", arguments={"x": 2}),
        ],
    ),
    (
        "gemini",
        {"role": "user", "parts": [{"inline_data": {"mime_type": "video/mp4", "data": "aGk="}}]},
        "user",
        [FilePart(data="aGk=", media_type="video/mp4")],
    ),
    (
        "acontext",
        {
            "role": "user",
            "parts": [{"type": "tool-result", "text": "2", "meta": {"tool_call_id": "c", "is_error": False}}],
            "meta": {"task": 1},
        },
        "tool",
        [ToolResultPart(call_id="c", content="2")],
    ),
    ("native", {"role": "user", "content": "hi", "metadata": {"a": 1}}, "user", [TextPart(text="hi")]),
]


@pytest.mark.parametrize(("format", "blob", "role", "content"), EXAMPLES)
def test_m1_a_documented_message_is_held_part_by_part(format: Format, blob: Any, role: str, content: list[Part]) -> None:
    """M1, M2."""
    message = from_blob(format, blob)
    assert (message.role, message.content) == (role, content)
    for other in FORMATS:
        converted = to_format(other, message)
        assert converted.items or converted.losses


RESULTS = Message.tool(
    ToolResultPart(call_id="a", content="1"),
    ToolResultPart(call_id="b", content="no", is_error=True),
    ToolResultPart(call_id="c", content=[IMAGE.model_dump(exclude_none=True)], has_parts=True),
)


@pytest.mark.parametrize("format", FORMATS)
def test_m4_results_keep_their_ids(format: Format) -> None:
    """M4: three results are three in every format, each with the id of its call."""
    message = from_blob("anthropic", to_format("anthropic", RESULTS).items[0])
    assert [part.call_id for part in message.tool_results] == ["a", "b", "c"]
    again = [from_blob(format, item) for item in to_format(format, message).items]
    assert [part.call_id for each in again for part in each.tool_results] == ["a", "b", "c"]


def test_m4_tool_messages_of_openai_are_one_message() -> None:
    """M4: a list comes back as the same list."""
    blob = [{"role": "tool", "tool_call_id": call, "content": call} for call in "ab"]
    message = from_blob("openai", blob)
    assert [part.call_id for part in message.tool_results] == ["a", "b"]
    assert message.source is None
    assert to_format("openai", message).items == blob


async def test_m4_a_result_of_gemini_names_its_tool() -> None:
    """M4: by the call on the page, and else by the id of the call, which is listed."""
    call = Message.assistant([ToolCallPart(id="c", name="add")])
    result = Message.tool(ToolResultPart(call_id="c", content="2"))
    page = await formatted([result, call], "gemini", newest_first=True)
    assert page.items[0]["parts"][0]["functionResponse"] == {"id": "c", "name": "add", "response": {"output": "2"}}
    assert (page.message_ids, page.losses) == ([result.id, call.id], [])
    alone = await formatted([result], "gemini")
    assert [(loss.message_id, loss.path) for loss in alone.losses] == [(result.id, "/content/0/name")]


async def test_m4_a_result_names_the_tool_of_the_last_call_with_its_id() -> None:
    """M4: ids repeat in a thread, since the calls of Gemini may have none."""
    path: list[Message] = []
    for name in ("add", "subtract"):
        path += [Message.assistant([ToolCallPart(id="c", name=name)]), Message.tool(ToolResultPart(call_id="c", content="2"))]
    page = await formatted(path, "gemini")
    assert [item["parts"][0]["functionResponse"]["name"] for item in page.items[1::2]] == ["add", "subtract"]
    other_way = await formatted(path[::-1], "gemini", newest_first=True)
    assert (other_way.items, other_way.losses) == (page.items[::-1], [])


def test_m4_an_id_that_is_made_is_no_other_calls() -> None:
    """M4: and the response has the same as its call."""
    ids = [{"id": "add-2"}, {}, {}, {"id": "add-4"}]
    calls = [{"functionCall": {"name": "add", **id}} for id in ids]
    results = [{"functionResponse": {"name": "add", "response": {}, **id}} for id in ids]
    called = [call.id for call in from_blob("gemini", {"role": "model", "parts": calls}).tool_calls]
    assert called == ["add-2", "add-1", "add-3", "add-4"]
    assert [part.call_id for part in from_blob("gemini", {"role": "user", "parts": results}).tool_results] == called


def test_m2_gemini_may_say_nothing() -> None:
    """M2: a model that only thought returns a content without parts."""
    assert to_format("gemini", from_blob("gemini", {"role": "model"})).items == [{"role": "model"}]


@pytest.mark.parametrize("format", CODECS)
def test_m3_a_system_prompt_stays_one(format: Format) -> None:
    prompt = Message(role="system", content="be kind")  # type: ignore[arg-type]
    [item] = to_format(format, prompt).items
    assert item["role"] == "system"
    assert from_blob(format, item).role == "system"


@pytest.mark.parametrize(("one", "other"), [("openai", "anthropic"), ("anthropic", "gemini"), ("openai_responses", "openai")])
def test_m3_a_refusal_is_text_elsewhere(one: Format, other: Format) -> None:
    message = Message.assistant("no", stop_reason="refusal")
    assert from_blob(one, to_format(one, message).items[0]).text == "no"
    assert from_blob(other, to_format(other, message).items[0]).text == "no"
    assert from_blob("openai", {"role": "assistant", "refusal": "no"}).stop_reason == "refusal"


def test_m3_what_the_original_has_more_is_listed() -> None:
    """M3: with its place in the original."""
    blob = {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "x/y": 1}
    losses = to_format("openai", from_blob("anthropic", blob)).losses
    assert [(loss.format, loss.path) for loss in losses] == [
        ("anthropic", "/x~1y"),
        ("anthropic", "/content/0/cache_control"),
    ]


def test_m3_a_proof_of_another_provider_is_not_passed_on() -> None:
    """M3: no provider accepts it."""
    message = Message.assistant([ThinkingPart(text="hm", signature="s", provider="anthropic")])
    written = to_format("gemini", message)
    assert written.items == [{"role": "model", "parts": [{"text": "hm", "thought": True}]}]
    assert [loss.path for loss in written.losses] == ["/content/0/signature", "/content/0/provider"]


def test_m1_parent_id_is_in_acontext_and_native_only() -> None:
    message = Message.user("hi", parent_id="01980000-0000-7000-8000-000000000000")
    with_parent = [format for format in FORMATS if "parent_id" in json.dumps(to_format(format, message).items)]
    assert with_parent == ["acontext", "native"]


@pytest.mark.parametrize("format", ["openai", "openai_responses"])
def test_m3_a_refusal_of_two_texts_is_listed(format: Format) -> None:
    """M3: these formats have one refusal in a message."""
    message = Message.assistant([TextPart(text="a"), TextPart(text="b")], stop_reason="refusal")
    assert [loss.path for loss in to_format(format, message).losses] == ["/stop_reason"]


def test_m3_redacted_reasoning_without_its_text_is_listed() -> None:
    """M3: what is written is not listed as dropped."""
    message = Message.assistant([ThinkingPart(text="hm", signature="s", provider="anthropic", redacted=True)])
    written = to_format("anthropic", message)
    assert written.items == [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "s"}]}]
    assert [loss.path for loss in written.losses] == ["/content/0/text"]


def test_m3_a_loss_of_a_long_name_is_brief() -> None:
    """M3, A2: a page has as many bytes as its messages."""
    [loss] = to_format("openai", from_blob("anthropic", {"role": "user", "content": "a", "~" * 10_000: 1})).losses
    assert loss.path == "/" + "~0" * 99 + "~"


def test_m3_many_losses_are_counted() -> None:
    blob = {"role": "user", "content": "a", **{f"x{n}": n for n in range(MAX_LOSSES + 9)}}
    losses = to_format("openai", from_blob("anthropic", blob)).losses
    assert (len(losses), losses[-1].what) == (MAX_LOSSES + 1, "9 further values are dropped or changed")
