"""Whether an answer fits its schema (H3), without asking anybody else (M5)."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from runyard.domain.requests import check_answer
from runyard.errors import HitlInvalidAnswerError
from runyard.models import HitlRequest
from tests.support.lure import private


@pytest.mark.parametrize("place", ["$ref", "$dynamicRef", "in a property", "in a list"])
def test_m5_a_schema_fetches_no_other_schema(place: str) -> None:
    with private() as server, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        refers: dict[str, Any] = {"$dynamicRef" if place == "$dynamicRef" else "$ref": server.url}
        schema = {"in a property": {"properties": {"a": refers}}, "in a list": {"allOf": [refers]}}.get(place, refers)
        with pytest.raises(HitlInvalidAnswerError, match="schema"):
            check_answer(HitlRequest(answer_schema=schema), {"a": 1})
        assert server.reached == []


def test_h3_a_schema_may_refer_to_itself_and_to_the_standard() -> None:
    own = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}
    check_answer(HitlRequest(answer_schema=own), 1)
    with pytest.raises(HitlInvalidAnswerError, match="integer"):
        check_answer(HitlRequest(answer_schema=own), "x")
    check_answer(HitlRequest(answer_schema={"$ref": "https://json-schema.org/draft/2020-12/schema"}), {"type": "object"})
