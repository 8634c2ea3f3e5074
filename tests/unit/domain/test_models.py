"""What users hold in their hands."""

import uuid
from datetime import UTC, datetime
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from runyard import models
from runyard.domain.runs import DEFAULT_OPTIONS
from runyard.domain.states import RunStatus
from runyard.errors import InvalidInputError
from runyard.models import (
    HitlRequest,
    ImagePart,
    Message,
    RetryPolicy,
    Run,
    RunOptions,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
    check_id,
    new_id,
    open_tool_calls,
    stored_messages,
)

FLOATS = [
    (model, name)
    for model in vars(models).values()
    if isinstance(model, type) and issubclass(model, BaseModel) and model is not Usage  # check_usage refuses them
    for name, field in model.model_fields.items()
    if field.annotation in (float, float | None)
]


def call(*ids: str) -> Message:
    return Message.assistant([ToolCallPart(id=i, name="f") for i in ids])


def result(*ids: str) -> Message:
    return Message.tool(*(ToolResultPart(call_id=i) for i in ids))


def test_new_ids_are_uuid7_and_sort_by_age() -> None:
    ids = [new_id() for _ in range(100)]
    assert ids == sorted(ids) and len(set(ids)) == 100
    assert {uuid.UUID(i).version for i in ids} == {7}


@pytest.mark.parametrize("good", ["a", "x" * 255, "with space", "ünï", "a:b/c", "...", ".a", "a.."])
def test_id_with_allowed_characters_is_taken(good: str) -> None:
    assert check_id(good, "thread_id") == good


@pytest.mark.parametrize("bad", ["", "x" * 256, "a\nb", "\0", "a\u200b\x7f", ".", "..", 7, None])
def test_bad_ids(bad: object) -> None:
    """A2: ids are 1 to 255 printable characters, and none is a step in a path (RFC 3986, 5.2.4)."""
    with pytest.raises(InvalidInputError) as caught:
        check_id(bad, "thread_id")  # type: ignore[arg-type]
    assert caught.value.details["field"] == "thread_id"


@pytest.mark.parametrize("number", [inf, -inf, nan])
@pytest.mark.parametrize(("model", "name"), FLOATS)
def test_a_number_that_json_cannot_say_is_refused(model: type[BaseModel], name: str, number: float) -> None:
    """A2: what is stored can be read back."""
    with pytest.raises(ValidationError, match="finite number"):
        model(**{name: number})


def test_a_string_is_one_text_part() -> None:
    assert Message.user("hi").content == [TextPart(text="hi")]
    assert Message(role="assistant", content="hi").text == "hi"


def test_messages_have_ids_of_their_own() -> None:
    assert Message.user("a").id != Message.user("a").id
    assert Message.user("a", id="given").id == "given"


def test_text_calls_and_results() -> None:
    message = Message.assistant(
        [ThinkingPart(text="hm"), TextPart(text="a"), ToolCallPart(id="1", name="f"), TextPart(text="b")]
    )
    assert message.text == "ab"
    assert [c.id for c in message.tool_calls] == ["1"] and message.tool_results == []
    assert [r.call_id for r in result("1", "2").tool_results] == ["1", "2"]


