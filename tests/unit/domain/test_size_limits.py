"""How much one value may hold, and how a body is looked at before anything is made of it."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from runyard.domain.json_text import MAX_DIGITS, Shape
from runyard.domain.quoting import brief
from runyard.domain.size_limits import MAX_NESTING, MAX_VALUES, check_content, check_value, message_size
from runyard.errors import InvalidInputError
from runyard.models import Message, ToolResultPart
from runyard_api.http.reading import MAX_BODY_VALUES

CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
WHEEL: dict[str, Any] = {}
WHEEL.update(a=WHEEL, b=WHEEL, c=[WHEEL, WHEEL])


@pytest.mark.parametrize("value", [CIRCLE, WHEEL, {"a": (CIRCLE,)}])
def test_value_that_contains_itself_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError):
        check_value(value, "extra")


def test_every_level_is_counted() -> None:
    """Lists of one element have no commas."""
    chain: Any = []
    for _ in range(MAX_NESTING - 2):
        chain = [chain]
    many = [chain] * (MAX_VALUES // (MAX_NESTING - 1))
    check_value(many, "answer")
    with pytest.raises(InvalidInputError) as error:
        check_value([*many, *many], "answer")
    assert error.value.details == {"field": "answer", "most": MAX_VALUES}


def test_bytes_are_those_of_utf8() -> None:
    check_value({"é": "x" * (2**18 - 2)}, "metadata")
    with pytest.raises(InvalidInputError) as error:
        check_value({"é": "x" * (2**18 - 1)}, "metadata")
    assert error.value.details == {"field": "metadata", "most": 2**18, "got": 2**18 + 1}
    assert message_size(Message.tool(ToolResultPart(call_id="", content={"é": ["\ud800"]}))) == len("tool_result") + 39 + 5


def test_integers_have_64_bits_and_floats_are_finite() -> None:
    check_value([-(2**63), 2**64 - 1, True, -1.7e308, 5e-324], "answer")
    for number in (-(2**63) - 1, 2**64, math.inf, -math.inf, math.nan):
        with pytest.raises(InvalidInputError):
            check_value({"k": [number]}, "extra")


TAKEN = [
    b"",
    b"1" * MAX_DIGITS,
    json.dumps("[" * 200_000).encode(),
    json.dumps(["," * 200_000, 'x"' * 200_000, "\\" * 200_000, '\\"[' * 100_000]).encode(),
    json.dumps({"1" * 500: "2" * 500}).encode(),
    json.dumps([1] * (MAX_BODY_VALUES - 1)).encode(),
    b'{"a": "' + b"1" * 500 + b'", "b": ' + b"1" * MAX_DIGITS + b', "c": "' + b"1" * 60 + b'"}',
]
REFUSED = [
    b"1" * (MAX_DIGITS + 1),
    b'{"a": "' + b"1" * 500 + b'", "b": 0.' + b"1" * 500 + b"}",
    b'{"a": "\\\\", "b": ' + b"1" * 500 + b', "c": "\\""}',
    json.dumps([1] * MAX_BODY_VALUES).encode(),
    b"[[]]" * MAX_BODY_VALUES,
    b"{}" * MAX_BODY_VALUES,
    b'["' + b'",["' * MAX_BODY_VALUES,
    b'"' * (4 * MAX_BODY_VALUES + 1) + b"[" * MAX_BODY_VALUES,
    b'"\\\\"' + b"[" * MAX_BODY_VALUES,
]


PIECE = 2**16
"""Bytes that arrive together."""


def check_shape(body: bytes, piece: int) -> None:
    shape = Shape(MAX_BODY_VALUES)
    for at in range(0, len(body), piece):
        shape.feed(body[at : at + piece])


@pytest.mark.parametrize("value", [datetime.now(UTC), {1, 2}, b"bytes", object(), {1: "one"}, {"a": [{None: 0}]}, 1j])
def test_value_that_json_cannot_express_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="JSON"):
        check_value({"k": value}, "extra")
    with pytest.raises(InvalidInputError, match="JSON"):
        check_content(Message.tool(ToolResultPart(call_id="c", content=[value])))


@pytest.mark.parametrize("value", [set(), frozenset(), b"", Decimal(0), timedelta(0), range(0)])
def test_empty_value_of_a_wrong_type_is_refused(value: Any) -> None:
    """None of these is null, and no store could keep it."""
    with pytest.raises(InvalidInputError):
        check_value(value, "result")


@pytest.mark.parametrize(("name", "value"), [("metadata", ["a"]), ("extra", []), ("config", "x"), ("tags", []), ("title", b"")])
def test_objects_are_objects(name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=name):
        check_value(value, name)


@pytest.mark.parametrize(
    "value", [10**5000, b"x" * 10**7, "x" * 10**7, ["x" * 10**7] * 1000], ids=["int", "bytes", "text", "list"]
)
def test_errors_are_brief(value: Any) -> None:
    assert len(brief(value)) < 1000


@pytest.mark.parametrize("piece", [PIECE, 101, 7, 1])
@pytest.mark.parametrize("n", range(len(TAKEN)))
def test_brackets_in_strings_are_not_counted(n: int, piece: int) -> None:
    check_shape(TAKEN[n], piece)


@pytest.mark.parametrize("piece", [PIECE, 101, 7, 1])
@pytest.mark.parametrize("n", range(len(REFUSED)))
def test_brackets_outside_of_strings_are_counted(n: int, piece: int) -> None:
    with pytest.raises(ValueError, match=r"more than"):
        check_shape(REFUSED[n], piece)


@pytest.mark.parametrize("text", [b"[[]]", b"{}", b"[1", b'"', b'["'])
def test_no_more_is_looked_at_than_holds_as_many_as_may_be(text: bytes) -> None:
    shape = Shape(MAX_BODY_VALUES)
    with pytest.raises(ValueError, match=r"more than"):
        for _ in range(5 * MAX_BODY_VALUES // (PIECE // len(text)) + 2):
            shape.feed(text * (PIECE // len(text)))
