"""Conversion of a framework's values to JSON that the store accepts."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import to_jsonable_python

from ..domain.quoting import brief
from ..domain.size_limits import JsonObject, JsonValue, check_value
from ..errors import RunyardError

OMITTED: Final = "runyard_omitted"
"""If the result of a run cannot be stored, an object with only this key is stored instead. The key's value is the reason."""


def json_of(value: object) -> Any:
    """Return ``value`` as JSON. Bytes become base64, infinite numbers and NaN become null, and other objects become text."""
    return to_jsonable_python(value, fallback=str, bytes_mode="base64", inf_nan_mode="null")


def result_of(value: object) -> JsonValue:
    """Return ``value`` as the result of a run. If the value cannot be stored, return an object with the key OMITTED.

    An invalid value does not fail the run, because the agent has already ended and its messages are stored.
    """
    try:
        made: JsonValue = json_of(value)
        check_value(made, "result")
    except Exception as error:  # a method __str__ in the value may raise any error
        omitted: JsonObject = {OMITTED: error.message if isinstance(error, RunyardError) else f"no JSON: {brief(str(error))}"}
        return omitted
    return made
