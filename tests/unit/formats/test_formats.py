"""What each format documents, and where it lands: roles, results with their ids, proofs, and faults (M1 to M6)."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from runyard import Client
from runyard.domain.size_limits import MAX_NESTING, MAX_PARTS, MAX_VALUES
from runyard.errors import InvalidBlobError, InvalidInputError
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
    Source,
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
    page = await formatted([result, call], "gemini")
    assert page.items[0]["parts"][0]["functionResponse"] == {"id": "c", "name": "add", "response": {"output": "2"}}
    assert (page.message_ids, page.losses) == ([result.id, call.id], [])
    alone = await formatted([result], "gemini")
    assert [(loss.message_id, loss.path) for loss in alone.losses] == [(result.id, "/content/0/name")]


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


def test_m2_an_original_is_kept_only_where_it_is_needed() -> None:
    plain = from_blob("openai", {"role": "user", "content": "hi"})
    assert plain.source is None
    named = from_blob("openai", {"role": "user", "content": "hi", "name": "ann"})
    assert named.source == Source(format="openai", blob={"role": "user", "content": "hi", "name": "ann"})


@pytest.mark.parametrize(
    "source",
    [
        Source(format="openai", blob=[]),
        Source(format="openai", blob={"role": "user", "content": "no"}),
        Source(format="odd", blob={}),
    ],
)
def test_m2_an_original_that_says_something_else_is_ignored(source: Source) -> None:
    """M2: what a reader gets in a format is what a model gets."""
    written = to_format("openai", Message.user("hi", source=source))
    assert written.items == [{"role": "user", "content": "hi"}]
    assert [loss.path for loss in written.losses] == ["/source"]


def test_m1_what_a_read_returns_can_be_stored_again() -> None:
    """M1: the fields that the store sets are set anew."""
    message = Message.user("hi", parent_id="01980000-0000-7000-8000-000000000000", seq=4, metadata={"a": 1})
    native = from_blob("native", to_format("native", message).items[0])
    assert (native.id, native.content, native.parent_id, native.seq) == (message.id, message.content, None, None)
    again = from_blob("acontext", to_format("acontext", message).items[0])
    assert (again.content, again.metadata, again.parent_id, again.source) == (message.content, {"a": 1}, None, None)


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
    ("acontext", {"role": "user", "parts": [{"type": "tool-call", "meta": {"id": "a"}}]}, "/parts/0/meta/name"),
    ("native", {"role": "user", "content": "hi", "odd": 1}, "/odd"),
    ("native", {"role": "user", "content": [{"type": "text", "text": 1}]}, "/content/0/text"),
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
    "text", ['{"a":' + "[" * 5000, '{"a":[' + "1," * MAX_VALUES + "1]}", '{"a":' + '"\\"' * 99, '{"a":1e999}', "1"]
)
def test_m6_hostile_json_in_a_text_is_refused(text: str) -> None:
    """M6, A2: before it is read, as far as its values are too many."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
    with pytest.raises(InvalidBlobError) as error:
        from_blob("openai", {"role": "assistant", "tool_calls": [call]})
    assert error.value.details["path"] == "/tool_calls/0/function/arguments"


def test_m6_the_values_of_all_texts_count_together() -> None:
    """M6, A2: a comma in a text is none of them."""

    def calls(text: str) -> dict[str, Any]:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
        return {"role": "assistant", "content": None, "tool_calls": [call, call]}

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


def test_m3_many_losses_are_counted() -> None:
    blob = {"role": "user", "content": "a", **{f"x{n}": n for n in range(MAX_LOSSES + 9)}}
    losses = to_format("openai", from_blob("anthropic", blob)).losses
    assert (len(losses), losses[-1].what) == (MAX_LOSSES, "10 further values are dropped or changed")


def test_m1_an_unknown_format_is_refused() -> None:
    for call in (lambda: from_blob("odd", {}), lambda: to_format("odd", Message.user("a"))):  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError):
            call()


async def test_m2_the_client_stores_and_reads_a_format() -> None:
    """M1, M2: over a store; what the other formats lack is listed with the id of its message."""
    client = await Client.connect("memory:")
    try:
        blob = {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}
        stored = await client.store_message("t", blob, format="anthropic")
        await client.store_message("t", {"role": "assistant", "content": "b"}, format="openai")
        page = await client.messages("t", format="anthropic", limit=1)
        assert (page.items, page.message_ids, page.losses) == ([blob], [stored.id], [])
        assert page.next is not None
        other = await client.messages("t", format="openai")
        assert other.items == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        assert [(loss.message_id, loss.path) for loss in other.losses] == [(stored.id, "/content/0/cache_control")]
        assert [message.text for message in (await client.messages("t")).items] == ["a", "b"]
        with pytest.raises(InvalidBlobError):
            await client.store_message("new", {"role": "odd"}, format="openai")
        with pytest.raises(InvalidInputError):
            await client.messages("t", format="odd")  # type: ignore[call-overload]
    finally:
        await client.close()
