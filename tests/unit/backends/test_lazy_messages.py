"""A lazy message is a Message for everybody who uses it."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from runyard.errors import DataCorruptedError
from runyard.models import Message, Source, TextPart, ToolCallPart, ToolResultPart, Usage, new_id
from runyard_backends.codec import history
from runyard_backends.codec.lazy_messages import lazy_messages
from runyard_backends.codec.message_rows import messages, new_message
from runyard_backends.codec.values import Row

NOW = datetime(2026, 1, 2, tzinfo=UTC)
MESSAGES = TypeAdapter(list[Message])
EACH = [
    Message.user("a text", metadata={"a": [1]}),
    Message.assistant(
        [TextPart(text="x"), ToolCallPart(id="c", name="look", arguments={"q": 1})],
        stop_reason="tool_calls",
        usage=Usage(input_tokens=3),
        provider_details={"p": {"model": "m"}},
    ),
    Message.tool(ToolResultPart(call_id="c", content=[{"type": "text", "text": "y"}], has_parts=True)),
    Message.user("original", source=Source(format="openai", blob={"role": "user"})),
    Message.user("\ud800 alone"),
]


def row(message: Message, seq: int = 1, payload: bytes | None = None) -> Row:
    new = new_message(message, by_agent=True)
    return (seq, new.message_id, new_id(), "r", new.role, payload or new.payload, None, None, None, NOW)  # type: ignore[return-value]


class Holder(BaseModel):
    messages: list[Message]


def lazy(of: Row) -> Message:
    (message,) = lazy_messages(history.kept([of], thread_id="t"))
    return message


USES: dict[str, Callable[[Message], Any]] = {
    "fields": lambda m: {name: getattr(m, name) for name in Message.model_fields},
    "text": lambda m: (m.text, m.tool_calls, m.tool_results),
    "vars": lambda m: dict(vars(m)),
    "dict": dict,
    "repr": repr,
    "str": str,
    "dump": lambda m: m.model_dump(),
    "dump without unset": lambda m: m.model_dump(exclude_unset=True),
    "dump of a list": lambda m: MESSAGES.dump_python([m]),
    "dump of another model": lambda m: Holder(messages=[m]).model_dump(),
    "validation": lambda m: MESSAGES.validate_python([m]),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "model_copy": lambda m: m.model_copy(update={"run_id": "other"}),
    "deep model_copy": lambda m: m.model_copy(deep=True),
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "fields set": lambda m: m.model_fields_set,
    "says": lambda m: m.says(EACH[0]),
    "by_caller": lambda m: m.by_caller(),
    "class": lambda m: (m.__class__, isinstance(m, Message), isinstance(m, Holder)),
}


@pytest.mark.parametrize("message", EACH, ids=lambda message: message.role)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_every_use_is_that_of_a_decoded_message(use: Callable[[Message], Any], message: Message) -> None:
    of = row(message)
    (decoded,) = messages([of], thread_id="t")
    assert use(lazy(of)) == use(decoded)
    one = lazy(of)
    use(one)
    assert use(one) == use(decoded), "a second use"
    assert one == decoded and decoded == one


@pytest.mark.parametrize("message", EACH[:4], ids=lambda message: message.role)
def test_json_is_that_of_a_decoded_message(message: Message) -> None:
    of = row(message)
    (decoded,) = messages([of], thread_id="t")
    assert lazy(of).model_dump_json() == decoded.model_dump_json()
    assert json.loads(MESSAGES.dump_json([lazy(of)])) == [decoded.model_dump(mode="json")]


def test_a_lazy_message_equals_what_is_equal() -> None:
    of, other = row(EACH[0]), row(EACH[1])
    (decoded,) = messages([of], thread_id="t")
    assert lazy(of) == lazy(of) and lazy(of) == decoded and decoded == lazy(of)
    assert lazy(of) != lazy(other) and decoded != lazy(other) and lazy(of) != "x"
    assert [decoded] == [lazy(of)]
    with pytest.raises(TypeError):
        hash(lazy(of))


def test_a_change_stays() -> None:
    """And is not in another message of the same row."""
    of = row(EACH[0])
    one, two = lazy(of), lazy(of)
    one.role = "system"
    one.content.append(TextPart(text="more"))
    one.metadata["a"].append(2)
    assert (one.role, one.text, one.metadata) == ("system", "a textmore", {"a": [1, 2]})
    assert (two.role, two.text, two.metadata) == ("user", "a text", {"a": [1]})


def test_the_columns_need_no_decoding() -> None:
    of = row(EACH[0], payload=b"\xc1")
    message = lazy(of)
    assert (message.seq, message.id, message.role, message.run_id) == (1, of[1], "user", "r")
    assert message.parent_id == of[2] and isinstance(message, Message)
    with pytest.raises(DataCorruptedError, match="of thread_id t"):
        _ = message.content
    assert message.run_id == "r"


def test_a_used_message_keeps_no_row() -> None:
    of = row(EACH[0], payload=row(EACH[0])[5] + b"")
    before = sys.getrefcount(of)
    message = lazy(of)
    assert sys.getrefcount(of) == before + 1
    _ = message.content
    assert sys.getrefcount(of) == before and type(message) is Message


async def test_only_long_histories_are_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short history is decoded at once, and its errors are raised at once."""
    monkeypatch.setattr(history, "LAZY_MIN_MESSAGES", 3)
    monkeypatch.setattr(history, "LAZY_SLICE_MESSAGES", 2)
    rows = [row(EACH[0], seq) for seq in range(5)]
    assert await history.lazily(history.kept(rows, thread_id="t")) == messages(rows, thread_id="t")
    damaged = row(EACH[0], payload=b"\xc1")
    with pytest.raises(DataCorruptedError):
        await history.lazily(history.kept([damaged], thread_id="t"))
    assert len(await history.lazily(history.kept([damaged] * 3, thread_id="t"))) == 3
