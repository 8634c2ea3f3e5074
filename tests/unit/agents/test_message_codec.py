"""runyard's messages in pydantic-ai's words, and back (P3; M2 for what pydantic-ai keeps)."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    BinaryImage,
    CachePoint,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from runyard.agents.message_codec import from_request, from_response, make_storable, to_model, tool_message
from runyard.models import ImagePart, Message, ToolResultPart
from runyard.models import TextPart as Text
from runyard.models import ThinkingPart as Thinking
from runyard.models import ToolCallPart as Call

IMAGE = BinaryImage(b"png", media_type="image/png")
OF_THE_RUN = {"timestamp", "usage", "run_id", "conversation_id", "finish_reason", "identifier"}


def told(messages: Sequence[ModelMessage]) -> Any:
    """Messages without what belongs to one execution; arguments as objects."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: clean(item) for name, item in value.items() if name not in OF_THE_RUN and item is not None}
        return [clean(item) for item in value] if isinstance(value, list) else value

    return clean(ModelMessagesTypeAdapter.dump_python(list(messages), mode="json"))


CALL = ToolCallPart("look", {"at": 1}, tool_call_id="c1")


@pytest.mark.parametrize(
    "part",
    [
        TextPart("hello"),
        TextPart("hello", id="msg_1", provider_name="openai", provider_details={"phase": "final"}),
        ThinkingPart("hm", signature="proof", provider_name="anthropic"),
        ThinkingPart("", id="rs_1", signature="encrypted", provider_name="openai"),
        CALL,
        ToolCallPart("look", {"at": 1}, tool_call_id="c1", id="fc_1", provider_name="openai"),
        ToolCallPart("look", '{"at": ', tool_call_id="c1"),
        ToolCallPart("look", "[1]", tool_call_id="c1"),
        FilePart(IMAGE),
        FilePart(BinaryContent(b"pdf", media_type="application/pdf"), id="f1", provider_name="google"),
        NativeToolCallPart("web_search", {"query": "x"}, tool_call_id="n1", provider_name="anthropic"),
        NativeToolReturnPart("web_search", [{"url": "http://x"}], tool_call_id="n1", provider_name="anthropic"),
    ],
    ids=lambda part: part.part_kind,
)
def test_model_response_survives_storage(part: Any) -> None:
    response = ModelResponse([TextPart("before"), part, TextPart("after")], model_name="m", provider_response_id="r1")
    stored = Message.model_validate_json(from_response(response).model_dump_json())
    assert told(asyncio.run(to_model([stored]))) == told([response])


def test_metadata_repeats_nothing_of_the_message() -> None:
    message = from_response(ModelResponse([TextPart("hello"), ThinkingPart("hm"), CALL]))
    assert message.metadata == {}
    assert message.content == [Text(text="hello"), Thinking(text="hm"), Call(id="c1", name="look", arguments={"at": 1})]
    assert message.stop_reason == "tool_calls"


@pytest.mark.parametrize(
    "part",
    [
        ToolReturnPart("look", "seen", "c1"),
        ToolReturnPart("look", {"seen": [1, None]}, "c1"),
        ToolReturnPart("look", "broken", "c1", outcome="failed"),
        ToolReturnPart("look", "no", "c1", outcome="denied"),
        ToolReturnPart("look", "again", "c1", outcome="retried"),
        ToolReturnPart("look", "seen", "c1", metadata={"private": 1}),
        ToolReturnPart("look", ["a picture", IMAGE], "c1"),
    ],
    ids=lambda part: part.outcome,
)
def test_tool_result_survives_storage(part: ToolReturnPart) -> None:
    calls = from_response(ModelResponse([CALL]))
    message = Message.model_validate_json(tool_message(ModelRequest([part])).model_dump_json())
    assert message.tool_results[0].is_error == (part.outcome != "success")
    assert told(asyncio.run(to_model([calls, message]))[1:]) == told([ModelRequest([part])])


