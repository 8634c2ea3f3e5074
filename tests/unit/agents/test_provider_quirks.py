"""A conversation as the model that is asked next takes it (I7)."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from runyard.agents.provider_quirks import OPENING, fitting

OPENAI = OpenAIProvider(api_key="unused")
CHAT, RESPONSES = OpenAIChatModel("gpt-4.1", provider=OPENAI), OpenAIResponsesModel("gpt-5.1", provider=OPENAI)


def thinking(name: str, model: Model[Any]) -> str | None:
    """The id under which ``model`` is sent a thought with the id ``name``."""
    messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("hi")])]
    messages += [ModelResponse(parts=[ThinkingPart("hm", id=name), TextPart("yes")])]
    [_, answer] = fitting(messages, model)
    [thought, _] = answer.parts
    assert isinstance(thought, ThinkingPart)
    assert [part.id for part in messages[1].parts if isinstance(part, ThinkingPart)] == [name]
    return thought.id


def test_openais_chat_is_not_told_the_ids_of_its_other_interface() -> None:
    assert thinking("rs_1", CHAT) is thinking("rs_1", WrapperModel(CHAT)) is None
    assert thinking("reasoning_content", CHAT) == "reasoning_content"
    assert thinking("rs_1", RESPONSES) == thinking("rs_1", TestModel()) == "rs_1"


def test_anthropic_is_sent_no_blank_texts() -> None:
    prompt = ModelRequest(parts=[UserPromptPart("hi")])
    call, blank, text = ToolCallPart("look"), TextPart("\n\n"), TextPart(" yes ")
    messages: list[ModelMessage] = [prompt, ModelResponse(parts=[blank, call]), prompt, ModelResponse(parts=[blank]), prompt]
    messages += [ModelResponse(parts=[text, blank])]
    claude = AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(api_key="unused"))
    assert [message.parts for message in fitting(messages, claude) if isinstance(message, ModelResponse)] == [[call], [text]]
    assert fitting(messages, CHAT) == messages


def test_empty_text_is_sent_only_to_its_own_provider() -> None:
    """Unless it is the provider that gave it something to be sent back with."""
    signed = TextPart("", provider_name=TestModel().system, provider_details={"thought_signature": "c2lnbmVk"})
    prompt, answer = ModelRequest(parts=[UserPromptPart("hi")]), ModelResponse(parts=[TextPart(""), signed, TextPart("yes")])
    [_, told] = fitting([prompt, answer], TestModel())
    assert told.parts == [signed, TextPart("yes")]
    [_, told] = fitting([prompt, answer], CHAT)
    assert told.parts == [TextPart("yes")]


def test_results_come_before_what_they_show_besides() -> None:
    look, hear, shown = (
        ToolReturnPart("look", 1, tool_call_id="a"),
        ToolReturnPart("hear", 2, tool_call_id="b"),
        UserPromptPart("x"),
    )
    [told] = fitting([ModelRequest(parts=[look, shown, hear, UserPromptPart("y")])], TestModel())
    assert told.parts == [look, hear, shown, told.parts[3]] and told.parts[3].content == "y"  # type: ignore[union-attr]


def test_a_conversation_begins_with_the_user() -> None:
    system, hello = ModelRequest(parts=[SystemPromptPart("Be kind.")]), ModelResponse(parts=[TextPart("Hello")])
    prompt = ModelRequest(parts=[UserPromptPart("hi")])
    first, second, *rest = fitting([system, hello, prompt], TestModel())
    assert (first, rest) == (system, [hello, prompt])
    assert isinstance(second, ModelRequest) and second.parts[0].content == OPENING  # type: ignore[union-attr]
    for whole in ([system, prompt, hello], [prompt], [system], []):
        assert fitting(whole, TestModel()) == whole


def calls(*ids: str) -> list[ModelMessage]:
    """Calls with these ids, and their results."""
    asked = ModelResponse(parts=[ToolCallPart("add", {"n": n}, tool_call_id=name) for n, name in enumerate(ids)])
    return [asked, ModelRequest(parts=[ToolReturnPart("add", n, tool_call_id=name) for n, name in enumerate(ids)])]


def ids_of(messages: list[ModelMessage]) -> list[list[str]]:
    kinds = ToolCallPart | ToolReturnPart
    return [[part.tool_call_id for part in message.parts if isinstance(part, kinds)] for message in messages]


def test_m4_each_call_is_sent_with_an_id_of_its_own() -> None:
    """M4: the ids of calls of Gemini repeat in a thread, and Anthropic refuses that. Each result follows its call."""
    prompt: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("hi")])]
    messages = [*prompt, *calls("add-1", "add-2"), *calls("add-1"), *calls("c", "c"), *calls("add-1")]
    _, *sent = ids_of(fitting(messages, TestModel()))
    asked, answered = sent[::2], sent[1::2]
    assert asked == answered
    assert asked[0] == ["add-1", "add-2"]
    every = [name for each in asked for name in each]
    assert len({*every}) == len(every) == 6
    assert fitting(messages[:3], TestModel()) == messages[:3]
    assert ids_of(messages)[3] == ["add-1"]


def test_m4_anthropic_is_sent_ids_that_it_accepts() -> None:
    claude = AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(api_key="unused"))
    messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("hi")]), *calls("math.add-1", "math_add-1", "")]
    _, asked, answered = ids_of(fitting(messages, claude))
    assert asked == answered == ["math_add-1", "math_add-1-2", "call"]
    assert ids_of(fitting(messages, CHAT))[1] == ["math.add-1", "math_add-1", "call"]
