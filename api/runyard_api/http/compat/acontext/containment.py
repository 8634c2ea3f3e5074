"""The filter of sessions by their configs. The filter tests containment, as Postgres defines it for JSON."""

from __future__ import annotations

from typing import Final

from runyard.domain.json_text import Shape, read
from runyard.errors import InvalidInputError
from runyard.models import JsonObject, JsonValue

from ...reading import MAX_BODY_VALUES

MAX_WANTED: Final = 50
"""Maximum number of values in a filter. The number of steps of a comparison is the product of two numbers: the values in the
filter, and the values in the configs."""


def wanted(text: str) -> JsonObject:
    """Decode the filter ``text``. Raises InvalidInputError."""
    try:
        given = text.encode()
        Shape(MAX_BODY_VALUES).feed_all(given)
        found = read(given)
    except ValueError as error:
        raise InvalidInputError(f"filter_by_configs is not JSON: {error}", field="filter_by_configs") from None
    if not isinstance(found, dict):
        raise InvalidInputError("filter_by_configs must be a JSON object", field="filter_by_configs")
    if _count(found) > MAX_WANTED:
        raise InvalidInputError(f"filter_by_configs has at most {MAX_WANTED} values", field="filter_by_configs")
    return found


def _count(value: JsonValue) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_count, value.values()))
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1


def contains(value: JsonValue, part: JsonValue) -> bool:
    """Return True if the JSON ``value`` contains the JSON ``part``. An object must have every field of ``part``. A list must
    have every entry of ``part``, at any place."""
    if isinstance(part, dict):
        return isinstance(value, dict) and all(name in value and contains(value[name], each) for name, each in part.items())
    if isinstance(part, list):
        return isinstance(value, list) and all(any(contains(one, each) for one in value) for each in part)
    if isinstance(value, bool) or isinstance(part, bool):
        return value is part
    return bool(value == part)