def test_a_tools_result_brings_along_what_it_shows_and_reveals() -> None:
    request = ModelRequest(
        [
            ToolReturnPart("look", "seen", "c1"),
            ToolAvailabilityDeltaPart(tools_added=["more"], tool_call_id="c1"),
            UserPromptPart(["here", IMAGE]),
        ]
    )
    message = tool_message(request)
    assert [type(part) for part in message.content] == [ToolResultPart]
    assert told(asyncio.run(to_model([from_response(ModelResponse([CALL])), message]))[1:]) == told([request])


@pytest.mark.parametrize(
    "part",
    [
        UserPromptPart("hi"),
        UserPromptPart(["look at", ImageUrl("http://x/a.png", media_type="image/png"), IMAGE]),
        UserPromptPart(["read", DocumentUrl("http://x/a.pdf"), CachePoint()]),
        RetryFeedbackPart("one more", retry=RetryInfo(cause="no_output")),
    ],
)
def test_model_request_survives_storage(part: Any) -> None:
    [message] = from_request(ModelRequest([SystemPromptPart("be kind"), part]))
    stored = Message.model_validate_json(message.model_dump_json())
    assert (stored.role, bool(stored.text)) == ("user", True)
    assert told(asyncio.run(to_model([stored]))) == told([ModelRequest([part])])


def test_messages_between_two_answers_are_one_request() -> None:
    messages = [
        Message(role="system", content="be kind"),
        Message.user([Text(text="see"), ImagePart(url="http://x/a.png")]),
        Message.assistant([Call(id="c1", name="look"), Call(id="c2", name="hear")]),
        Message.tool(ToolResultPart(call_id="c2", content=2)),
        Message.tool(ToolResultPart(call_id="c1", content=1, is_error=True)),
        Message.user("and?"),
        Message.assistant([]),
        Message.user("well?"),
    ]
    first, answer, second = asyncio.run(to_model(messages))
    assert isinstance(first, ModelRequest) and isinstance(answer, ModelResponse) and isinstance(second, ModelRequest)
    assert [part.part_kind for part in first.parts] == ["system-prompt", "user-prompt"]
    returns = [part for part in second.parts if isinstance(part, ToolReturnPart)]
    assert [(part.tool_name, part.content, part.outcome) for part in returns] == [("hear", 2, "success"), ("look", 1, "failed")]
    assert [part.content for part in second.parts if isinstance(part, UserPromptPart)] == ["and?", "well?"]


@pytest.mark.parametrize(
    ("finish", "expected"),
    [("stop", "stop"), ("length", "max_tokens"), ("content_filter", "content_filter"), ("error", "error"), (None, "stop")],
)
def test_why_a_model_stopped(finish: Any, expected: str) -> None:
    assert from_response(ModelResponse([TextPart("x")], finish_reason=finish)).stop_reason == expected


def test_model_response_has_a_cost_of_0_if_its_price_is_unknown() -> None:
    """A price that is not known is 0, and no failure."""
    usage = RequestUsage(input_tokens=1000, output_tokens=100)
    unknown = from_response(ModelResponse([TextPart("x")], usage=usage, model_name="of my own"))
    assert unknown.usage is not None and (unknown.usage.requests, unknown.usage.input_tokens, unknown.usage.cost) == (
        1,
        1000,
        0,
    )
    known = from_response(ModelResponse([TextPart("x")], usage=usage, model_name="gpt-4o", provider_name="openai"))
    assert known.usage is not None and known.usage.cost == pytest.approx(1000 * 2.5e-6 + 100 * 1e-5)


def test_halves_of_characters_are_put_together() -> None:
    call, text = (
        ToolCallPart("note", {"text": ["\ud83d\ude00", {"half \ud83d": 1}]}),
        ToolCallPart("note", '{"text": "\ud83d\ude00"}'),
    )
    for part in (call, text):
        make_storable(part)
    assert call.args == {"text": ["😀", {"half \ufffd": 1}]}
    assert text.args == '{"text": "😀"}'
