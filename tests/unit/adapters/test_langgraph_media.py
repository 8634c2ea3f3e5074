"""Files in messages of LangChain. A file in any of its forms becomes a part, and a file without a place is refused."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, convert_to_openai_messages
from langgraph.graph import START, MessagesState, StateGraph

from runyard import App, Message
from runyard.adapters import langgraph_agent
from runyard.adapters.langgraph_messages import from_langchain, to_langchain
from runyard.errors import InvalidInputError
from runyard.models import AudioPart, DocumentPart, FilePart, ImagePart, MediaPart, TextPart, ToolResultPart
from runyard.support import agent_adapters
from runyard.testing import Harness

PNG = {"data": "QUJD", "media_type": "image/png"}
PDF = {"data": "QUJD", "media_type": "application/pdf"}
PLAIN = {"data": "aGk=", "media_type": "text/plain"}

FORMS: list[tuple[dict[str, Any], MediaPart]] = [
    ({"type": "image", "base64": "QUJD", "mime_type": "image/png"}, ImagePart(**PNG)),
    ({"type": "image", "base64": "QUJD"}, ImagePart(data="QUJD")),
    ({"type": "image", "base64": b"ABC", "mime_type": "image/png"}, ImagePart(data="QUJD", media_type="image/png")),
    ({"type": "image", "url": "https://a/b"}, ImagePart(url="https://a/b")),
    ({"type": "image", "url": "data:image/png;base64,QUJD"}, ImagePart(**PNG)),
    ({"type": "image", "file_id": "f"}, FilePart(file_id="f")),
    ({"type": "image", "source_type": "base64", "data": "QUJD", "mime_type": "image/png"}, ImagePart(**PNG)),
    ({"type": "image", "source_type": "url", "url": "https://a/b"}, ImagePart(url="https://a/b")),
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}, ImagePart(**PNG)),
    ({"type": "image", "source": {"type": "url", "url": "https://a/b"}}, ImagePart(url="https://a/b")),
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}, ImagePart(**PNG)),
    ({"type": "image_url", "image_url": "https://a/b"}, ImagePart(url="https://a/b")),
    ({"type": "input_image", "image_url": "https://a/b"}, ImagePart(url="https://a/b")),
    ({"type": "audio", "base64": "QUJD"}, AudioPart(data="QUJD")),
    (
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
        AudioPart(data="QUJD", media_type="audio/wav"),
    ),
    ({"type": "video", "url": "https://a/v"}, FilePart(url="https://a/v")),
    ({"type": "file", "base64": "QUJD"}, FilePart(data="QUJD")),
    ({"type": "file", "base64": "QUJD", "mime_type": "application/pdf", "filename": "n"}, DocumentPart(**PDF, name="n")),
    ({"type": "file", "source_type": "text", "text": "hi"}, DocumentPart(**PLAIN)),
    ({"type": "file", "source_type": "id", "id": "f"}, FilePart(file_id="f")),
    ({"type": "file", "file": {"file_id": "f"}}, FilePart(file_id="f")),
    ({"type": "file", "file": {"file_data": "data:application/pdf;base64,QUJD"}}, DocumentPart(**PDF)),
    ({"type": "input_file", "file_url": "https://a/b"}, FilePart(url="https://a/b")),
    ({"type": "media", "mime_type": "image/png", "data": "QUJD"}, ImagePart(**PNG)),
    ({"type": "text-plain", "text": "hi", "title": "n"}, DocumentPart(**PLAIN, name="n")),
    ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}}, DocumentPart(**PLAIN)),
    (
        {"type": "document", "source": {"type": "url", "url": "https://a/b"}, "title": "n"},
        DocumentPart(url="https://a/b", name="n"),
    ),
]
EMPTY = [
    {"type": "image"},
    {"type": "image", "url": None, "base64": ""},
    {"type": "image", "source": {}},
    {"type": "image_url"},
    {"type": "image_url", "image_url": 3},
    {"type": "file", "file": {}},
    {"type": "document", "source": {"type": "content", "content": []}},
    {"type": "media", "mime_type": "image/png"},
]


@pytest.mark.parametrize(("block", "part"), FORMS)
def test_a_file_becomes_a_part_in_every_role(block: dict[str, Any], part: MediaPart) -> None:
    """Of a human's message, a model's answer and a tool's result."""
    for kind in (HumanMessage, AIMessage):
        assert from_langchain(kind([block]), "s").content == [part]
    [result] = from_langchain(ToolMessage([{"type": "text", "text": "see"}, block], tool_call_id="c"), "s").tool_results
    assert result.parts == [TextPart(text="see"), part]


@pytest.mark.parametrize("block", EMPTY)
def test_a_file_without_a_place_is_refused(block: dict[str, Any]) -> None:
    for message in (HumanMessage([block]), AIMessage([block]), ToolMessage([block], tool_call_id="c")):
        with pytest.raises(InvalidInputError, match=str(block["type"])):
            from_langchain(message, "s")


def test_other_blocks_have_no_part() -> None:
    """A block of a provider stays in the state of the graph. The content of a tool result with such a block is data."""
    blocks: list[Any] = [{"type": "server_tool_use", "id": "x"}, {"type": "text", "text": None}, "a"]
    assert from_langchain(AIMessage(blocks), "s").content == [TextPart(text=""), TextPart(text="a")]
    [result] = from_langchain(ToolMessage(blocks, tool_call_id="c"), "s").tool_results
    assert not result.has_parts and result.content == blocks


@pytest.mark.parametrize(
    "part", [ImagePart(data="QUJD"), AudioPart(data="QUJD"), DocumentPart(data="QUJD"), FilePart(data="QUJD")]
)
def test_data_without_a_media_type_gets_the_usual_one(part: MediaPart) -> None:
    """LangChain cannot send data without a media type."""
    [message] = to_langchain(Message.user([part]))
    convert_to_openai_messages([message])
    assert isinstance(message.content[0], dict) and message.content[0]["mime_type"]


def test_m5_a_model_gets_no_file_without_url_and_data() -> None:
    """A file by id would be one of the operator's account. The rest of the message is shown."""
    parts = [TextPart(text="see"), FilePart(file_id="f"), ImagePart()]
    [message] = to_langchain(Message.user([*parts]))
    assert message.content == [{"type": "text", "text": "see"}]
    result = ToolResultPart(call_id="c", content=[part.model_dump() for part in parts], has_parts=True)
    [message] = to_langchain(Message.tool(result))
    assert message.content == [{"type": "text", "text": "see"}]


async def test_a_graph_that_answers_with_an_empty_file_fails_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage([{"type": "image"}])]}

    made = StateGraph(MessagesState)
    made.add_node("node", node)
    made.add_edge(START, "node")
    monkeypatch.setitem(agent_adapters._registered, "langgraph", langgraph_agent.adapt)
    async with Harness(App(agents={"g": made.compile()})) as harness:
        run = await harness.prompt("t", "go")
        assert run.error is not None and run.error.code == InvalidInputError.code
