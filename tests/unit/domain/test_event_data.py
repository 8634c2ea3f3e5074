"""The shapes of events' data."""

from __future__ import annotations

import pytest

from runyard.domain.event_data import EVENT_DATA, check_event_data
from runyard.errors import InvalidInputError
from runyard.models import EVENT_TYPES


def test_every_type_has_a_shape() -> None:
    assert tuple(sorted(EVENT_DATA)) == tuple(sorted(EVENT_TYPES))


@pytest.mark.parametrize(
    ("type_", "data", "where"),
    [
        ("tool.started", {"name": "t"}, "call_id"),
        ("message.delta", {"text": 5}, "text"),
        ("message.delta", {"tool_call": {"id": "c"}}, "tool_call.name"),
    ],
)
def test_data_of_another_shape_is_refused(type_: str, data: dict[str, object], where: str) -> None:
    """What an agent sends goes to readers that were generated from the API's document."""
    with pytest.raises(InvalidInputError, match=where) as refused:
        check_event_data(type_, data)  # type: ignore[arg-type]
    assert refused.value.details["field"] == where


def test_agents_may_add_fields() -> None:
    check_event_data("message.delta", {"progress": 0.5})
    check_event_data("tool.completed", {"call_id": "c", "name": "t", "is_error": False, "seconds": 3})
