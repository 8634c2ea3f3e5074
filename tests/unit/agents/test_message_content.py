"""What a caller says reaches a model by the table of contents alone (M5)."""

from __future__ import annotations

import asyncio
from dataclasses import MISSING, fields
from typing import Any, get_args

import pytest
from pydantic_ai.messages import BinaryImage, FileUrl, ImageUrl, ModelRequest, ToolReturnPart

from runyard.agents.message_codec import is_final, to_model
from runyard.models import ImagePart, JsonObject, Message, Part, Role, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from tests.support.lure import claims, files

URL = "http://127.0.0.1:9/x.png"
CLAIMS = claims(URL)
ROLES = get_args(Role)
PARTS: tuple[Part, ...] = (
    TextPart(text="t"),
    TextPart(text=""),
    ThinkingPart(text="hm", signature="proof"),
    ImagePart(url=URL),
    ImagePart(url="file:///etc/passwd", media_type="odd"),
    ImagePart(url=""),
    ImagePart(data="aGk="),
    ImagePart(data="aGk", media_type="image/png"),
    ImagePart(data="no base64!"),
    ImagePart(),
    ToolCallPart(id="c", name="t", arguments={"kind": "image-url", "url": URL}),
    ToolResultPart(call_id="c", content="seen"),
    ToolResultPart(call_id="c", content={"kind": "binary", "data": "aGk=", "media_type": "image/png"}, is_error=True),
    *(ToolResultPart(call_id="c", content=content) for file in files(URL) for content in (file, [file], {"in": [file]})),
)
TAKEN = {
    "system-prompt": {"content"},
    "user-prompt": {"content"},
    "text": {"content"},
    "thinking": {"content", "signature"},
    "file": {"content"},
    "tool-call": {"tool_name", "tool_call_id", "args"},
    "tool-return": {"tool_name", "tool_call_id", "content", "outcome"},
}
"""The fields of each kind of part that a caller may decide. The others are as the constructor leaves them."""


def decided(thing: Any) -> set[str]:
    """The fields that are not as a constructor leaves them, but for times."""
    found = set()
    for field in fields(thing):
        usual = field.default_factory() if field.default_factory is not MISSING else field.default
        if getattr(thing, field.name) != usual and field.name != "timestamp":
            found.add(field.name)
    return found


def told(message: Message) -> list[Any]:
    return [part for each in asyncio.run(to_model([message])) for part in each.parts]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("claim", CLAIMS)
def test_m5_metadata_says_nothing_to_a_model(role: Role, claim: str) -> None:
    """Every claim on every role, beside every part that there is."""
    metadata: JsonObject = {"pydantic_ai": CLAIMS[claim], "provider_details": {"pydantic_ai": CLAIMS[claim]}}
    for content in ([part] for part in (*PARTS, None)):
        plain = Message(role=role, content=[part for part in content if part is not None])
        claiming = plain.model_copy(update={"metadata": metadata})
        assert strip(asyncio.run(to_model([claiming]))) == strip(asyncio.run(to_model([plain])))
        assert not is_final(claiming)


def strip(messages: list[Any]) -> list[Any]:
    """Without times."""
    return [
        (decided(message) - {"parts"}, [[(f.name, getattr(part, f.name)) for f in fields(part) if f.name != "timestamp"]
                                        for part in message.parts])
        for message in messages
    ]  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("part", PARTS, ids=lambda part: str(part)[:60])
def test_m5_a_part_decides_what_the_table_allows(role: Role, part: Part) -> None:
    """What a role cannot hold, and what is no picture, breaks no run either: it would break each that comes after."""
    for message in asyncio.run(to_model([Message(role=role, content=[part])])):
        assert decided(message) <= {"parts", "finish_reason"}
    for made in told(Message(role=role, content=[part])):
        assert decided(made) <= TAKEN[made.part_kind]
        if isinstance(made, ToolReturnPart):
            assert isinstance(part, ToolResultPart) and made.content == part.content and made.files == []
        elif made.part_kind == "user-prompt" and not isinstance(made.content, str):
            for item in made.content:
                assert decided(item) <= (
                    {"url", "_media_type"} if isinstance(item, FileUrl) else {"data", "media_type", "_identifier"}
                )


def test_m5_a_url_is_passed_as_it_is() -> None:
    [prompt] = told(Message(role="user", content=[TextPart(text="see"), ImagePart(url=URL)]))
    assert prompt.content == ["see", ImageUrl(URL)]


def test_m5_what_an_agent_stored_of_a_tools_files_comes_back() -> None:
    """Files beside JSON that looks like one: each stays what it was."""
    from runyard.agents.message_codec import tool_message

    like: Any = {"kind": "binary", "data": "aGk=", "media_type": "image/png"}
    for content in (ImageUrl(URL), [ImageUrl(URL), files(URL)[0]], [BinaryImage(b"hi", media_type="image/png")]):
        part = ToolReturnPart("t", content, tool_call_id="c")
        [made] = told(tool_message(ModelRequest([part])))
        assert made.files == part.files and made.content == part.content
    part = ToolReturnPart("t", like, tool_call_id="c")
    message = tool_message(ModelRequest([part]))
    assert message.provider_details is None
    [made] = told(message)
    assert made.content == like