@pytest.mark.parametrize(
    "bad",
    [
        {"role": "robot", "content": "x"},
        {"role": "user", "content": [{"type": "unknown"}]},
        {"role": "user", "content": [{"type": "tool_call", "id": "1"}]},
        {"role": "user"},
        {"role": "user", "content": 7},
    ],
)
def test_malformed_messages(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Message.model_validate(bad)


@pytest.mark.parametrize(
    ("messages", "still_open"),
    [
        ([], []),
        ([Message.user("x")], []),
        ([call("a", "b")], ["a", "b"]),
        ([call("a", "b"), result("b")], ["a"]),
        ([call("a"), result("a")], []),
        ([result("a"), call("a")], ["a"]),
        ([call("a"), Message.user("x"), call("b"), result("a")], ["b"]),
        ([call("a"), result("a"), call("a")], ["a"]),
    ],
)
def test_open_tool_calls(messages: list[Message], still_open: list[str]) -> None:
    """R5, F6: in order; a result answers an earlier call only."""
    assert open_tool_calls(messages) == still_open


json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
parts = st.one_of(
    st.builds(TextPart, text=texts),
    st.builds(ThinkingPart, text=texts, signature=st.none() | texts),
    st.builds(ImagePart, url=st.none() | texts, data=st.none() | texts),
    st.builds(ToolCallPart, id=texts, name=texts, arguments=st.dictionaries(texts, json, max_size=3)),
    st.builds(ToolResultPart, call_id=texts, content=json, is_error=st.booleans()),
)


@given(st.lists(parts, max_size=4), st.dictionaries(texts, json, max_size=3))
def test_messages_survive_json(content: list[TextPart], metadata: dict[str, object]) -> None:
    message = Message(role="assistant", content=content, metadata=metadata)  # type: ignore[arg-type]
    assert Message.model_validate_json(message.model_dump_json()) == message
    assert stored_messages([message.model_dump(), message.model_dump()]) == [message, message]


@pytest.mark.parametrize(
    "given",
    [
        {"role": "user", "content": "a", "odd": 1},
        {"role": "user", "content": [{"type": "text", "text": "a", "odd": 1}]},
        {"role": "user", "content": [{"type": "video", "url": "https://example.org"}]},
        {"role": "user", "content": "a", "source": {"format": "openai", "blob": {}, "odd": 1}},
        {"role": "tool", "content": [{"type": "tool_result", "call_id": "c", "has_parts": True, "content": "a"}]},
        {"role": "tool", "content": [{"type": "tool_result", "call_id": "c", "has_parts": True, "content": [{"type": "x"}]}]},
    ],
)
def test_m2_an_unknown_field_of_a_message_is_refused(given: dict[str, object]) -> None:
    """M2, M6: refused and not dropped."""
    with pytest.raises(ValidationError):
        Message.model_validate(given)


def test_a_store_ignores_the_fields_of_a_newer_version() -> None:
    newer = {"role": "user", "content": [{"type": "text", "text": "a", "odd": 1}], "odd": 1}
    [message] = stored_messages([newer])
    assert (message.role, message.content) == ("user", [TextPart(text="a")])


def test_m2_usage_has_no_unknown_fields() -> None:
    """M2: a constructor drops nothing. A reader ignores what a newer version stored."""
    with pytest.raises(ValidationError, match="total_tokens"):
        Usage(requests=1, total_tokens=5)  # type: ignore[call-arg]
    fields = {"role": "user", "content": "a", "usage": {"requests": 1, "total_tokens": 5}}
    assert stored_messages([fields])[0].usage == Usage(requests=1)


def test_usage_adds_up() -> None:
    one = Usage(requests=1, input_tokens=2, output_tokens=3, cost=0.5)
    assert one + Usage() == one
    assert one + one == Usage(requests=2, input_tokens=4, output_tokens=6, cost=1.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"max_attempts": 0},
        {"multitask_strategy": "maybe"},
        {"retry": {"factor": 0.5}},
        {"unknown": 1},
    ],
)
def test_bad_options(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RunOptions.model_validate(bad)


def test_options_survive_json() -> None:
    options = RunOptions(timeout=1.5, max_attempts=3, retry=RetryPolicy(jitter=0), parallel=True)
    assert RunOptions.model_validate_json(options.model_dump_json()) == options


def test_the_options_that_many_runs_share_cannot_be_set() -> None:
    """Runs of all tenants of a process share the default options."""
    for shared, name in ((DEFAULT_OPTIONS, "timeout"), (DEFAULT_OPTIONS.retry, "initial")):
        with pytest.raises(ValidationError):
            setattr(shared, name, 5.0)
    assert RunOptions() == DEFAULT_OPTIONS


@pytest.mark.parametrize("status", list(RunStatus))
def test_run_has_ended_in_each_final_status(status: RunStatus) -> None:
    run = Run(thread_id="t", run_id="r", status=status, accepted_at=datetime.now(UTC))
    assert run.ended is (status in ["completed", "failed", "cancelled", "dead"])


def test_requests_are_pending_until_answered() -> None:
    """An answer may be any JSON value, None too: the time says whether there is one."""
    request = HitlRequest()
    assert request.answered_at is None and request.answer is None
    assert HitlRequest().request_id != request.request_id
