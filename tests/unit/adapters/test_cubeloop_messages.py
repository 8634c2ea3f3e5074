"""Conversion of cubeloop's messages to runyard's messages, and back (M2)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runyard.adapters.cubeloop_messages import KEPT, decode, encode, stored_id
from runyard.errors import InvalidInputError
from runyard.models import ImagePart, Message, TextPart, Usage
from tests.support.cubeloop_packages import Package

TEXT = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT, lambda inner: st.dictionaries(TEXT, inner, max_size=3)
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
PARTS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}),
    st.fixed_dictionaries({"type": st.just("image"), "source": TEXT | st.just("https://a/b.png"), "media_type": TEXT}),
)
ASSISTANT_PARTS = PARTS | st.one_of(
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": TEXT}),
    st.fixed_dictionaries({"type": st.just("tool_call"), "id": TEXT, "name": TEXT, "arguments": OBJECT}),
)
COMMON = {
    "id": TEXT,
    "timestamp": st.none() | st.floats(0, 2e9),
    "metadata": OBJECT,
    "run_id": st.none() | st.text("abc", min_size=1, max_size=3),
}
TOKENS = st.integers(0, 99)
USAGE = st.fixed_dictionaries({f"{kind}_tokens": TOKENS for kind in ("input", "output", "cache_read", "cache_write")})
MESSAGES = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "content": st.lists(PARTS, max_size=3), **COMMON}),
    st.fixed_dictionaries(
        {
            "role": st.just("assistant"),
            "content": st.lists(ASSISTANT_PARTS, max_size=3),
            "stop_reason": TEXT | st.sampled_from(["stop", "end_turn", "length", "tool_use", "error", "aborted"]),
            "error_message": st.none() | TEXT,
            "usage": st.none() | USAGE,
            "provider_id": TEXT,
            "response_id": st.none() | TEXT,
            **COMMON,
        }
    ),
    st.fixed_dictionaries(
        {
            "role": st.just("tool_result"),
            "tool_call_id": TEXT,
            "tool_name": TEXT,
            "content": st.lists(PARTS, max_size=3),
            "details": JSON,
            "is_error": st.booleans(),
            **COMMON,
        }
    ),
)


def parsed(package: Package, fields: Any) -> Any:
    base = package.module("providers.base")
    kinds = {"user": base.UserMessage, "assistant": base.AssistantMessage, "tool_result": base.ToolResultMessage}
    return kinds[fields["role"]].model_validate(fields)


@given(MESSAGES, st.sampled_from(["cubeloop", "cubepi"]))
def test_every_message_comes_back_as_it_was(fields: Any, name: str) -> None:
    package = Package(name)
    given = parsed(package, fields)
    [again] = decode([encode(given.model_dump(mode="json"))])
    assert parsed(package, again) == given


def test_people_and_other_agents_read_the_content() -> None:
    fields = {
        "role": "assistant",
        "content": [{"type": "text", "text": "look"}, {"type": "image", "source": "aGk=", "media_type": "image/png"}],
        "stop_reason": "length",
        "usage": {"input_tokens": 3, "output_tokens": 2, "cache_read_tokens": 7, "cache_write_tokens": 0},
        "timestamp": 1.5,
        "run_id": "r",
    }
    message = encode(fields)
    assert message.content == [TextPart(text="look"), ImagePart(data="aGk=", media_type="image/png")]
    assert (message.stop_reason, message.run_id) == ("max_tokens", "r")
    assert message.usage == Usage(requests=1, input_tokens=3, output_tokens=2)
    kept = {"timestamp": 1.5, "stop_reason": "length", "usage": {"cache_read_tokens": 7}}
    assert message.provider_details == {KEPT: kept}


def test_part_of_an_unknown_type_is_kept_with_the_whole_message() -> None:
    fields = {"role": "user", "content": [{"type": "hologram", "data": [1]}], "timestamp": 1.0}
    message = encode(fields)
    assert message.text == "[hologram]" and decode([message]) == [fields]


def test_identity() -> None:
    """The stored id comes from the message's id, or from its content if the message has a time or a response id."""
    bare = {"role": "user", "content": []}
    assert stored_id({**bare, "id": "00000000000000000000000000000001"}) == "00000000-0000-0000-0000-000000000001"
    for known in ({"id": "mine", "run_id": "r"}, {"timestamp": 1.0}, {"response_id": "resp"}):
        assert stored_id({**bare, **known}) == stored_id({**bare, **known})
    assert stored_id({**bare, "timestamp": 1.0}) != stored_id({**bare, "timestamp": 1.0, "run_id": "r"})
    assert stored_id({**bare, "id": "mine", "run_id": "r"}) != stored_id({**bare, "id": "mine", "run_id": "s"})
    assert stored_id(bare) != stored_id(bare)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"role": "system", "content": []},
        {"role": "user", "content": "text"},
        {"role": "user", "content": [], "run_id": 3},
        {"role": "user", "content": [], "metadata": [1]},
        {"role": "tool_result", "content": []},
        {"role": "assistant", "content": [], "usage": {"input_tokens": "many"}},
    ],
)
def test_values_that_are_no_messages_are_refused(fields: Any) -> None:
    with pytest.raises(InvalidInputError, match="not a message of cubeloop"):
        encode(fields)


def test_messages_of_others_have_an_id_and_a_role() -> None:
    message = Message.user("hi")
    assert decode([message]) == [
        {"id": message.id, "role": "user", "content": [{"type": "text", "text": "hi"}], "metadata": {}, "run_id": None}
    ]


def test_an_image_of_a_caller_has_a_media_type() -> None:
    """A provider refuses data without a media type. A message of cubeloop stays as it is."""
    [fields] = decode([Message.user([ImagePart(data="QUJD")])])
    assert fields["content"] == [{"type": "image", "source": "QUJD", "media_type": "image/png"}]
    own = {"role": "user", "content": [{"type": "image", "source": "QUJD", "media_type": ""}]}
    [again] = decode([encode(own)])
    assert again["content"] == own["content"]
