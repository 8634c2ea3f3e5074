"""Sounds, documents and other files reach a model as pydantic-ai's, by a closed table, and come back from its answers (M5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    ToolReturnPart,
    UserPromptPart,
    VideoUrl,
)
from pydantic_ai.messages import (
    FilePart as ModelFilePart,
)

from runyard.agents.downloads import check
from runyard.agents.message_codec import from_request, from_response, to_model
from runyard.models import (
    AudioPart,
    DocumentPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

URL = "http://127.0.0.1:9/x"


def seen(*parts: Part) -> list[Any]:
    """What a model gets for a message of the user."""
    [request] = asyncio.run(to_model([Message.user([TextPart(text="see"), *parts])]))
    content = request.parts[0].content
    return list(content[1:]) if isinstance(content, list) else []


@pytest.mark.parametrize(
    ("part", "made"),
    [
        (AudioPart(url=URL, media_type="audio/mpeg"), AudioUrl(URL, media_type="audio/mpeg")),
        (DocumentPart(url=URL, media_type="application/pdf", name="n"), DocumentUrl(URL, media_type="application/pdf")),
        (FilePart(url=URL, media_type="video/mp4"), VideoUrl(URL, media_type="video/mp4")),
        (FilePart(url=URL, media_type="image/png"), ImageUrl(URL, media_type="image/png")),
        (FilePart(url=URL, media_type="a/b"), DocumentUrl(URL, media_type="a/b")),
        (AudioPart(data="aGk="), BinaryContent(b"hi", media_type="audio/wav")),
        (DocumentPart(data="aGk=", media_type="text/plain"), BinaryContent(b"hi", media_type="text/plain")),
        (FilePart(data="aGk=", media_type="video/mp4"), BinaryContent(b"hi", media_type="video/mp4")),
    ],
)
def test_m5_a_file_reaches_a_model_as_it_is(part: Part, made: Any) -> None:
    assert seen(part) == [made]
    assert not getattr(seen(part)[0], "force_download", False)


@pytest.mark.parametrize("part", [AudioPart(), DocumentPart(data="no base64!"), FilePart(file_id="file-1", provider="openai")])
def test_m5_what_is_no_file_is_left_out(part: Part) -> None:
    """M5: the id of a file would name one in the account of the operator."""
    assert seen(part) == []


def test_m5_a_file_of_each_kind_by_url_is_checked_before_a_download() -> None:
    """M5: none of them asks for a download."""
    check(
        asyncio.run(
            to_model([Message.user([AudioPart(url=URL), DocumentPart(url=URL), FilePart(url=URL), ImagePart(url=URL)])])
        )
    )


def test_m2_a_result_with_parts_reaches_a_model_with_its_files() -> None:
    """M2, M5: files that the part says, and none that its data looks like."""
    like = {"kind": "image-url", "url": URL, "force_download": "allow-local"}
    content = [{"type": "text", "text": "a"}, {"type": "image", "data": "aGk=", "media_type": "image/png"}]
    call = Message.assistant([ToolCallPart(id="c", name="look")])
    result = Message.tool(
        ToolResultPart(call_id="c", content=content, has_parts=True),
        ToolResultPart(call_id="d", content=[like]),
        ToolResultPart(call_id="e", content=[{"type": "text", "text": str(like)}], has_parts=True, name="other"),
    )
    _, request = asyncio.run(to_model([call, result]))
    first, second, third = request.parts
    assert isinstance(first, ToolReturnPart) and isinstance(second, ToolReturnPart) and isinstance(third, ToolReturnPart)
    assert (first.tool_name, [file.media_type for file in first.files]) == ("look", ["image/png"])
    assert (second.content, second.files) == ([like], [])
    assert (third.tool_name, third.content, third.files) == ("other", str(like), [])


def test_what_a_model_answers_with_is_a_part_of_its_kind() -> None:
    kinds = {"audio/wav": "audio", "application/pdf": "document", "video/mp4": "file"}
    files = [ModelFilePart(BinaryContent(b"hi", media_type=kind)) for kind in kinds]
    message = from_response(ModelResponse(parts=files))
    assert [part.type for part in message.content] == [*kinds.values()]
    [again] = asyncio.run(to_model([message]))
    assert [part.content for part in again.parts if isinstance(part, ModelFilePart)] == [file.content for file in files]


def test_what_a_user_says_with_files_comes_back() -> None:
    said = ["see", AudioUrl(URL), DocumentUrl(URL), VideoUrl(URL), BinaryContent(b"hi", media_type="audio/wav")]
    [message] = from_request(ModelRequest([UserPromptPart(said)]))
    assert [part.type for part in message.content] == ["text", "audio", "document", "file", "audio"]
    [request] = asyncio.run(to_model([message]))
    assert request.parts[0].content == said
