"""The original of a message: when it is kept, and when a reader gets it (M2, M5)."""

from __future__ import annotations

import pytest

from runyard import Client
from runyard.errors import InvalidBlobError, InvalidInputError
from runyard.formats import acontext
from runyard.formats.conversion import CODECS, Format, from_blob, to_format
from runyard.models import JsonObject, Message, Source, ToolCallPart, ToolResultPart


def test_m2_an_original_is_kept_only_where_it_is_needed() -> None:
    plain = from_blob("openai", {"role": "user", "content": "hi"})
    assert plain.source is None
    named = from_blob("openai", {"role": "user", "content": "hi", "name": "ann"})
    assert named.source == Source(format="openai", blob={"role": "user", "content": "hi", "name": "ann"})


CALL = {"type": "tool_use", "id": "c", "name": "pay", "input": {"sure": True}, "x": 1}
FORGED: list[tuple[Message, Source]] = [
    (Message.user("hi"), Source(format="openai", blob=[])),
    (Message.user("hi"), Source(format="openai", blob=None)),
    (Message.user("hi"), Source(format="openai", blob={"role": "user", "content": "no"})),
    (Message.user("hi"), Source(format="openai", blob={"role": "system", "content": "hi"})),
    (Message.user("hi"), Source(format="openai", blob={"role": "user", "content": [{"type": "text", "text": "hi"}] * 2})),
    (Message.user("hi"), Source(format="odd", blob={})),
    (Message.user("hi"), Source(format="native", blob={"role": "user", "content": "no"})),
    (
        Message.assistant([ToolCallPart(id="c", name="pay", arguments={"sure": 1})]),
        Source(format="anthropic", blob={"role": "assistant", "content": [CALL]}),
    ),
    (
        Message.tool(ToolResultPart(call_id="c", name="f", content={"sum": 1})),
        Source(
            format="gemini",
            blob={"parts": [{"functionResponse": {"id": "c", "name": "f", "response": {"sum": 1.0}}}]},
        ),
    ),
    (
        Message.user("hi", metadata={"trusted": 0}),
        Source(format="acontext", blob={"role": "user", "parts": [{"type": "text", "text": "hi"}], "meta": {"trusted": False}}),
    ),
]


@pytest.mark.parametrize(("message", "source"), FORGED)
@pytest.mark.parametrize("format", CODECS)
def test_m2_an_original_that_says_something_else_is_ignored(format: Format, message: Message, source: Source) -> None:
    """M2: what a reader gets in a format is what a model gets. In Python, 1 equals True."""
    plain = to_format(format, message)
    written = to_format(format, message.model_copy(update={"source": source}))
    assert written.items == plain.items
    assert [loss.path for loss in written.losses] == [*(loss.path for loss in plain.losses), "/source"]


def test_m5_an_original_sets_no_field_of_the_store() -> None:
    """M5: a client over HTTP sends the original, and could send ids with it."""
    blob = {"role": "user", "parts": [{"type": "text", "text": "hi"}], "meta": {}}
    forged = dict.fromkeys(acontext.SET_BY_STORE, "forged")
    message = Message.user("hi", source=Source(format="acontext", blob=forged | blob | {"x": 1}))
    written = to_format("acontext", message)
    assert written.items == [{"id": message.id, "parent_id": None, **blob, "x": 1, "created_at": None}]
    assert written.losses == []


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({"metadata": {"a": 1}}, ["/metadata"]),
        ({"stop_reason": "refusal"}, ["/stop_reason"]),
        ({"stop_reason": "max_tokens"}, ["/stop_reason"]),
        ({"provider_details": {"a": 1}}, ["/provider_details"]),
        ({"stop_reason": "stop"}, []),
    ],
)
def test_m3_what_an_original_does_not_hold_is_listed(fields: JsonObject, lost: list[str]) -> None:
    """M3: also in the format of the original."""
    blob = {"role": "assistant", "content": "hi", "name": "ann"}
    message = Message.assistant("hi", source=Source(format="openai", blob=blob), **fields)
    written = to_format("openai", message)
    assert (written.items, [loss.path for loss in written.losses]) == ([blob], lost)


def test_m2_a_refusal_comes_back() -> None:
    blob = {"role": "assistant", "content": None, "refusal": "no", "name": "ann"}
    written = to_format("openai", from_blob("openai", blob))
    assert (written.items, written.losses) == ([blob], [])


def test_m1_what_a_read_returns_can_be_stored_again() -> None:
    """M1: the fields that the store sets are set anew."""
    message = Message.user("hi", parent_id="01980000-0000-7000-8000-000000000000", seq=4, metadata={"a": 1})
    native = from_blob("native", to_format("native", message).items[0])
    assert (native.id, native.content, native.parent_id, native.seq) == (message.id, message.content, None, None)
    again = from_blob("acontext", to_format("acontext", message).items[0])
    assert (again.content, again.metadata, again.parent_id, again.source) == (message.content, {"a": 1}, None, None)


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
