"""The formats of messages: what comes back, and what is named as lost (M1 to M6)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import pytest
from anthropic.types import MessageParam
from google.genai.types import Content
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import BaseModel, TypeAdapter

from runyard.formats.conversion import Converted, Format, from_blob, to_format
from runyard.models import Message
from runyard_backends.codec.message_rows import new_message
from runyard_backends.codec.values import unpack

from .wires import BLOBS, messages

EXAMPLES: Final = int(os.environ.get("RUNYARD_TEST_FORMATS", "100"))
thorough = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
TYPES: Final[dict[str, TypeAdapter[Any]]] = {
    "openai": TypeAdapter(ChatCompletionMessageParam),
    "openai_responses": TypeAdapter(ResponseInputItemParam),
    "anthropic": TypeAdapter(MessageParam),
    "gemini": TypeAdapter(Content),
}
STORE: Final = ("id", "parent_id", "created_at")


def stored(message: Message) -> Message:
    """The message after a store wrote and read it, and after a reply over HTTP."""
    row = new_message(message)
    again = Message.model_validate({**unpack(row.payload), "id": message.id, "role": message.role})
    return Message.model_validate_json(again.model_dump_json())


def listed(blob: Any) -> list[Any]:
    return blob if isinstance(blob, list) else [blob]


def text_of(items: list[Any]) -> str:
    return json.dumps([{name: value for name, value in item.items() if name not in STORE} for item in items])


def check_types(format: str, converted: Converted) -> None:
    """A provider's own types accept what is written."""
    if format in TYPES:
        for item in converted.items:
            for _ in walked(TYPES[format].validate_python(item)):
                pass


def walked(value: Any) -> Iterator[Any]:
    """Every value inside, those that pydantic checks when they are read included."""
    if isinstance(value, dict):
        for each in value.values():
            yield from walked(each)
    elif hasattr(value, "__iter__") and not isinstance(value, str | bytes | BaseModel):
        for each in value:
            yield from walked(each)
    yield value


@pytest.mark.parametrize("format", BLOBS)
@given(data=st.data())
@thorough
def test_m2_a_blob_comes_back_equal_after_a_store(format: Format, data: st.DataObject) -> None:
    """M2: whatever the format's own conversion would lose."""
    blob = data.draw(BLOBS[format])
    converted = to_format(format, stored(from_blob(format, blob)))
    assert text_of(converted.items) == text_of(listed(blob))
    assert converted.losses == []


@pytest.mark.parametrize("format", BLOBS)
@given(message=messages)
@thorough
def test_m3_a_conversion_loses_only_what_it_lists(format: Format, message: Message) -> None:
    """M3, M4: every part that is not listed comes back from the format, in order and with its role."""
    check_losses(format, message)


@pytest.mark.parametrize(("one", "other"), [pair for pair in product(BLOBS, BLOBS) if pair[0] != pair[1]])
@given(data=st.data())
@thorough
def test_m3_a_blob_in_another_format_loses_only_what_is_listed(one: Format, other: Format, data: st.DataObject) -> None:
    """M3: X to Y and back to X."""
    check_losses(other, from_blob(one, data.draw(BLOBS[one])))


def check_losses(format: Format, message: Message) -> None:
    """Every part that is not dropped comes back, each in its order unless it is changed, and nothing else does."""
    converted = to_format(format, message)
    if message.source is None:
        check_types(format, converted)
    losses = [loss for loss in converted.losses if loss.format == "native"]
    dropped = {loss.path for loss in losses if loss.dropped}
    changed = {loss.path for loss in losses if not loss.dropped}
    again = [from_blob(format, item) for item in converted.items]
    found = [(part, each.role) for each in again for part in each.content]
    last = -1
    for n, part in enumerate(message.content):
        place = f"/content/{n}"
        if place in dropped:
            continue
        fields = {path.split("/")[3] for path in dropped | changed if path.startswith(f"{place}/")}
        free = place in changed
        at = next((k for k, each in enumerate(found) if each is not None and alike(each[0], part, fields)), None)
        assert at is not None, (part, found, converted)
        if not free:
            assert at > last, (part, found, converted)
            last = at
            assert found[at][1] == message.role or "/role" in changed, (found, converted)
        found[at] = None  # type: ignore[call-overload]
    assert found == [None] * len(found), (found, converted)


def alike(found: Any, part: Any, fields: set[str]) -> bool:
    """Whether both are the same part, apart from ``fields``."""
    if "type" in fields:
        return (found.url, found.data) == (part.url, part.data)
    more = {"content": {"has_parts"}, "signature": {"provider"}}
    but = fields.union(*(more.get(name, set()) for name in fields))
    return text(found, but) == text(part, but)


def text(part: Any, but: set[str]) -> str:
    return json.dumps(part.model_dump(exclude=but, exclude_none=True), sort_keys=True)
