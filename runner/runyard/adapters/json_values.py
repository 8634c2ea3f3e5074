"""Values of frameworks as JSON that the store takes."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import to_jsonable_python

from ..domain.quoting import brief
from ..domain.size_limits import JsonObject, JsonValue, check_value
from ..errors import RunyardError

OMITTED: Final = "runyard_omitted"
"""The only key of a run's result that stands for a result that cannot be stored. Its value says why."""


def json_of(value: object) -> Any:
    """Return ``value`` as JSON: bytes as base64, numbers that are not finite as null, other objects as their text."""
    return to_jsonable_python(value, fallback=str, bytes_mode="base64", inf_nan_mode="null")


def result_of(value: object) -> JsonValue:
    """Return ``value`` as the result of a run. A result that a run cannot have becomes an object with the key OMITTED.

    The agent has ended and its messages are stored, so that a result is no reason to fail the run.
    """
    try:
        made: JsonValue = json_of(value)
        check_value(made, "result")
    except Exception as error:  # also of a method __str__ in the value
        omitted: JsonObject = {OMITTED: error.message if isinstance(error, RunyardError) else f"no JSON: {brief(str(error))}"}
        return omitted
    return made
